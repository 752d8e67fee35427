"""Pods with the isolation `policed` that exceed their slices: real processes, real cgroups, the fake driver."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.core import Agent
from services.node_agent.processes.freezing import Freezer
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts.samples import SliceUse
from shared.service import Context
from tests.contract.enforcement.hoarders import hoarder, seen
from tests.support.enforcement import GPU, NVML, become, count, orders, started
from tests.support.evictions import evictions
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent
from tests.support.native import built
from tests.support.pod_cgroups import VERSIONS, PodTree, pod_tree
from tests.support.waiting import eventually

OTHER = GPU.replace("1", "2")


@pytest.fixture(params=VERSIONS)
def tree(request: pytest.FixtureRequest) -> Iterator[PodTree]:
    with pod_tree(request.param) as made:
        yield made


@pytest.fixture
def policed(settings: dict[str, Any], tree: PodTree) -> dict[str, Any]:
    return settings | {"cgroup_dir": str(tree.root), "police_s": 0.1, "police_slack_mib": 16}


def done(ctx: Context) -> dict[str, float]:
    """How often each action was taken."""
    lines = [line.split() for line in ctx.metrics.render().decode().splitlines() if "police_actions_total{" in line]
    return {name.split('"')[1]: float(value) for name, value in lines}


async def test_a_pod_that_takes_more_than_its_grant_is_frozen_and_ended_and_its_neighbour_lives(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
) -> None:
    """Neither process loads the library: what counts is the grant of 64 MiB."""
    asked = await evictions(bus)
    with hoarder(tree, "a", policed["libcuda"]) as hostile, hoarder(tree, "b", policed["libcuda"]) as honest:
        async with agent(nats, host, **policed) as ctx:
            await started(bus, kubelet, "a", strategy="policed")
            await started(bus, kubelet, "b", strategy="policed")
            while hostile.mib < 96:
                hostile.take()
            while honest.mib < 64:
                honest.take()
            become(host, seen(hostile, honest))
            await eventually(lambda: hostile.process.poll() == -signal.SIGKILL)
            become(host, seen(honest))
            await eventually(lambda: asked)
            assert {action: done(ctx)[action] for action in ("reported", "frozen")} == {"reported": 2, "frozen": 1}
            assert done(ctx)["ended"] >= 1
            await eventually(lambda: not tree.is_frozen("a"))
            assert honest.process.poll() is None
            honest.take()
    assert {eviction.name for eviction in asked} == {"a"}
    assert f"96 MiB on GPU {GPU} according to NVML; 64 MiB are granted, and 16 MiB beyond that" in asked[0].reason
    assert "more GPU memory than its slice for 0." in asked[0].reason
    assert "its processes were ended with SIGKILL; request by kerf.dev/gpu-memory all that" in asked[0].reason


async def test_a_frozen_pod_does_not_grow_and_runs_again_if_the_next_sample_finds_it_within_its_grant(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freeze, states = Freezer.freeze, []

    def then_honest(freezer: Freezer, of: str) -> bool:
        frozen = freeze(freezer, of)
        states.append((tree.is_frozen("a"), process.poll()))
        become(host, NVML + f"process 0 {process.pid} 60\n")
        return frozen

    monkeypatch.setattr(Freezer, "freeze", then_honest)
    with hoarder(tree, "a", policed["libcuda"]) as one:
        process = one.process
        async with agent(nats, host, **policed) as ctx:
            await started(bus, kubelet, "a", strategy="policed")
            become(host, NVML + f"process 0 {one.pid} 96\n")
            await eventually(lambda: done(ctx).get("thawed") == 1)
            assert states == [(True, None)]
            assert not tree.is_frozen("a")
            assert "kerf_agent_pods_frozen 0.0" in ctx.metrics.render().decode()
            one.take()
            assert "ended" not in done(ctx)


async def test_a_program_without_the_library_within_its_grant_is_not_touched_and_cannot_be_joined_by_more(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
    uses: list[SliceUse],
) -> None:
    """Under every policy, for what it hides from the control block is its own. The library's limit is lowered by it."""
    with hoarder(tree, "a", policed["libcuda"]) as honest:
        async with agent(nats, host, **policed, escapes="kill") as ctx:
            await started(bus, kubelet, "a", strategy="policed")
            while honest.mib < 64:
                honest.take()
            become(host, seen(honest))
            await eventually(lambda: orders(host, "a").gpu[0].surcharge_bytes == 64 << 20)
            series = f'kerf_agent_slice_surcharge_bytes{{gpu="{GPU}",namespace="team",pod="a"}}'
            assert f"{series} 6.7108864e+07" in ctx.metrics.render().decode()
            del uses[:]
            await eventually(lambda: len(uses) > 12)
            assert done(ctx) == {}
            assert honest.process.poll() is None


