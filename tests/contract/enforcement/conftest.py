"""An agent with the interposer, a passed canary, and the messages about its slices."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.contracts.samples import SliceUse, UsageSample
from tests.support.enforcement import (
    NVML,
    VICTIM,
    become,
    prove,
)
from tests.support.kubelet_agent import uid
from tests.support.native import built


@pytest.fixture(scope="session")
def build() -> Path:
    """The interposer, its probe and the fake driver."""
    return built("enforcement")


@pytest.fixture
def settings(host: Path, build: Path) -> dict[str, Any]:
    become(host, NVML)
    return {
        "interposer_dir": str(build),
        "libcuda": str(build / "libcuda.so.1"),
        "poll_s": 0.1,
        "usage_s": 0.05,
        "escape_slack_mib": 0,
    }


@pytest.fixture
def proven(host: Path, build: Path) -> None:
    prove(host, build)


@pytest.fixture
def place() -> Any:
    inside = Path("/run/kerf")
    stood = inside.exists()
    yield
    if not stood and inside.exists():
        inside.rmdir()


@pytest.fixture
async def uses(bus: NatsBus) -> list[SliceUse]:
    heard: list[SliceUse] = []

    async def ear(incoming: Incoming) -> None:
        heard.extend(use for gpu in decode(incoming.payload, UsageSample).gpus for use in gpu.slices)

    await bus.subscribe(subjects.USAGE_ALL, ear)
    return heard


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 4711 belongs to the pod. For a real process, /proc would say so."""
    monkeypatch.setattr(
        monitor, "NvmlDevices", functools.partial(NvmlDevices, owner={4711: Owner(uid("a"), "f" * 64)}.get)
    )


@pytest.fixture
def victim(host: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process of the low-priority pod that launches without end and without the interposer."""
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    with subprocess.Popen(
        [sys.executable, str(VICTIM), settings["libcuda"]], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        monkeypatch.setattr(
            monitor, "NvmlDevices", functools.partial(NvmlDevices, owner={process.pid: Owner(uid("a"), "f" * 64)}.get)
        )
        yield process.pid
        process.kill()
