"""The proxy between nodes: only the node for which a slice is served gets to it, and the network is measured."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote.nodes import SECRET, SLICE, Ends, Pki, free_port
from tests.remote.remote import Server, mixed, until

Serve = Callable[..., Server]
SOURCES = Path(__file__).resolve().parents[2] / "native" / "remote"


@pytest.fixture
def ends(tmp_path: Path, serve: Serve) -> Iterator[Ends]:
    """A server on node `gpu`, its slice served to node `client`, and both proxies."""
    with Ends(tmp_path, serve()) as ends:
        yield ends


def test_a_program_works_through_both_proxies(ends: Ends) -> None:
    path = ends.connect("client")
    assert ends.server.run("mix", "200", "3", through=path) == [
        mixed(seed, *(i * seed for i in range(200))) for seed in (1, 2, 3)
    ]
    assert ends.server.run("copies", "40", "2", through=path) == ends.server.run("copies", "40", "2")


def test_the_wire_carries_nothing_readable(ends: Ends) -> None:
    """What the relay between the nodes sees has neither the secret nor the name of a kernel in it."""
    seen = ends.through_a_recorder()
    assert ends.server.run("mix", "3", "1", through=ends.connect("client", address=seen.address))
    assert len(seen.data) > 1000
    assert SECRET.encode() not in seen.data
    assert b"mix" not in seen.data


def test_without_a_certificate_there_is_no_connection(ends: Ends) -> None:
    with pytest.raises(ssl.SSLError, match="certificate required"):
        ends.ask(None, "")


def test_a_certificate_of_another_authority_is_refused(ends: Ends, tmp_path: Path) -> None:
    stranger = Pki(tmp_path / "other").node("client")
    with pytest.raises(ssl.SSLError, match="unknown ca"):
        ends.ask(stranger, "")


@pytest.mark.parametrize(
    ("name", "slice_", "secret"),
    [
        ("stranger", SLICE, SECRET),
        ("client", SLICE, "guess"),
        ("client", "another", SECRET),
        ("client", "../slice", SECRET),
    ],
)
def test_a_slice_is_served_only_to_its_node_and_with_its_secret(
    ends: Ends, name: str, slice_: str, secret: str
) -> None:
    answer = ends.ask(ends.pki.node(name), f"kerf/1 slice {slice_} {secret}\n")
    assert answer.startswith("no,")


def test_a_client_does_not_talk_to_another_node_than_it_means(ends: Ends) -> None:
    """The address leads to a node with a certificate of its own: the secret is not sent to it."""
    path = ends.connect("client", peer="elsewhere")
    program = ends.server.client("info", through=path)
    _, err = program.communicate(timeout=30)
    assert program.returncode != 0
    assert "does not answer" in err
    assert "hostname mismatch" in ends.said(path)


def test_a_slice_that_has_ended_takes_no_more_programs(ends: Ends) -> None:
    path = ends.connect("client")
    assert ends.server.run("info", through=path)
    shutil.rmtree(ends.folder / SLICE)
    program = ends.server.client("info", through=path)
    assert program.communicate(timeout=30)[1]
    assert program.returncode != 0


def test_the_proxy_of_a_client_ends_when_its_socket_is_removed(ends: Ends) -> None:
    path = ends.connect("client")
    path.unlink()
    assert ends.proxies[path].wait(timeout=60) == 0


def test_many_programs_at_once_get_their_own_results(ends: Ends) -> None:
    path = ends.connect("client")
    programs = [ends.server.client("mix", "50", str(1 + i % 4), through=path) for i in range(20)]
    for i, program in enumerate(programs):
        out, err = program.communicate(timeout=60)
        assert program.returncode == 0, err
        assert [int(word) for word in out.split()] == [
            mixed(seed, *(j * seed for j in range(50))) for seed in range(1, 2 + i % 4)
        ]


def test_a_probe_is_bounded_and_one_at_a_time(ends: Ends) -> None:
    assert ends.ask(ends.pki.node("client"), "kerf/1 probe 65\n") == "no, too much"
    with ends.dialled(ends.pki.node("client")) as first:
        first.sendall(b"kerf/1 probe 1\n")
        assert first.recv(16) == b"ok\n"
        assert ends.ask(ends.pki.node("client"), "kerf/1 probe 1\n") == "no, another probe is under way"


def test_a_probe_has_at_most_1000_rounds(ends: Ends) -> None:
    with ends.dialled(ends.pki.node("client")) as first:
        first.sendall(b"kerf/1 probe 1\n")
        assert first.recv(16) == b"ok\n"
        first.sendall(b"r" * 1001)
        answered = b""
        while data := first.recv(1 << 16):
            answered += data
        assert answered == b"r" * 1000


def test_a_stranger_that_speaks_slowly_is_sent_away(ends: Ends) -> None:
    """A byte at each look, of a first message that would take minutes."""
    record = iter(b"\x16\x03\x01\x40\x00\x01" + bytes(1 << 14))
    with socket.create_connection(("127.0.0.1", ends.port)) as stranger:
        stranger.setblocking(False)

        def is_sent_away() -> bool:
            try:
                stranger.send(bytes([next(record)]))
                return stranger.recv(1) == b""
            except BlockingIOError:
                return False
            except (ConnectionResetError, BrokenPipeError):
                return True

        until(is_sent_away)


def test_strangers_have_at_most_256_connections_and_those_who_are_known_keep_theirs(ends: Ends) -> None:
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(ends.dialled(ends.pki.node("client")))
        known.sendall(b"kerf/1 probe 1\n")
        assert known.recv(16) == b"ok\n"
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", ends.port), timeout=5)) for _ in range(257)]
        assert _is_closed(made[-1])
        known.sendall(b"r")
        assert known.recv(1) == b"r"
        made[0].close()
        until(lambda: _is_served(ends))
    ends.serves.kill()
    assert "a connection is refused: there are too many" in ends.serves.communicate()[1]


def test_slices_that_hold_all_they_can_leave_each_other_slice_its_own(tmp_path: Path, serve: Serve) -> None:
    """A proxy in which a slice has two connections of its own, may have four, and all share three."""
    sources = [str(SOURCES / name) for name in ("proxy.c", "log.c")]
    bounds = ["-DOF_SLICE=2", "-DMOST_OF_SLICE=4", "-DMOST_SHARED=3"]
    program, names = tmp_path / "proxy", ("one", "two", "three")
    libraries = ["-lssl", "-lcrypto", "-lpthread"]
    subprocess.run(["cc", "-O1", "-std=gnu11", *bounds, "-o", str(program), *sources, *libraries], check=True)
    with Ends(tmp_path, serve(), program) as ends, contextlib.ExitStack() as stack:
        for name in names:
            ends.serve(name)

        def hold(name: str) -> str:
            connection = stack.enter_context(ends.dialled(ends.pki.node("client")))
            connection.sendall(f"kerf/1 slice {name} {SECRET}\n".encode())
            return connection.recv(256).decode().strip()

        refused = "no, this slice has too many connections"
        assert [hold("one") for _ in range(5)] == ["ok"] * 4 + [refused]
        assert [hold("two") for _ in range(4)] == ["ok"] * 3 + [refused]
        assert [hold("three") for _ in range(3)] == ["ok"] * 2 + [refused]
        assert ends.ask(ends.pki.node("client"), "kerf/1 probe 65\n") == "no, too much"
        stack.close()
        for _ in range(3):
            until(lambda: hold("three") == "ok")
        ends.serves.kill()
        assert "one: refused: it has as many connections as it may" in ends.serves.communicate()[1]


def test_a_node_that_is_silent_is_asked_after_10_s_whether_it_is_there(ends: Ends) -> None:
    with ends.dialled(ends.pki.node("client")) as known:
        known.sendall(b"kerf/1 probe 1\n")
        assert known.recv(16) == b"ok\n"
        place = f"0100007F:{ends.port:04X}"
        established, keepalive, ticks = "01", "02", os.sysconf("SC_CLK_TCK")

        def is_due() -> bool:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            timers = [row[5].split(":") for row in rows if (row[1], row[3]) == (place, established)]
            return any(kind == keepalive and int(when, 16) <= 10 * ticks for kind, when in timers)

        until(is_due)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _is_served(ends: Ends) -> bool:
    try:
        return ends.ask(ends.pki.node("client"), "kerf/1 slice\n") == "no, this is malformed"
    except (ConnectionResetError, ssl.SSLError):
        return False


def test_a_probe_measures_the_network(ends: Ends) -> None:
    certificate, key = ends.pki.node("client")
    command = [
        ends.program, "probe", f"127.0.0.1:{ends.port}", "gpu", "20", "4", certificate, key, ends.pki.authority,
    ]  # fmt: skip
    out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, timeout=60)
    measured = json.loads(out.stdout)
    assert 0 < measured["rtt_us_min"] <= measured["rtt_us"]
    assert measured["mib_s"] > 0


def test_nobody_listens_at_a_port_that_is_not_served(ends: Ends) -> None:
    path = ends.connect("client", address=f"127.0.0.1:{free_port()}")
    program = ends.server.client("info", through=path)
    program.communicate(timeout=30)
    assert program.returncode != 0
    assert "Connection refused" in ends.said(path)


def test_a_proxy_that_is_told_to_end_carries_on_what_it_has_and_takes_nothing_new(ends: Ends) -> None:
    """So an upgrade of the image replaces it, and no program notices."""
    holds = ends.server.client("hold", "8", through=ends.connect("client"))
    assert holds.stdout is not None
    assert holds.stdout.readline() == "1\n"
    assert ends.leave() == "leaving\n"
    with pytest.raises(ConnectionRefusedError):
        ends.ask(ends.pki.node("client"), "")
    assert ends.serves.poll() is None
    out, err = holds.communicate("\n", timeout=30)
    assert (holds.returncode, err) == (0, ""), out
    assert ends.serves.wait(timeout=30) == 0
