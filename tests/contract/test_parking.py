"""Pods that give up for others on a whole agent: what their pages say when placement hears yes, over real NATS and gRPC."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from services.node_agent.strategies import layout
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Accepted, NodeGrant, NodeSync, NodeSyncAnswer
from shared.model.gpu import Strategy
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.parked import Parked
from tests.contract.test_enforcement import GPU, NVML, become, build, orders, page, prove, settings  # noqa: F401 - fixtures
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.waiting import eventually

PAUSE = Parked(action="pause", plan_id="p")
THROTTLE = Parked(action="throttle", plan_id="p", compute_milli=100)


@pytest.fixture(autouse=True)
def proven(host: Path, build: Path) -> None:  # noqa: F811
    prove(host, build)


def grant(
    name: str, parked: Parked | None = None, *, term: int = 1, compute_milli: int = 600, strategy: Strategy = "interposer"
) -> NodeGrant:
    share = GpuShare(node="n1", uuid=GPU, memory_mib=64, compute_milli=compute_milli)
    made = Grant(grant_id=f"g-{name}", term=1, containers={"main": ContainerGrant(strategy=strategy, gpus=(share,))})
    return NodeGrant(term=term, uid=uid(name), namespace="team", name=name, grant=made, parked=parked)


async def say(bus: NatsBus, sent: NodeGrant) -> Accepted:
    return decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent)), Accepted)


async def started(bus: NatsBus, kubelet: FakeKubelet, sent: NodeGrant) -> None:
    await kubelet.sees_slots()
    assert (await say(bus, sent)).ok
    one = pod(sent.name)
    await kubelet.admit(one)
    await kubelet.start_container(one)


async def test_a_paused_pod_has_given_up_when_placement_hears_so_and_who_comes_for_it_starts(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],  # noqa: F811
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        with pytest.raises(grpc.aio.AioRpcError, match="gpu-compute-full"):
            await started(bus, kubelet, grant("high", compute_milli=1000))
        assert (await say(bus, grant("low", PAUSE))).parked == PAUSE
        assert orders(host, "low").paused == 1
        await kubelet.start_container(kubelet.pods[uid("high")])
        assert (orders(host, "low").tier, orders(host, "high").tier, orders(host, "high").gpu[0].window_ns) == (
            layout.LOW,
            layout.NORMAL,
            0,
        )
        refused = await say(bus, grant("low"))
        assert (refused.ok, refused.parked, orders(host, "low").paused) == (False, PAUSE, 1)


async def test_a_throttled_pod_keeps_a_window_and_gets_all_of_it_back(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],  # noqa: F811
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        assert (await say(bus, grant("low", THROTTLE))).parked == THROTTLE
        assert (orders(host, "low").gpu[0].compute_milli, orders(host, "low").paused) == (100, 0)
        answer = await say(bus, grant("low"))
        assert (answer.ok, answer.parked, answer.reason) == (True, None, "")
        assert orders(host, "low").gpu[0].compute_milli == 600


async def test_a_restarted_agent_parks_what_was_parked_and_tells_a_new_leader_so(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],  # noqa: F811
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        await say(bus, grant("low", PAUSE))
        before = orders(host, "low").heartbeat_ns
    pretend_resumed(host, "low")
    async with agent(nats, host, **settings):
        await eventually(lambda: orders(host, "low").heartbeat_ns > before)
        assert orders(host, "low").paused == 1
        sync = NodeSync(term=2, node="n1", grants=(grant("low", PAUSE, term=2),))
        answer = decode(await bus.request(subjects.node_command("n1", "sync"), encode(sync)), NodeSyncAnswer)
        assert (answer.accepted, answer.parked) == (True, {"g-low": PAUSE})


def pretend_resumed(host: Path, name: str) -> None:
    """So that what stands in the page afterwards was written by the agent that came back."""
    with (page(host, name) / "orders").open("r+b") as file:
        file.seek(layout.Orders.paused.offset)
        file.write(bytes(4))


async def test_a_container_of_a_parked_pod_starts_parked(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],  # noqa: F811
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", PAUSE))
        assert orders(host, "low").paused == 1


async def test_a_slice_whose_page_cannot_be_written_gives_up_nothing_and_placement_hears_why(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],  # noqa: F811
) -> None:
    """The links to those whom it now gives way to have no place to stand."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=300))
        await started(bus, kubelet, grant("other", compute_milli=300))
        for path in (page(host, "low") / "peers").iterdir():
            path.unlink()
        (page(host, "low") / "peers").rmdir()
        os.close(os.open(page(host, "low") / "peers", os.O_CREAT))
        answer = await say(bus, grant("low", PAUSE, compute_milli=300))
        assert (answer.ok, answer.parked) == (True, None)
        assert "peers" in answer.reason
        assert orders(host, "low").paused == 0


async def test_another_strategy_cannot_and_says_so(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],  # noqa: F811
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", strategy="advisory"))
        answer = await say(bus, grant("low", PAUSE, strategy="advisory"))
        assert (answer.ok, answer.parked, answer.reason) == (True, None, "slices by advisory cannot pause while they run")
        assert msgspec.structs.replace(answer, reason="") == await say(bus, grant("low", strategy="advisory"))
