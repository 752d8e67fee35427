"""Two nodes as two network namespaces with a slow link: `tc netem` where the kernel has it, else a relay."""

from __future__ import annotations

import json
import os
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
        self._start("client", self._proxy, "connect", path, address, "gpu", SLICE, secret, *self._files("client"))
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
