"""What calls a user's program: whom it reaches, what it looks at, and how much of an answer it repeats."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies import hook_call
from services.node_agent.strategies.lock_worker import started


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A process that SIGUSR1 ends."""
    running = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield running
    running.kill()
    running.communicate()


def called(*words: object) -> str:
    command = [sys.executable, hook_call.__file__, *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_process_that_has_the_pid_of_one_that_has_ended_gets_no_signal(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    said = called("signal", program.pid, started(program.pid) - 1, 0.1, "SIGUSR1", tmp_path / "slept", "there")
    assert said == f"no answer: [Errno 3] process {program.pid} has ended"
    assert program.poll() is None


def test_nor_is_its_network_entered(program: subprocess.Popen[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        assert "has ended" in called("http", program.pid, started(program.pid) - 1, 5, port, "/sleep")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_signal_goes_to_the_process_itself(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    said = called("signal", program.pid, started(program.pid), 0.1, "SIGUSR1", tmp_path / "slept", "there")
    assert (said, program.wait()) == ("late", -10)


def test_a_file_is_looked_for_in_the_containers_root_whatever_its_links_say(tmp_path: Path) -> None:
    inside, outside = tmp_path / "root", tmp_path / "outside"
    (inside / "run").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").touch()
    (inside / "absolute").symlink_to(outside)
    (inside / "relative").symlink_to("../outside")
    (inside / "run" / "dangling").symlink_to("/nowhere")
    os.mkfifo(inside / "run" / "fifo")
    root = os.open(inside, os.O_RDONLY)
    try:
        for path in ("/absolute/secret", "/relative/secret", "/../outside/secret", "/run/../../outside/secret"):
            assert hook_call.is_there(root, path) is False
        assert hook_call.is_there(root, "/run/fifo") is True
        assert hook_call.is_there(root, "/run/dangling") is True
        assert hook_call.is_there(root, "/run/fifo/below") is False
    finally:
        os.close(root)
    proc = os.open("/proc", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="symbolic links"):
            hook_call.is_there(proc, f"/{os.getpid()}/root/etc")
    finally:
        os.close(proc)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:%d/\r\n\r\n", "307"),
        (b"x" * 5000 + b"\r\n\r\n", "no answer: " + "x" * (hook_call.MOST_SAID - 11)),
        (b"\x1b[2J\r\n\r\n", "no answer: \\x1b[2J\\r\\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", "200"),
    ],
    ids=["a redirect", "no HTTP and long", "control characters", "a body without end"],
)
def test_no_answer_makes_it_ask_others_or_repeat_much(
    program: subprocess.Popen[bytes], answer: bytes, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer.replace(b"%d", str(other.getsockname()[1]).encode()))
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

        answering = threading.Thread(target=serve)
        answering.start()
        try:
            port = server.getsockname()[1]
            assert called("http", program.pid, started(program.pid), 10, port, "/sleep") == said
        finally:
            answering.join()
        with pytest.raises(BlockingIOError):
            other.accept()
