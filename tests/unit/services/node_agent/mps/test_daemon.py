"""How the agent finds the processes of an MPS daemon, runs the programs of the host, and keeps the daemon's folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.cdi.host import Host
from services.node_agent.config import Config
from services.node_agent.log_files import LOG_BYTES, LOG_KEPT_BYTES
from services.node_agent.mps.daemon import Daemon, MpsError, Process, Tools, find, tools_of

PIPE = Path("/run/kerf/mps/GPU-1/pipe")
POD = "1:name=systemd:/kubepods/burstable/pod0a1b2c3d-0000-4000-8000-000000000000/" + "f" * 64


def process(
    proc: Path, pid: int, *words: str, pipe: Path = PIPE, cgroup: str = "0::/kerf-mps", state: str = "S"
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (folder / "environ").write_bytes(f"PATH=/bin\0CUDA_MPS_PIPE_DIRECTORY={pipe}\0".encode())
    (folder / "stat").write_text(f"{pid} (nvidia-cuda-mps) {state} 1 1\n")
    (folder / "cgroup").write_text(f"{cgroup}\n")


def test_daemon_and_servers_of_one_pipe_directory_are_found(tmp_path: Path) -> None:
    process(tmp_path, 30, "nvidia-cuda-mps-server")
    process(tmp_path, 20, "/usr/bin/nvidia-cuda-mps-control", "-d", "-multiuser-server")
    process(tmp_path, 40, "nvidia-cuda-mps-control", "-d", pipe=PIPE.parent / "other")
    process(tmp_path, 50, "nvidia-cuda-mps-control")
    process(tmp_path, 60, "python", "train.py")
    process(tmp_path, 70, "nvidia-cuda-mps-server", state="Z")
    (tmp_path / "meminfo").touch()
    assert find(PIPE, tmp_path) == (Process(20, True), Process(30, False))


def test_a_container_cannot_have_its_processes_ended_in_place_of_a_daemons(tmp_path: Path) -> None:
    """Name and environment are what a program says of itself; its cgroup is not."""
    process(tmp_path, 20, "nvidia-cuda-mps-control", "-d", cgroup=POD)
    assert find(PIPE, tmp_path) == ()


def test_an_agent_in_a_container_runs_the_hosts_program_in_the_hosts_mount_namespace(tmp_path: Path) -> None:
    (tmp_path / "proc/1/ns").mkdir(parents=True)
    (tmp_path / "proc/1/ns/mnt").touch()
    host = Host(root=tmp_path, driver_root="/run/nvidia/driver")
    tools = tools_of(host, "", cgroups=tmp_path, lock=tmp_path / "lock")
    assert tools.program == "/run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"
    assert tools.prefix == ("nsenter", f"--mount={tmp_path}/proc/1/ns/mnt", "--")
    assert tools.environment["LD_LIBRARY_PATH"].startswith("/run/nvidia/driver/usr/lib64:")
    assert tools.environment["PATH"].startswith("/run/nvidia/driver/usr/bin:")
    own = tools_of(Host(), "/opt/control", cgroups=tmp_path, lock=tmp_path / "lock")
    assert (own.program, own.prefix, "LD_LIBRARY_PATH" in own.environment) == ("/opt/control", (), False)
    assert own.environment.keys() == {"PATH"}, "nothing of the agent, which has secrets in its environment"


@pytest.mark.parametrize(
    ("patterns", "shared"), [((), False), (("gpu-a-*",), True), (("gpu-b-*",), False), (("gpu-b-*", "*"), True)]
)
def test_the_operator_names_the_nodes_that_share_by_mps(patterns: tuple[str, ...], shared: bool) -> None:
    assert Config(node="gpu-a-7", mps_nodes=patterns).mps is shared


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT, so the MPS daemons' mounts are NOT TESTED")


class Folder:
    """The folder of a GPU whose daemon never starts: its program is not there."""

    def __init__(self, folder: Path) -> None:
        self.daemon = self.next_agent(folder)

    def next_agent(self, folder: Path) -> Daemon:
        tools = Tools(program=str(folder / "no-program"), environment={"PATH": os.environ["PATH"]})
        return Daemon("GPU-1", folder / "GPU-1", tools)

    async def start(self) -> None:
        with pytest.raises(MpsError, match="no-program"):
            await self.daemon.start()

    def mounts(self) -> list[str]:
        """What is mounted in the folder, by name."""
        lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
        return sorted(Path(words[4]).name for words in lines if Path(words[4]).parent == self.daemon.folder)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    for name in made.mounts():
        subprocess.run(["umount", "--lazy", str(made.daemon.folder / name)], check=True)


def make_files(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / str(number)).touch()


@root_only
async def test_a_container_cannot_fill_run_by_the_pipe_directory(folder: Folder) -> None:
    await folder.start()
    with pytest.raises(OSError, match="No space left"):
        (folder.daemon.pipe / "control_lock").write_bytes(bytes(2 << 20))
    assert (folder.daemon.pipe / "control_lock").stat().st_size <= 1 << 20
    with pytest.raises(OSError, match="No space left"):
        make_files(folder.daemon.pipe, 1024)


@root_only
async def test_a_link_in_the_pipe_directory_leads_the_daemon_nowhere(folder: Folder, tmp_path: Path) -> None:
    await folder.start()
    (tmp_path / "of-the-host").write_text("as it was")
    pid_file = folder.daemon.pipe / "nvidia-cuda-mps-control.pid"
    pid_file.symlink_to(tmp_path / "of-the-host")
    with pytest.raises(OSError, match="symbolic links"):
        pid_file.write_text("4711")
    await folder.start()
    assert not pid_file.is_symlink()
    assert (tmp_path / "of-the-host").read_text() == "as it was"


@root_only
async def test_a_daemon_starts_in_an_empty_pipe_directory_that_containers_still_have(
    folder: Folder, tmp_path: Path
) -> None:
    """A root of a container may have put anything there; what a link names is not in it."""
    await folder.start()
    pipe, kept = folder.daemon.pipe, tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (pipe / "control").mkdir()
    (pipe / "control" / "deep").touch()
    (pipe / "link").symlink_to(kept)
    os.mkfifo(pipe / "fifo")
    before = pipe.stat()
    await folder.start()
    assert list(pipe.iterdir()) == []
    assert (pipe.stat().st_dev, pipe.stat().st_ino) == (before.st_dev, before.st_ino), "what containers have mounted"
    assert (kept / "file").exists()


@root_only
async def test_the_folders_of_a_daemon_are_mounted_once_and_go_with_the_last_slice(
    folder: Folder, tmp_path: Path
) -> None:
    await folder.start()
    assert folder.mounts() == ["pipe", "shm"]
    folder.daemon = folder.next_agent(tmp_path)
    await folder.start()
    assert folder.mounts() == ["pipe", "shm"]
    await folder.daemon.remove()
    assert (folder.mounts(), folder.daemon.folder.exists()) == ([], False)


@root_only
async def test_a_mount_program_that_does_not_know_the_option_mounts_without_it(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    mount = tmp_path / "bin" / "mount"
    mount.write_text('#!/bin/sh\ncase "$*" in *nosymfollow*) exit 32;; esac\nexec /bin/mount "$@"\n')
    mount.chmod(0o755)
    folder.daemon._tools.environment["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    await folder.start()
    assert folder.mounts() == ["pipe", "shm"]


@root_only
async def test_a_pipe_directory_of_a_former_version_is_not_hidden_from_its_containers(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the GPU's last slice has ended, daemons that start again must have their sockets in it."""
    for path in (folder.daemon.pipe, folder.daemon.folder / "log"):
        path.mkdir(parents=True)
    (folder.daemon.folder / "log" / "control.log").touch()
    await folder.start()
    assert folder.mounts() == ["shm"]
    assert "mps_pipe_not_limited" in capsys.readouterr().out
    await folder.daemon.remove()
    await folder.start()
    assert folder.mounts() == ["pipe", "shm"]


async def test_the_logs_of_a_daemon_are_cut(tmp_path: Path) -> None:
    """It writes down each question of the agent's, of which there are many in every round."""
    daemon = Daemon("GPU-1", tmp_path / "GPU-1", Tools(program=""))
    await daemon.shorten_logs()
    log = tmp_path / "GPU-1" / "log" / "control.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"[2026-01-01 00:00:00.000 Control 1] Accepting connection...\n" * (LOG_BYTES // 40))
    await daemon.shorten_logs()
    assert log.stat().st_size <= LOG_KEPT_BYTES
