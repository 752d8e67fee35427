"""Two nodes' ends of a remote GPU: certificates as the operator makes them, and the proxies of both."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from services.operator.certificates import issue, new_authority
from tests.remote.remote import WITHIN_S, Server

SLICE, SECRET = "slice-1", "0123456789abcdef"
DAYS = 30.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Pki:
    """An authority, and certificates of nodes that it has signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._signer = new_authority(time.time(), DAYS, os.urandom)
        self.authority = folder / "authority.pem"
        self.authority.write_text(self._signer.pem.certificate)

    def node(self, name: str) -> tuple[Path, Path]:
        """The certificate and the key of a node."""
        pair = issue(self._signer, (name,), time.time(), DAYS, os.urandom, client=True)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_text(pair.certificate)
        key.write_text(pair.key)
        return certificate, key


class Recorder:
    """A TCP relay that keeps what passes."""

    def __init__(self, port: int) -> None:
        self.data = b""
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, to in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, to), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one side has closed, and then the other does
            while data := source.recv(1 << 16):
                self.data += data
                to.sendall(data)
        to.close()


class Ends:
    def __init__(self, folder: Path, server: Server, program: Path | None = None) -> None:
        """`program`: another proxy than the one that is built."""
        self.server, self._work = server, folder
        self.pki = Pki(folder / "pki")
        self.port = free_port()
        self.folder = folder / "serving"
        self.serve(SLICE)
        self.program = program or server.program("remote/proxy")
        self.proxies: dict[Path, subprocess.Popen[str]] = {}
        self._recorders: list[Recorder] = []
        certificate, key = self.pki.node("gpu")
        self.serves = self._start("serve", f"127.0.0.1:{self.port}", self.folder, certificate, key, self.pki.authority)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.serves, *self.proxies.values()):
            process.kill()
            process.communicate()
        for recorder in self._recorders:
            recorder.close()

    def serve(self, slice_: str) -> None:
        (self.folder / slice_).mkdir(parents=True)
        (self.folder / slice_ / "secret").write_text(SECRET)
        (self.folder / slice_ / "peer").write_text("client")
        (self.folder / slice_ / "socket").symlink_to(self.server.socket)

    def connect(self, node: str, *, peer: str = "gpu", address: str = "") -> Path:
        """Starts the proxy of a container on `node`; returns the socket that its programs use."""
        certificate, key = self.pki.node(node)
        path = Path(tempfile.mkdtemp(dir=self._work)) / "s"
        secret = self._work / "client-secret"
        secret.write_text(SECRET)
        to = address or f"127.0.0.1:{self.port}"
        self.proxies[path] = self._start("connect", path, to, peer, SLICE, secret, certificate, key, self.pki.authority)
        return path

    def leave(self) -> str:
        """Tells the serving proxy to end; returns what it says."""
        self.serves.terminate()
        assert self.serves.stdout is not None
        return self.serves.stdout.readline()

    def said(self, path: Path) -> str:
        """What the proxy of that socket has written about failures; it ends."""
        self.proxies[path].kill()
        return self.proxies[path].communicate()[1]

    def through_a_recorder(self) -> Recorder:
        self._recorders.append(Recorder(self.port))
        return self._recorders[-1]

    @contextlib.contextmanager
    def dialled(self, of_node: tuple[Path, Path] | None) -> Iterator[ssl.SSLSocket]:
        """A TLS connection with the certificate and the key of a node; None: without any."""
        context = ssl.create_default_context(cafile=str(self.pki.authority))
        if of_node is not None:
            context.load_cert_chain(*map(str, of_node))
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname="gpu") as secured,
        ):
            yield secured

    def ask(self, of_node: tuple[Path, Path] | None, line: str) -> str:
        """The answer to the first line of a connection. TLS 1.3 tells a client only then that it is refused."""
        with self.dialled(of_node) as secured:
            secured.sendall(line.encode())
            return secured.recv(256).decode().strip()

    def _start(self, *command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(self.program), *map(str, command)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        return process
