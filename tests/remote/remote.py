"""A GPU of another node without the network: a server in a slice of the fake driver, and programs that use it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.interposer.node import Container, Node, until

MASK = (1 << 64) - 1
MIX = 6364136223846793005
"""The fake driver's kernel `mix`: the word becomes MIX * word + its last parameter."""
WITHIN_S = 60


def mixed(word: int, *added: int) -> int:
    for one in added:
        word = (MIX * word + one) & MASK
    return word


class Server:
    """The server of one slice, under the interposer with the slice's rules."""

    def __init__(self, node: Node, container: Container, socket_path: Path) -> None:
        self._node, self.container, self.socket = node, container, socket_path
        self._started: list[subprocess.Popen[str]] = []
        enforcement = node.built / "enforcement"
        inside = {
            "LD_PRELOAD": str(enforcement / "test/libkerf.so"),
            "KERF_DIRECTORY": str(container.control_block.folder),
        }
        self.process = self._start([str(enforcement / "remote/server"), str(socket_path), str(node.driver)], inside)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "serving\n", "the server did not start"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def client(self, *command: str, through: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """Starts `programs/remote` against this server. `through`: the socket to use instead of the server's."""
        remote = self._node.built / "enforcement" / "remote"
        environment = {
            "LD_LIBRARY_PATH": str(remote),
            "KERF_REMOTE_SOCKET": str(through or self.socket),
            "KERF_TEST_DRIVER": str(remote / "libcuda.so.1"),
        }
        return self._start([str(self._node.built / "programs" / "remote"), *command], environment | variables)

    def run(self, *command: str, through: Path | None = None, **variables: str) -> list[int]:
        """Returns the numbers that the program prints."""
        program = self.client(*command, through=through, **variables)
        out, err = program.communicate(timeout=WITHIN_S)
        assert program.returncode == 0, f"{command} ended with {program.returncode}: {err}"
        return [int(word) for word in out.split()]

    def program(self, name: str) -> Path:
        """One of the programs beside the interposer."""
        return self._node.built / "enforcement" / name

    def workers(self) -> list[int]:
        """PIDs of the processes that make calls now."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def _start(self, command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        environment = self._node.environment | {"PATH": os.environ["PATH"]} | variables
        process = subprocess.Popen(
            command, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        return process


class Relay:
    """Passes connections on to a server, counts the bytes of each direction, and can hold answers back."""

    def __init__(self, path: Path, to: Path) -> None:
        self.path, self._to = path, to
        self.sent_bytes = self.answered_bytes = 0
        self._answers = threading.Event()
        self._answers.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._start(self._accept)

    def hold_answers(self) -> None:
        self._answers.clear()

    def let_answers_pass(self) -> None:
        self._answers.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.set()
        for one in (self._listener, *self._open):
            one.close()

    def _start(self, what: Callable[[], None]) -> None:
        threading.Thread(target=what, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._to))
            self._open += [client, server]
            self._start(lambda client=client, server=server: self._pass(client, server, answers=False))
            self._start(lambda client=client, server=server: self._pass(server, client, answers=True))

    def _pass(self, source: socket.socket, to: socket.socket, *, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if answers:
                    self._answers.wait(WITHIN_S)
                    self.answered_bytes += len(data)
                else:
                    self.sent_bytes += len(data)
                to.sendall(data)
        except OSError:
            pass  # one side has closed: so does the other, below
        to.close()
        source.close()


HELLO = struct.Struct("<IIQQII")
WELCOME = struct.Struct("<IIII")
FRAME = struct.Struct("<IHHQ")


def hello(path: Path, *, calls: int, process: int, life: bool = True) -> socket.socket:
    """A connection as the client library makes it, after its first message."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(WITHIN_S)
    made.connect(str(path))
    made.sendall(HELLO.pack(0x4B524D31, calls, process, process, life, 0))
    return made


def welcome(connection: socket.socket) -> tuple[int, bool]:
    """The server's list of calls, as a number, and whether it takes this process."""
    data = connection.recv(WELCOME.size, socket.MSG_WAITALL)
    assert len(data) == WELCOME.size, "the server closed the connection"
    _, calls, ok, available_bytes = WELCOME.unpack(data)
    connection.recv(available_bytes, socket.MSG_WAITALL)
    return calls, ok == 1


__all__ = ["FRAME", "Relay", "Server", "hello", "mixed", "until", "welcome"]
