"""The driver of ResourceClaims in a whole agent, as the kubelet calls it: real gRPC, real NATS, the fake NVML."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.node_agent import grant_wait
from services.node_agent.kubelet_api import dra_pb2 as dra
from services.node_agent.kubelet_api import plugin_registration_pb2 as reg
from services.node_agent.kubelet_api.dra_pb2_grpc import DRAPluginStub
from services.node_agent.kubelet_api.plugin_registration_pb2_grpc import RegistrationStub
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant, NodeRelease
from shared.contracts.queries import GrantAnswer, GrantQuery
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, environment, uid
from tests.support.waiting import eventually


def granted(name: str, *gpus: int) -> NodeGrant:
    """A grant of pod `name`, whose claim has this much of each GPU."""
    shares = tuple(
        GpuShare(node="n1", uuid=f"GPU-{i}", memory_mib=memory, compute_milli=0)
        for i, memory in enumerate(gpus)
        if memory
    )
    part = ContainerGrant(strategy="advisory", gpus=shares, claim=f"claim-of-{name}")
    return NodeGrant(
        term=1,
        uid=uid(name),
        namespace="team",
        name=name,
        grant=Grant(grant_id=f"g-{name}", term=1, containers={"claim/mine/gpu": part}),
    )


async def tell(bus: NatsBus, grant: NodeGrant) -> None:
    assert decode(await bus.request(subjects.node_command("n1", "grant"), encode(grant)), Accepted).ok


@contextlib.asynccontextmanager
async def driver(host: Path) -> AsyncIterator[DRAPluginStub]:
    """Connects as the kubelet does: by the socket in the registration directory."""
    registry = host / "kubelet" / "plugins_registry" / "gpu.kerf.dev-reg.sock"
    await eventually(registry.exists, what="the driver's registration")
    async with grpc.aio.insecure_channel(f"unix:{registry}") as door:
        info = await RegistrationStub(door).GetInfo(reg.InfoRequest(), wait_for_ready=True)  # type: ignore[no-untyped-call]
        assert (info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", "gpu.kerf.dev", ["v1.DRAPlugin"])
        await RegistrationStub(door).NotifyRegistrationStatus(reg.RegistrationStatus(plugin_registered=True))  # type: ignore[no-untyped-call]
    async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as channel:
        yield DRAPluginStub(channel)  # type: ignore[no-untyped-call]


async def prepare(plugin: DRAPluginStub, name: str) -> Any:
    claim = dra.Claim(namespace="team", uid=f"claim-of-{name}", name="mine")
    answer = await plugin.NodePrepareResources(dra.NodePrepareResourcesRequest(claims=[claim]))
    return answer.claims[claim.uid]


async def test_a_claim_gets_the_gpus_of_the_grant_that_names_it(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host, dra=True), driver(host) as plugin:
        await tell(bus, granted("p", 100, 200))
        prepared = await prepare(plugin, "p")
        assert [(d.pool_name, d.device_name, list(d.request_names)) for d in prepared.devices] == [
            ("n1", "gpu-0", ["gpu"]),
            ("n1", "gpu-1", ["gpu"]),
        ]
        (cdi,) = [name for device in prepared.devices for name in device.cdi_device_ids]
        assert environment(host, cdi)["KERF_GPU_MEMORY_MIB"] == "300"
        assert (await prepare(plugin, "p")) == prepared, "a repeated call gets the same"


async def test_a_prepared_claim_survives_a_restart_of_the_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """A container that restarts in its pod is not prepared again, and needs the spec."""
    async with agent(nats, host, dra=True), driver(host) as plugin:
        await tell(bus, granted("p", 100))
        prepared = await prepare(plugin, "p")
    async with agent(nats, host, dra=True), driver(host):
        assert environment(host, prepared.devices[0].cdi_device_ids[0])["KERF_GRANT"] == "g-p"


@pytest.mark.parametrize("gone", ["plugins_registry/gpu.kerf.dev-reg.sock", "plugins/gpu.kerf.dev/dra.sock"])
async def test_a_socket_that_was_removed_is_made_anew(
    gone: str, nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host, dra=True):
        async with driver(host):
            (host / "kubelet" / gone).unlink()
        await eventually((host / "kubelet" / gone).exists, what="the socket")
        async with driver(host) as plugin:
            await tell(bus, granted("p", 100))
            assert not (await prepare(plugin, "p")).error


async def test_a_claim_that_no_grant_names_is_refused(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grant_wait, "WAIT_S", 0.5)
    async with agent(nats, host, dra=True), driver(host) as plugin:
        await tell(bus, granted("p", 100))
        assert "this node has no grant for ResourceClaim team/mine" in (await prepare(plugin, "stranger")).error
        assert list((host / "cdi").glob("*")) == []


async def test_no_claim_is_prepared_for_a_runtime_that_would_ignore_it(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Its containers would start without their GPUs."""
    (host / "containerd.sock").touch()  # nothing answers there
    async with agent(nats, host, dra=True, runtime_sockets=("/containerd.sock",)), driver(host) as plugin:
        await tell(bus, granted("p", 100))
        assert "the container runtime does not answer" in (error := (await prepare(plugin, "p")).error)
        assert error.endswith("(runtime-not-ready)")
        assert list((host / "cdi").glob("*")) == []


