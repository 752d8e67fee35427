"""Memory that the driver holds for the pod's cgroup: real cgroups of version 2, the fake NVML and the fake driver."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension
from tests.contract.enforcement.hoarders import hoarder, seen
from tests.support.enforcement import GPU, become, offered, prove, started
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.pod_cgroups import PodTree, pod_tree
from tests.support.waiting import eventually

LIMIT = f'kerf_agent_pod_driver_limit_bytes{{gpu="{GPU}",namespace="team",pod="a"}}'


@pytest.fixture
def tree() -> Iterator[PodTree]:
    with pod_tree("v2") as made:
        yield made


@pytest.fixture
def limits(host: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver has limits for cgroups. They do not bound managed memory."""
    monkeypatch.setenv("KERF_FAKE_LIMITS", str(host / "limits"))
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    return host / "limits"


@pytest.fixture
def held(settings: dict[str, Any], tree: PodTree, limits: Path) -> dict[str, Any]:
    return settings | {"cgroup_dir": str(tree.root), "police_s": 0.1, "police_slack_mib": 16}


def line(tree: PodTree, mib: int) -> str:
    return f"{GPU} 0 {mib << 20} {tree.root}/kubepods/pod{uid('a')}\n"


def said(limits: Path) -> str:
    """What the driver was told."""
    return limits.read_text() if limits.exists() else ""


def become_unlimited(limits: Path) -> None:
    limits.unlink()


def become_shrunk(limits: Path, tree: PodTree) -> None:
    limits.write_text(line(tree, 32))


async def test_a_program_without_the_library_is_refused_beyond_the_grant_and_lives(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
) -> None:
    """Two processes of the pod have 64 MiB together."""
    prove(host, build, driver_limit="holds")
    with hoarder(tree, "a", held["libcuda"]) as one, hoarder(tree, "a", held["libcuda"]) as other:
        async with agent(nats, host, **held) as ctx:
            await started(bus, kubelet, "a", strategy="driver", compute_milli=0)
            assert said(limits) == line(tree, 64)
            assert f"{LIMIT} 6.7108864e+07" in ctx.metrics.render().decode()
            assert [one.take() for _ in range(7)] == [16, 24, 32, 40, 48, 56, 56]
            assert other.take() == 8
            assert (one.process.poll(), other.process.poll()) == (None, None)


@pytest.mark.parametrize(
    ("state", "by_driver", "why"),
    [
        ("holds", True, ""),
        ("managed-passes", False, "managed memory passes the driver's limit: cuMemAllocManaged gave 2 of 1"),
        ("fails", False, "cuMemAllocManaged gave 2 of 1"),
        ("none", False, ""),
    ],
)
async def test_hard_is_offered_where_the_canary_has_proven_it_for_all_memory(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    state: Any,
    by_driver: bool,
    why: str,
) -> None:
    prove(host, build, driver_limit=state, driver_limit_sentence=why and "cuMemAllocManaged gave 2 of 1")
    async with agent(nats, host, **settings | {"libcuda": "/nowhere/libcuda.so.1"}) as ctx:
        found = await eventually(lambda: offered(bus))
        assert ("driver" in found, "policed" in found) == (by_driver, True)
        detail = ctx.health.report()["parts"]["enforcement"].get("detail", "")
        assert detail == (f"driver is not offered: {why}" if why else "")


