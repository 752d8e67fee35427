"""Fixtures of several contract tests."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision
from tests.support.fake_kubelet import FakeKubelet
from tests.unit.services.node_agent.cdi.hosts import FakeHost
from tests.unit.services.node_agent.devices.machine import load

TWO = "driver 580.1\n" + "".join(
    f"gpu {i} GPU-{i} NVIDIA_H200 1000 00000000:0{i + 1}:00.0 0 9 0 0 0\n" for i in range(2)
)


@pytest.fixture(scope="session")
def fake_nvml() -> None:
    load()


@pytest.fixture
def host(fake_nvml: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host with two GPUs and a driver's files. It has its own directory, because pytest's paths are too long for unix
    sockets."""
    with tempfile.TemporaryDirectory(prefix="kerf-") as name:
        path = Path(name)
        (path / "nvml").write_text(TWO)
        (path / "boot_id").write_text("boot-1\n")
        FakeHost(path).module().nodes(*(f"nvidia{minor}" for minor in range(8))).libraries()
        monkeypatch.setenv("KERF_FAKE_NVML_STATE", str(path / "nvml"))
        yield path


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture
async def bus(nats: EmbeddedServer) -> AsyncIterator[NatsBus]:
    async with await NatsBus.connect(nats.url) as made:
        await provision(made)
        yield made


@pytest.fixture
async def kubelet(host: Path) -> AsyncIterator[FakeKubelet]:
    made = FakeKubelet(host / "kubelet")
    await made.start()
    yield made
    await made.stop()
