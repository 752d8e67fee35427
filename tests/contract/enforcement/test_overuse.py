"""GPU time beyond a slice's share: NVML compared with the grant, and the policies."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.canary.proofs import LIBRARY
from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts.samples import SliceUse
from tests.support.enforcement import (
    GPU,
    as_seen,
    become,
    control_block,
    locked,
    orders,
    started,
)
from tests.support.evictions import evictions
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, uid
from tests.support.native import built
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def forge() -> Path:
    """A program that overwrites the GPU time in its counters."""
    return built("programs") / "forge"


def forged(host: Path, build: Path, program: Path, processes: int) -> list[int]:
    """Runs several at once in container a, on the fake driver. Returns the percentage of GPU time that each got."""
    environment = os.environ | {
        "KERF_DIRECTORY": str(control_block(host, "a")),
        "LD_PRELOAD": str(build / "test" / LIBRARY),
        "KERF_TEST_DRIVER": str(build / "libcuda.so.1"),
        "LD_LIBRARY_PATH": str(build),
        "KERF_FAKE_CUDA": str(host / "forged"),
        "KERF_FAKE_CUDA_CLIENTS": str(processes),
    }
    running = [
        subprocess.Popen(
            [str(program), "all", "500000", "4"],
            env=environment | {"KERF_FAKE_CUDA_CLIENT": str(place)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in range(processes)
    ]
    return [sum(map(int, process.communicate(timeout=60)[0].split())) // 40_000_000 for process in running]


@pytest.fixture
def owned_by_a(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {4711 + place: Owner(uid("a"), "f" * 64) for place in range(4)}
    monkeypatch.setattr(monitor, "NvmlDevices", functools.partial(NvmlDevices, owner=mine.get))


BY_TIME = {"escape_slack_mib": 4000, "escape_window_s": 0.3}


async def test_processes_that_forge_together_are_reported_as_overuse(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned_by_a: None,
    uses: list[SliceUse],
    build: Path,
    forge: Path,
) -> None:
    """One process that forges gets the share. Four of them get it four times: the counters hide it, NVML reports it."""
    async with agent(nats, host, **settings | BY_TIME) as ctx:
        await started(bus, kubelet, "a", compute_milli=100)
        alone = forged(host, build, forge, 1)
        become(host, as_seen(alone))
        await eventually(lambda: any(use.sm_milli == 10 * alone[0] for use in uses))
        together = forged(host, build, forge, 4)
        assert 8 <= alone[0] <= 12
        assert sum(together) > 30
        become(host, as_seen(together))
        await eventually(lambda: any(use.over_milli for use in uses))
        use = next(use for use in reversed(uses) if use.over_milli)
        assert use.over_milli > 100
        series = f'kerf_agent_slice_compute_excess_ratio{{gpu="{GPU}",namespace="team",pod="a"}}'
        assert series in ctx.metrics.render().decode()
        await eventually(lambda: orders(host, "a").gpu[0].private_milli == 25)
        assert sum(forged(host, build, forge, 4)) <= 18, "each of the four has a quarter of the share from now on"
        become(host, as_seen(alone))
        await eventually(lambda: uses[-1].over_milli == 0)


async def test_use_within_the_share_is_no_overuse(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned_by_a: None,
    uses: list[SliceUse],
) -> None:
    async with agent(nats, host, **settings | BY_TIME):
        await started(bus, kubelet, "a", compute_milli=300)
        become(host, as_seen([20, 18]))
        await eventually(lambda: sum(use.sm_milli == 380 for use in uses) > 20)
        assert {use.over_milli for use in uses} == {0}


async def test_with_policy_evict_a_pod_with_overuse_is_evicted(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned_by_a: None,
) -> None:
    asked = await evictions(bus)
    async with agent(nats, host, **settings | BY_TIME, escapes="evict"):
        await started(bus, kubelet, "a", compute_milli=300)
        become(host, as_seen([50, 40]))
        await eventually(lambda: asked)
    assert (asked[0].name, len(asked)) == ("a", 1)
    # The mean over the window, which on a loaded machine may have begun before the use did.
    found = re.search(r"used ([\d.]+) % of GPU \S+ over 0.3 s according to NVML; 30 % are granted", asked[0].reason)
    assert found is not None, asked[0].reason
    assert 30 < float(found[1]) <= 90


async def test_with_policy_lock_overuse_is_locked_for_the_rest_of_every_cycle(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    build: Path,
    victim: int,
) -> None:
    """Also alone on the GPU. The quota stays, although NVML now reports no more than the share."""
    async with agent(nats, host, **settings | BY_TIME, escapes="lock"):
        await started(bus, kubelet, "a", compute_milli=100)
        become(host, as_seen([90], first=victim))
        await eventually(lambda: locked(build, victim), every_s=0.05)
        become(host, as_seen([10], first=victim))
        await eventually(lambda: not locked(build, victim), every_s=0.01)
        await eventually(lambda: locked(build, victim), every_s=0.05)
    assert not locked(build, victim)
