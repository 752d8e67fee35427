"""Memory that bypasses a slice: NVML compared with the control block, and the policies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts.samples import SliceUse
from tests.support.enforcement import (
    GPU,
    NVML,
    at_work,
    become,
    control_block,
    count,
    locked,
    started,
)
from tests.support.evictions import evictions
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent
from tests.support.waiting import eventually


async def test_memory_that_bypasses_the_interposer_is_reported(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
) -> None:
    async with agent(nats, host, **settings) as ctx:
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: any(use.hidden_mib == 50 for use in uses))
        shown, labels = ctx.metrics.render().decode(), f'{{gpu="{GPU}",namespace="team",pod="a"}}'
        assert f"kerf_agent_slice_hidden_bytes{labels} 5.24288e+07" in shown
        assert f"kerf_agent_slice_hidden_mib{labels} 50.0" in shown, "the former name, for one version"


async def test_a_container_that_truncates_its_counters_hides_nothing(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        count(host, "a", 50)
        os.truncate(control_block(host, "a") / "counters", 100)
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: any(use.hidden_mib == 50 for use in uses))


async def test_with_policy_evict_a_pod_that_bypasses_its_slice_is_evicted(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
) -> None:
    asked = await evictions(bus)
    async with agent(nats, host, **settings, escapes="evict"):
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 4711 500\n")
        await eventually(lambda: asked)
    assert (asked[0].name, len(asked)) == ("a", 1)
    assert "holds 500 MiB" in asked[0].reason


async def test_with_policy_lock_an_escaped_process_is_time_sliced_and_unlocked_when_the_agent_ends(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    build: Path,
    victim: int,
) -> None:
    async with agent(nats, host, **settings, escapes="lock"):
        await started(bus, kubelet, "a", compute_milli=0, strategy="time_slice")
        await started(bus, kubelet, "b", compute_milli=0, strategy="time_slice", priority=100)
        at_work(host, "b")
        become(host, f"{NVML}process 0 {victim} 50\n")
        await eventually(lambda: locked(build, victim), every_s=0.1)
    assert not locked(build, victim)