async def test_the_device_gate_refuses_a_claim(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host, dra=True), driver(host) as plugin:
        for name in ("first", "second"):
            await tell(bus, granted(name, 600))
        assert not (await prepare(plugin, "first")).error
        assert "gpu-memory-full" in (await prepare(plugin, "second")).error


async def test_a_claim_prepared_before_the_grant_arrives_fetches_the_grant(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """Placement is queried by the claim's UID, because the kubelet does not name the pod's."""
    asked: list[str] = []

    async def placement(incoming: Incoming) -> None:
        query = decode(incoming.payload, GrantQuery)
        asked.append(query.claim)
        await bus.respond(incoming, encode(GrantAnswer(found=granted("p", 100))))

    await bus.subscribe(queries.GRANT.subject, placement)
    async with agent(nats, host, dra=True), driver(host) as plugin:
        assert not (await prepare(plugin, "p")).error
        assert asked == ["claim-of-p"]


async def test_a_claim_waits_until_placement_has_seen_its_pod_bound(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet calls once, and again only a minute later. The grant comes as placement sends it, or with a later
    answer."""
    monkeypatch.setattr(grant_wait, "WAIT_S", 60.0)
    asked, answers = asyncio.Event(), {"claim-of-q": [GrantAnswer(error="not bound")] * 2}

    async def placement(incoming: Incoming) -> None:
        claim = decode(incoming.payload, GrantQuery).claim
        later = GrantAnswer(error="not bound") if claim == "claim-of-p" else GrantAnswer(found=granted("q", 100))
        left = answers.get(claim, [])
        await bus.respond(incoming, encode(left.pop() if left else later))
        asked.set()

    await bus.subscribe(queries.GRANT.subject, placement)
    async with agent(nats, host, dra=True), driver(host) as plugin, asyncio.TaskGroup() as group:
        first = group.create_task(prepare(plugin, "p"))
        await asked.wait()
        assert not first.done()
        await tell(bus, granted("p", 100))
        assert not (await first).error
        assert not (await prepare(plugin, "q")).error
        assert answers == {"claim-of-q": []}


async def test_no_claim_is_prepared_if_the_checkpoint_cannot_be_written(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async def placement(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(GrantAnswer(found=granted("p", 100))))

    await bus.subscribe(queries.GRANT.subject, placement)
    async with agent(nats, host, dra=True) as ctx, driver(host) as plugin:
        shutil.rmtree(host / "state")
        (host / "state").touch()
        assert "checkpoint-not-written" in (await prepare(plugin, "p")).error
        assert "checkpoint cannot be written" in await ctx.failure


async def test_a_releasing_grant_prepares_no_claim(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with agent(nats, host, dra=True), driver(host) as plugin:
        await tell(bus, granted("p", 100))
        assert not (await prepare(plugin, "p")).error
        await bus.request(
            subjects.node_command("n1", "release"), encode(NodeRelease(term=1, uid=uid("p"), grant_id="g-p"))
        )
        assert "grant-leaving" in (await prepare(plugin, "p")).error


async def test_the_inventory_says_whether_the_kubelet_serves_claims(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async def serves() -> bool:
        entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
        return entry.value is not None and decode(entry.value, Inventory).dra

    async with agent(nats, host, dra=True) as ctx:
        assert "has not asked" in ctx.health.report()["parts"]["claims"]["detail"]
        async with driver(host):
            await eventually(serves, what="dra in the inventory")


async def test_prepared_claims_keep_their_driver_where_it_was_switched_off(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """The kubelet ends no pod with claims that it cannot hand back. The node gets no new ones."""
    async with agent(nats, host, dra=True), driver(host) as plugin:
        await tell(bus, granted("p", 100))
        await prepare(plugin, "p")
    async with agent(nats, host), driver(host) as plugin:
        claim = dra.Claim(namespace="team", uid="claim-of-p", name="mine")
        answer = await plugin.NodeUnprepareResources(dra.NodeUnprepareResourcesRequest(claims=[claim]))
        assert [*answer.claims] == [claim.uid]
        entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
        assert entry.value is not None
        assert not decode(entry.value, Inventory).dra