async def test_code_that_the_library_does_not_count_lowers_the_limit_so_that_the_pod_keeps_to_its_grant(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
    uses: list[SliceUse],
) -> None:
    """20 MiB are counted and 50 seen: 34 of the 64 may be allocated, and the pod is never beyond its grant."""
    with hoarder(tree, "a", policed["libcuda"]) as honest:
        async with agent(nats, host, **policed | {"escape_slack_mib": 1024}) as ctx:
            await started(bus, kubelet, "a", strategy="policed")
            count(host, "a", 20)
            become(host, NVML + f"process 0 {honest.pid} 50\n")
            await eventually(lambda: orders(host, "a").gpu[0].surcharge_bytes == 30 << 20)
            count(host, "a", 34)
            become(host, NVML + f"process 0 {honest.pid} 64\n")
            del uses[:]
            await eventually(lambda: len(uses) > 12)
            assert (done(ctx), orders(host, "a").gpu[0].surcharge_bytes) == ({}, 30 << 20)
            assert honest.process.poll() is None


async def test_a_pod_that_an_earlier_agent_left_frozen_is_thawed(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
) -> None:
    """As after an agent that was killed between a freeze and the next sample."""
    with hoarder(tree, "a", policed["libcuda"]) as one:
        async with agent(nats, host, **policed):
            await started(bus, kubelet, "a", strategy="policed")
        tree.freeze("a")
        async with agent(nats, host, **policed):
            await eventually(lambda: not tree.is_frozen("a"))
            one.take()


async def test_an_agent_that_ends_thaws_what_it_has_frozen(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The GPU answers no more when the pod is frozen, so no sample decides."""
    freeze = Freezer.freeze

    def then_silent(freezer: Freezer, of: str) -> bool:
        frozen = freeze(freezer, of)
        become(host, NVML.replace("0 9 0 0 0", "0 9 0 0 15"))
        return frozen

    monkeypatch.setattr(Freezer, "freeze", then_silent)
    with hoarder(tree, "a", policed["libcuda"]) as one:
        async with agent(nats, host, **policed) as ctx:
            await started(bus, kubelet, "a", strategy="policed")
            become(host, NVML + f"process 0 {one.pid} 96\n")
            await eventually(lambda: "kerf_agent_pods_frozen 1.0" in ctx.metrics.render().decode())
            assert tree.is_frozen("a")
        assert not tree.is_frozen("a")
        one.take()


async def test_a_frozen_pod_is_judged_on_a_gpu_whose_last_policed_slice_has_gone(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pod a holds memory on the GPU of pod b, which ends while a is frozen. It would stay frozen for half a minute."""
    both = NVML + f"gpu 1 {OTHER} NVIDIA_H200 4000 00000000:02:00.0 0 9 0 0 0\n"
    become(host, both)
    freeze, live = Freezer.freeze, Agent.live

    def then_alone(freezer: Freezer, of: str) -> bool:
        monkeypatch.setattr(Agent, "live", lambda core: tuple(one for one in live(core) if one.uid == of))
        become(host, both)
        return freeze(freezer, of)

    monkeypatch.setattr(Freezer, "freeze", then_alone)
    with hoarder(tree, "a", policed["libcuda"]) as one:
        async with agent(nats, host, **policed) as ctx:
            await started(bus, kubelet, "a", strategy="policed")
            await started(bus, kubelet, "b", strategy="policed", gpu=OTHER)
            become(host, both + f"process 1 {one.pid} 20\n")
            await eventually(lambda: done(ctx).get("thawed") == 1)
            assert not tree.is_frozen("a")


@pytest.mark.parametrize("way", ["graphics", "another GPU"])
async def test_memory_of_a_graphics_program_and_on_a_gpu_that_was_not_granted_counts(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
    way: str,
) -> None:
    """A policed pod samples its GPUs; here another policed pod has the other GPU."""
    both = NVML + f"gpu 1 {OTHER} NVIDIA_H200 4000 00000000:02:00.0 0 9 0 0 0\n"
    become(host, both)
    with hoarder(tree, "a", policed["libcuda"]) as one:
        async with agent(nats, host, **policed):
            await started(bus, kubelet, "a", strategy="policed")
            await started(bus, kubelet, "b", strategy="policed", gpu=OTHER)
            beyond = f"graphics 0 {one.pid} 96\n" if way == "graphics" else f"process 1 {one.pid} 20\n"
            become(host, both + beyond)
            await eventually(lambda: one.process.poll() == -signal.SIGKILL)


async def test_gpu_time_beyond_the_share_ends_a_policed_pod_under_every_policy(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    policed: dict[str, Any],
    proven: None,
    tree: PodTree,
) -> None:
    asked = await evictions(bus)
    with hoarder(tree, "a", policed["libcuda"]) as one:
        async with agent(nats, host, **policed, escape_window_s=0.3, escapes="report"):
            await started(bus, kubelet, "a", strategy="policed", compute_milli=100)
            become(host, NVML + f"process 0 {one.pid} 8\nsm 0 {one.pid} 90\n")
            await eventually(lambda: one.process.poll() == -signal.SIGKILL)
            await eventually(lambda: asked)
    assert "10 % are granted" in asked[0].reason


def test_the_program_of_these_tests_does_not_load_the_library(tree: PodTree) -> None:
    with hoarder(tree, "a", str(built("enforcement") / "libcuda.so.1")) as one:
        assert "libkerf" not in Path(f"/proc/{one.pid}/maps").read_text()
