"""Enforced slices, from the grant to the control block: a whole agent with real gRPC and NATS, fake NVML and fake
driver."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.canary.proofs import LIBRARY
from services.node_agent.strategies import layout
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceEnforced
from shared.contracts.node_commands import NodeRelease
from shared.contracts.samples import SliceUse
from tests.support.enforcement import (
    GPU,
    NVML,
    become,
    control_block,
    count,
    mounts,
    orders,
    preloads,
    prove,
    started,
)
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, uid
from tests.support.waiting import eventually


async def test_a_container_gets_the_library_and_a_control_block_whose_limits_it_cannot_write(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    heard: list[SliceEnforced] = []

    async def ear(incoming: Incoming) -> None:
        event = unwrap(incoming.payload)[1]
        assert isinstance(event, SliceEnforced)
        heard.append(event)

    await bus.subscribe(subjects.event_in_namespace("slice", "enforced", "team"), ear)
    async with agent(nats, host, **settings):
        found = mounts(host, await started(bus, kubelet, "a"))
        assert set(found) == {
            f"/run/kerf/{name}" for name in ("libkerf.so", "orders", "counters", "signal", "peers")
        } | {"/etc/ld.so.preload"}
        assert [path for path, mount in sorted(found.items()) if "ro" not in mount["options"]] == [
            "/run/kerf/counters",
            "/run/kerf/signal",
        ]
        assert preloads(found) == "/run/kerf/libkerf.so\n"
        sent = orders(host, "a")
        assert (sent.gpu_count, sent.gpu[0].memory_limit_bytes, sent.gpu[0].compute_milli) == (
            1,
            64 << 20,
            300,
        )
        await eventually(lambda: heard)
        assert (heard[0].strategy, heard[0].promise, heard[0].gpus) == ("interposer", "firm", {GPU: (64, 300)})


async def test_a_process_in_the_container_gets_its_slice_and_no_byte_more(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    build: Path,
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        environment = os.environ | {
            "KERF_DIRECTORY": str(control_block(host, "a")),
            "LD_PRELOAD": str(build / "test" / LIBRARY),
        }
        command = [str(build / "probe"), str(build / "libcuda.so.1"), "memory", "2048", "128"]
        probe = subprocess.run(command, env=environment, check=True, capture_output=True)  # noqa: ASYNC221
        lines = [json.loads(line) for line in probe.stdout.splitlines()]
        assert lines[0]["shown_total"] == 64 << 20
        assert {line["bytes"] for line in lines[1:]} == {64 << 20}


async def test_slices_of_one_gpu_become_peers_while_they_run(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "low", compute_milli=0, strategy="time_slice")
        assert (orders(host, "low").tier, orders(host, "low").peer_count) == (layout.NORMAL, 0)
        await started(bus, kubelet, "high", compute_milli=0, strategy="time_slice", priority=100)
        assert (orders(host, "low").tier, orders(host, "low").peer_count, orders(host, "high").tier) == (
            layout.LOW,
            1,
            layout.NORMAL,
        )


async def test_the_control_block_is_removed_with_its_container(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    (host / "cgroup" / "kubepods").mkdir(parents=True)
    (host / "cgroup" / "cgroup.procs").touch()
    cgroup = host / "cgroup" / "kubepods" / f"pod{uid('a')}"
    cgroup.mkdir()
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        await bus.request(
            subjects.node_command("n1", "release"), encode(NodeRelease(term=1, uid=uid("a"), grant_id="g-a"))
        )
        assert control_block(host, "a").exists()
        kubelet.forget(kubelet.pods[uid("a")])
        cgroup.rmdir()
        await eventually(lambda: not control_block(host, "a").exists())


async def test_a_restarted_agent_keeps_the_control_blocks_of_running_containers(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        before = (control_block(host, "a") / "orders").stat().st_ino, orders(host, "a").heartbeat_ns
    async with agent(nats, host, **settings):
        await eventually(lambda: orders(host, "a").heartbeat_ns > before[1])
        assert (control_block(host, "a") / "orders").stat().st_ino == before[0]
        assert orders(host, "a").gpu[0].memory_limit_bytes == 64 << 20


@pytest.mark.parametrize(("said", "charged_mib"), [({}, 311), ({"context_mib": 0}, 0), ({"context_mib": 20}, 20)])
async def test_a_context_is_charged_what_the_canary_measured_or_the_operator_sets(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    said: dict[str, Any],
    charged_mib: int,
) -> None:
    prove(host, build, context_bytes=311 << 20, pool_chunk_bytes=32 << 20)
    async with agent(nats, host, **settings, **said):
        await started(bus, kubelet, "a")
        assert (orders(host, "a").gpu[0].context_bytes, orders(host, "a").pool_chunk_bytes) == (
            charged_mib << 20,
            32 << 20,
        )


async def test_limits_and_use_are_published_together(
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
        count(host, "a", 40)
        become(host, f"{NVML}process 0 4711 40\n")
        await eventually(lambda: any(use.counted_mib == 40 for use in uses))
        use = next(use for use in uses if use.counted_mib == 40)
        assert (use.strategy, use.memory_mib, use.granted_memory_mib, use.hidden_mib) == ("interposer", 40, 64, 0)
        shown = ctx.metrics.render().decode()
        labels = f'{{container="main",gpu="{GPU}",namespace="team",pod="a",strategy="interposer"}}'
        for series in (
            f"slice_limit_mib{labels} 64.0",
            f"slice_counted_mib{labels} 40.0",
            f"slice_limit_milli{labels} 300.0",
            f"slice_refused_total{labels} 0.0",
        ):
            assert f"kerf_agent_{series}" in shown
