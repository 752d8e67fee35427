"""The bandwidth between each GPU and its host: measured on idle GPUs by copies on the fake driver, and remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.model.gpu import Inventory
from tests.support.enforcement import GPU, NVML, become, prove, started
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent
from tests.support.waiting import eventually

SECOND = GPU.removesuffix("1") + "2"
TWO = NVML + f"gpu 1 {SECOND} NVIDIA_H200 4000 00000000:02:00.0 1 9 0 0 0\n"


async def figures(bus: NatsBus) -> dict[str, tuple[int, int]]:
    entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
    gpus = () if entry.value is None else decode(entry.value, Inventory).gpus
    return {gpu.uuid: (gpu.to_device_mb_s, gpu.from_device_mb_s) for gpu in gpus}


async def become_figures(bus: NatsBus, wanted: dict[str, tuple[int, int]]) -> None:
    async def they_are() -> bool:
        return await figures(bus) == wanted

    await eventually(they_are, within_s=30, what=f"the figures are {wanted}")


@pytest.fixture
def two(host: Path, settings: dict[str, Any], proven: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    become(host, TWO)
    monkeypatch.setenv("KERF_FAKE_CUDA_DEVICES", "2")
    monkeypatch.setenv("KERF_FAKE_CUDA_HOST_MB_S", "25000:24000,12000:11000")
    return settings


async def test_each_gpus_copies_to_it_and_from_it_are_in_the_inventory(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, two: dict[str, Any]
) -> None:
    async with agent(nats, host, **two):
        await become_figures(bus, {GPU: (25000, 24000), SECOND: (12000, 11000)})


async def test_what_was_measured_is_remembered_until_the_driver_changes(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    two: dict[str, Any],
    build: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent(nats, host, **two):
        await become_figures(bus, {GPU: (25000, 24000), SECOND: (12000, 11000)})
    monkeypatch.setenv("KERF_FAKE_CUDA_HOST_MB_S", "50000:49000,50000:49000")
    async with agent(nats, host, **two):
        await become_figures(bus, {GPU: (25000, 24000), SECOND: (12000, 11000)})
        become(host, TWO.replace("580.1", "590.7"))
        prove(host, build, driver_version="590.7")
    async with agent(nats, host, **two):
        await become_figures(bus, {GPU: (50000, 49000), SECOND: (50000, 49000)})


async def test_a_gpu_with_a_slice_is_not_measured(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, two: dict[str, Any]
) -> None:
    async with agent(nats, host, **(two | {"interposer_dir": str(host / "nothing")})):
        await started(bus, kubelet, "a", memory_mib=64, strategy="advisory")
        assert await figures(bus) == {GPU: (0, 0), SECOND: (0, 0)}, "without the probe nothing is measured"
    async with agent(nats, host, **two):
        await become_figures(bus, {GPU: (0, 0), SECOND: (12000, 11000)})


async def test_a_gpu_that_other_processes_use_is_not_measured(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, two: dict[str, Any]
) -> None:
    become(host, TWO + "process 1 4711 300\n")
    async with agent(nats, host, **two):
        await become_figures(bus, {GPU: (25000, 24000), SECOND: (0, 0)})


async def test_where_nothing_is_enforced_no_program_runs_on_the_gpus(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, two: dict[str, Any]
) -> None:
    async with agent(nats, host, **two, enforce="off"):
        await kubelet.sees_slots()
        assert await figures(bus) == {GPU: (0, 0), SECOND: (0, 0)}
    assert not (host / "state" / "bandwidth.json").exists()
