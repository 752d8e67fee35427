"""Two nodes as two network namespaces with a slow link: `tc netem` where the kernel has it, else a relay."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote.nodes import SECRET, SLICE, Pki
from tests.remote.remote import Server, mixed

CLIENT, GPU = "10.231.77.1", "10.231.77.2"
PORT, RELAYED = 14834, 14835
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.xdist_group("network-namespaces"),
]


class Nodes:
    """Node `client` and node `gpu`, joined by a veth pair; `gpu` serves one slice."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server, self._folder = server, folder
        self._pki = Pki(folder / "pki")
        self._started: list[subprocess.Popen[str]] = []
        self._names = {"client": f"kerf-c-{os.getpid()}", "gpu": f"kerf-g-{os.getpid()}"}
        self._of = {name: self._pki.node(name) for name in ("client", "gpu")}
        self.client_proxy = self._proxy

    def make(self) -> None:
        client, gpu = self._names["client"], self._names["gpu"]
        for line in (
            f"netns add {client}", f"netns add {gpu}",
            f"-n {client} link add name e0 type veth peer name e0 netns {gpu}",
            f"-n {client} addr add {CLIENT}/24 dev e0", f"-n {gpu} addr add {GPU}/24 dev e0",
            *(f"-n {name} link set {device} up" for name in (client, gpu) for device in ("e0", "lo")),
        ):  # fmt: skip
            subprocess.run(["ip", *line.split()], check=True, capture_output=True)
        slice_ = self._folder / "serving" / SLICE
        slice_.mkdir(parents=True)
        (slice_ / "secret").write_text(SECRET)
        (slice_ / "peer").write_text("client")
        (slice_ / "socket").symlink_to(self.server.socket)
        self._start("gpu", self._proxy, "serve", f"{GPU}:{PORT}", self._folder / "serving", *self._files("gpu"))

    def remove(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    @contextlib.contextmanager
    def slow_server(self) -> Iterator[socket.socket]:
        """What listens in place of the slice's server."""
        path = self._folder / "slow"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(30.0)
            served = self._folder / "serving" / SLICE / "socket"
            served.unlink()
            served.symlink_to(path)
            yield listener

    def cut(self) -> None:
        """Nothing goes from node to node any more, and neither is told."""
        command = ["tc", "-n", self._names["gpu"], "qdisc", "replace", "dev", "e0", "root", "netem", "loss", "100%"]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            down = ["ip", "-n", self._names["gpu"], "link", "set", "e0", "down"]
            subprocess.run(down, check=True, capture_output=True)

    def slow_down(self, rtt_ms: float) -> str:
        """Gives the link this round trip. Returns the address of node `gpu` as the client has to use it."""
        netem = [
            "tc",
            "-n",
            self._names["gpu"],
            "qdisc",
            "replace",
            "dev",
            "e0",
            "root",
            "netem",
            "delay",
            f"{rtt_ms}ms",
        ]
        if subprocess.run(netem, check=False, capture_output=True).returncode == 0:
            return f"{GPU}:{PORT}"
        self._start(
            "gpu", sys.executable, "-m", "tests.remote.delay_relay", f"{GPU}:{RELAYED}", f"{GPU}:{PORT}", rtt_ms / 2
        )
        return f"{GPU}:{RELAYED}"

    def probe(self, address: str) -> dict[str, float]:
        command = [self._proxy, "probe", address, "gpu", 21, 1, *self._files("client")]
        out = subprocess.run(
            ["ip", "netns", "exec", self._names["client"], *map(str, command)],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        found: dict[str, float] = json.loads(out.stdout)
        return found

    def connect(self, address: str) -> Path:
        path, secret = self._folder / "s", self._folder / "secret"
        secret.write_text(SECRET)
        self._start("client", self.client_proxy, "connect", path, address, "gpu", SLICE, secret, *self._files("client"))
        return path

    @property
    def _proxy(self) -> Path:
        return self.server.program("remote/proxy")

    def _files(self, node: str) -> tuple[Path, Path, Path]:
        return *self._of[node], self._pki.authority

    def _start(self, node: str, *command: object) -> None:
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._names[node], *map(str, command)],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]


@pytest.fixture
def nodes(tmp_path: Path, serve: Callable[..., Server]) -> Iterator[Nodes]:
    made = Nodes(tmp_path, serve(limit=64 << 20))
    try:
        made.make()
        yield made
    finally:
        made.remove()


@pytest.fixture
def impatient(nodes: Nodes, tmp_path: Path) -> Nodes:
    """With a server that reads only what a test wants, and a proxy for the client that waits for half a second."""
    made = tmp_path / "proxy"
    times = ["-DLOOK_MS=100", "-DGONE_MS=500", "-DMUTE_MS=1500"]
    sources = [str(ROOT / "native" / "remote" / name) for name in ("proxy.c", "log.c")]
    subprocess.run(
        ["cc", "-O1", "-std=gnu11", *times, "-o", str(made), *sources, "-lssl", "-lcrypto", "-lpthread"], check=True
    )
    nodes.client_proxy = made
    return nodes


def filled(program: socket.socket) -> int:
    """How many bytes were sent until nothing more is taken for a while."""
    program.settimeout(1.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while True:
            sent += program.send(bytes(1 << 16))
    return sent


def test_a_server_that_reads_nothing_for_long_is_waited_for(impatient: Nodes) -> None:
    """A kernel runs for minutes, and the program goes on to send: its node answers that there is no room."""
    with impatient.slow_server() as listener, socket.socket(socket.AF_UNIX) as program:
        program.connect(str(impatient.connect(f"{GPU}:{PORT}")))
        server, _ = listener.accept()
        sent = filled(program)
        assert sent > 1 << 17
        select.select([program], [], [], 3.0)  # as long as six times what a node that is cut off gets
        got = 0
        while got < sent:
            got += len(server.recv(1 << 20))
        server.sendall(b"done")
        program.settimeout(10.0)
        assert program.recv(16) == b"done"


@pytest.mark.parametrize("full", [False, True], ids=["what was sent is not answered", "it had no room"])
def test_a_node_that_is_cut_off_ends_the_connection(impatient: Nodes, full: bool) -> None:
    with impatient.slow_server() as listener, socket.socket(socket.AF_UNIX) as program:
        program.connect(str(impatient.connect(f"{GPU}:{PORT}")))
        server, _ = listener.accept()
        if full:
            filled(program)
        impatient.cut()
        program.settimeout(30.0)
        if not full:
            program.sendall(b"x")
        with contextlib.suppress(ConnectionResetError):  # an end too: what it had sent was not read
            assert program.recv(16) == b""
        server.close()


@pytest.mark.parametrize("rtt_ms", [5, 20])
def test_the_measured_round_trip_is_the_links_within_a_tenth(nodes: Nodes, rtt_ms: int) -> None:
    measured = nodes.probe(nodes.slow_down(rtt_ms))
    assert rtt_ms * 1000 <= measured["rtt_us_min"] <= rtt_ms * 1100, measured


def test_limits_are_exact_over_the_network(nodes: Nodes) -> None:
    path = nodes.connect(nodes.slow_down(1))
    assert nodes.server.run("limit", "2048", through=path) == [32, 2]
    assert nodes.server.run("mix", "100", "2", through=path) == [
        mixed(seed, *(i * seed for i in range(100))) for seed in (1, 2)
    ]
