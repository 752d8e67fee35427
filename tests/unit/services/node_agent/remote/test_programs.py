"""Files of the programs of a remote GPU."""

from __future__ import annotations

from pathlib import Path

from services.node_agent.log_files import LOG_BYTES, LOG_KEPT_BYTES
from services.node_agent.remote.programs import install_client, mounted, shorten_logs


def test_a_log_that_grows_for_long_is_cut_to_its_last_lines(tmp_path: Path) -> None:
    """Its program goes on to write at the end."""
    log = tmp_path / "proxy" / "log"
    log.parent.mkdir()
    line = b"a line of sixteen\n"
    with log.open("ab", buffering=0) as program:
        program.write(line * (LOG_BYTES // len(line)))
        shorten_logs(tmp_path)
        assert log.stat().st_size > LOG_BYTES - len(line), "it is not too long yet"
        program.write(line * 2)
        shorten_logs(tmp_path)
        assert log.stat().st_size <= LOG_KEPT_BYTES
        program.write(b"the last\n")
    lines = log.read_bytes().splitlines(keepends=True)
    assert set(lines) == {line, b"the last\n"}
    assert lines[-1] == b"the last\n"


def test_the_logs_of_servers_and_ways_are_cut_too(tmp_path: Path) -> None:
    logs = [tmp_path / kind / "slice" / "log" for kind in ("serving", "clients")]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_bytes(bytes(LOG_BYTES + 1))
    shorten_logs(tmp_path)
    assert [log.stat().st_size <= LOG_KEPT_BYTES for log in logs] == [True, True]


def test_of_the_host_a_server_sees_the_folder_of_the_driver_alone() -> None:
    host, library = Path("/host"), "/host/run/nvidia/driver/usr/lib/libcuda.so.1"
    words = mounted((), "/run/kerf", ("server",), (), host, library)
    assert words[-4:-1] == ("/host", "/host/run/nvidia/driver/usr/lib", "0")
    assert mounted((), "/run/kerf", ("server",), (), host, "/opt/libcuda.so.1")[-4:-1] == ("/host", "", "0")
    assert mounted((), "/run/kerf", ("server",), (), Path("/"), library)[-4:-1] == ("", "", "0")


def test_the_library_of_running_containers_is_replaced_only_where_it_is_damaged(tmp_path: Path) -> None:
    """They have these files mounted, and each start of another container installs again."""
    (tmp_path / "libcuda.so.1").write_bytes(b"the library")
    folder = install_client(tmp_path, tmp_path / "host")
    library, preload = folder / "libcuda.so.1", folder / "ld.so.preload"
    library.write_bytes(b"")
    before = preload.stat()
    assert install_client(tmp_path, tmp_path / "host") == folder
    assert (library.read_bytes(), library.stat().st_mode & 0o777) == (b"the library", 0o755)
    assert (preload.stat().st_ino, preload.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