async def test_a_container_does_not_start_if_the_driver_does_not_keep_its_limit(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prove(host, build, driver_limit="holds")
    monkeypatch.setenv("KERF_FAKE_LIMITS_DEAF", "1")
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            with pytest.raises(grpc.aio.AioRpcError, match="driver-limit-not-set") as refused:
                await started(bus, kubelet, "a", strategy="driver", compute_milli=0)
            assert f"was told a limit of {64 << 20} bytes" in str(refused.value)
            monkeypatch.delenv("KERF_FAKE_LIMITS_DEAF")
            await kubelet.start_container(kubelet.pods[uid("a")])
            assert said(limits) == line(tree, 64)


async def test_a_container_whose_pod_has_no_cgroup_of_version_2_does_not_start(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, held: dict[str, Any], build: Path
) -> None:
    prove(host, build, driver_limit="holds")
    async with agent(nats, host, **held):
        with pytest.raises(grpc.aio.AioRpcError, match="no cgroup of version 2"):
            await started(bus, kubelet, "a", strategy="driver", compute_milli=0)


async def test_a_driver_that_has_lost_its_limits_lets_no_container_start_that_needs_them(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prove(host, build, driver_limit="holds")
    monkeypatch.delenv("KERF_FAKE_LIMITS")
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            with pytest.raises(grpc.aio.AioRpcError, match=r"NVML: Not Supported \(driver-limit-not-set\)"):
                await started(bus, kubelet, "a", strategy="driver", compute_milli=0)


async def test_a_policed_pod_is_refused_plain_memory_at_once_and_ended_for_managed_memory(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
) -> None:
    prove(host, build, driver_limit="managed-passes")
    with hoarder(tree, "a", held["libcuda"]) as one:
        async with agent(nats, host, **held):
            await started(bus, kubelet, "a", strategy="policed")
            while one.take() < 64:
                pass
            assert one.take() == 64
            become(host, seen(one))
            while one.mib < 96:
                one.take("managed")
            become(host, seen(one))
            await eventually(lambda: one.process.poll() == -signal.SIGKILL)


@pytest.mark.parametrize("state", ["none", "fails"])
async def test_a_policed_pod_is_policed_alone_where_the_drivers_limit_is_not_proven(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
    state: Any,
) -> None:
    prove(host, build, driver_limit=state)
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            await started(bus, kubelet, "a", strategy="policed")
            assert said(limits) == ""


async def test_a_firm_pod_has_no_limit_of_the_driver(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
) -> None:
    prove(host, build, driver_limit="holds")
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            await started(bus, kubelet, "a")
            assert said(limits) == ""


async def test_the_limit_of_a_shrunk_pod_is_lower_until_it_gets_its_memory_back(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
) -> None:
    prove(host, build, driver_limit="managed-passes")

    async def order(number: int, suspension: Suspension | None) -> None:
        share = GpuShare(node="n1", uuid=GPU, memory_mib=64, compute_milli=300)
        grant = Grant(grant_id="g-a", term=1, containers={"main": ContainerGrant(strategy="policed", gpus=(share,))})
        sent = NodeGrant(
            term=1, number=number, uid=uid("a"), namespace="team", name="a", grant=grant, suspension=suspension
        )
        assert decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent)), Accepted).ok

    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            await started(bus, kubelet, "a", strategy="policed")
            await order(2, Suspension(action="shrink", plan_id="p", memory_mib=32))
            assert said(limits) == line(tree, 32)
            await order(3, None)
            assert said(limits) == line(tree, 64)


async def test_an_agent_that_starts_sets_the_limits_of_running_pods(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
) -> None:
    """They were lost, for example because the driver was loaded again."""
    prove(host, build, driver_limit="holds")
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            await started(bus, kubelet, "a", strategy="driver", compute_milli=0)
        become_unlimited(limits)
        async with agent(nats, host, **held):
            await eventually(lambda: said(limits) == line(tree, 64))


@pytest.mark.skipif(os.geteuid() != 0, reason="the canary mounts its control block where a container has it")
async def test_policed_pods_that_run_get_the_limit_when_the_canary_has_proven_it(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
    place: None,
) -> None:
    """The library of a new agent must be proven first. A pod that got its memory back meanwhile would keep the limit of
    a smaller slice."""
    prove(host, build, driver_limit="managed-passes")
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            await started(bus, kubelet, "a", strategy="policed")
        become_shrunk(limits, tree)
        prove(host, build, driver_limit="managed-passes", library="another")
        async with agent(nats, host, **held):
            await eventually(lambda: said(limits) == line(tree, 64), within_s=30)


async def test_the_limit_is_the_sum_of_the_containers_that_have_started(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    held: dict[str, Any],
    build: Path,
    tree: PodTree,
    limits: Path,
) -> None:
    prove(host, build, driver_limit="holds")
    containers = {
        name: ContainerGrant(strategy="driver", gpus=(GpuShare(node="n1", uuid=GPU, memory_mib=mib, compute_milli=0),))
        for name, mib in (("main", 64), ("side", 32))
    }
    sent = NodeGrant(
        term=1, uid=uid("a"), namespace="team", name="a", grant=Grant(grant_id="g-a", term=1, containers=containers)
    )
    with hoarder(tree, "a", held["libcuda"]):
        async with agent(nats, host, **held):
            await kubelet.sees_slots()
            assert decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent)), Accepted).ok
            one = pod("a", containers=("main", "side"))
            await kubelet.admit(one)
            await kubelet.start_container(one, "main")
            assert said(limits) == line(tree, 64)
            await kubelet.start_container(one, "side")
            assert said(limits) == line(tree, 96)
