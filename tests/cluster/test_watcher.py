"""The watcher on a real API server, with no more rights than its ClusterRole gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.watcher import kube_source, reach
from services.watcher.config import Config
from services.watcher.service import Watcher
from shared.bus.embedded import EmbeddedServer
from shared.bus.port import Incoming
from shared.contracts import commands as c
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.facts import FeedBatch, Gone, Put, SnapshotPage, SnapshotRequest
from shared.kube import resources
from shared.model.objects import Pod
from shared.service import Context, running
from tests.support import manifests
from tests.support.cluster import own_control_plane
from tests.support.waiting import eventually
from tests.support.wire import Wire
from tools.control_plane import ControlPlane

__all__ = ["own_control_plane"]
pytestmark = pytest.mark.cluster


class WatcherHarness:
    """A watcher on a real API server, and the batches of facts that it publishes."""

    def __init__(self, plane: ControlPlane, ctx: Context, namespace: str, url: str) -> None:
        self.plane, self.ctx, self.namespace, self.url = plane, ctx, namespace, url
        self.batches: list[FeedBatch] = []

    async def heard(self, incoming: Incoming) -> None:
        self.batches.append(decode(incoming.payload, FeedBatch))

    def create(self, kind: str, name: str, document: Any = None) -> Any:
        resource = resources.BY_KIND[kind]
        body = {**(document or {}), "metadata": {"name": name}}
        status, answer = self.plane.request(
            "POST", resource.collection(self.namespace if resource.namespaced else ""), body
        )
        assert status == 201, answer
        return json.loads(answer)

    def get(self, path: str) -> Any:
        return json.loads(self.plane.request("GET", path)[1])

    def seen(self, uid: str) -> Any:
        facts = [f for b in self.batches for f in b.facts if f.object.metadata.uid == uid]
        return facts[-1] if facts else None

    async def pod(self, name: str) -> Pod:
        pod = self.create("Pod", name, {"spec": {"schedulerName": "kerf", "containers": [{"name": "c", "image": "i"}]}})
        fact = await eventually(lambda: self.seen(pod["metadata"]["uid"]), what=f"sight of {name}")
        assert isinstance(fact.object, Pod)
        return fact.object

    async def order(self, subject: str, order: Any) -> list[tuple[str, str]]:
        answers = decode(await self.ctx.bus.request(subject, encode(order), timeout_s=10), c.Answers)
        return [(a.outcome, a.message) for a in answers.answers]

    def events(self, uid: str) -> list[str]:
        listed = self.get(resources.EVENT.collection(self.namespace))["items"]
        return [e["reason"] for e in listed if e.get("regarding", {}).get("uid") == uid]


@pytest.fixture
async def harness(control_plane: ControlPlane, namespace: str) -> AsyncIterator[WatcherHarness]:
    manifests.apply_all(control_plane, "00-", "11-")
    config = Config(kubeconfig=str(control_plane.service_account("kerf-system", "kerf-watcher")))
    async with EmbeddedServer() as server, running(Watcher, config, bus_url=server.url) as ctx:
        made = WatcherHarness(control_plane, ctx, namespace, server.url)
        await ctx.bus.subscribe(subjects.FEED_ALL, made.heard)
        await eventually(lambda: ctx.health.ready, what="readiness")
        yield made
        assert not ctx.failure.done(), ctx.failure.result()


async def test_from_creation_to_a_bound_pod_with_its_event(harness: WatcherHarness) -> None:
    node = f"node-of-{harness.namespace}"
    harness.create("Node", node)
    pod = await harness.pod("p")
    await eventually(
        lambda: any(f.object.metadata.name == node for b in harness.batches for f in b.facts), what="the node"
    )
    bind = c.Bind(
        uid=pod.metadata.uid,
        namespace=harness.namespace,
        name="p",
        resource_version=pod.metadata.resource_version,
        node=node,
        grant="{}",
    )
    assert await harness.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=5, binds=(bind,))) == []
    await eventually(
        lambda: harness.seen(pod.metadata.uid).object.spec.node_name == node, what="the bound pod on the feed"
    )
    assert harness.seen(pod.metadata.uid).object.metadata.annotations == {"kerf.dev/grant": "{}"}
    await eventually(lambda: harness.events(pod.metadata.uid) == ["Scheduled"], what="the Event")
    again = await harness.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=5, binds=(bind,)))
    assert [outcome for outcome, _ in again] == ["conflict"]


async def test_every_patch_is_within_its_rights(harness: WatcherHarness) -> None:
    node = f"node-of-{harness.namespace}"
    harness.create("Node", node)
    harness.create(
        "PersistentVolumeClaim",
        "data",
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
    )
    volume = f"volume-of-{harness.namespace}"
    harness.create(
        "PersistentVolume",
        volume,
        {"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}},
    )
    pod = await harness.pod("p")
    wanted = {node, "data", volume}
    await eventually(
        lambda: wanted <= {f.object.metadata.name for b in harness.batches for f in b.facts}, what="all of them"
    )
    identity = {"uid": pod.metadata.uid, "namespace": harness.namespace, "name": "p"}
    patches: tuple[c.Patch, ...] = (
        c.TouchPod(**identity, token="t1"),
        c.ReportPending(**identity, reason="Unschedulable", message="no node fits"),
        c.LabelNode(node=node, labels={"nvidia.com/gpu.product": "NVIDIA-H100"}),
        c.SelectNode(namespace=harness.namespace, claim="data", node=node),
        c.SelectNode(namespace=harness.namespace, claim="data", node=node, volume=volume),
    )
    assert await harness.order(subjects.CMD_PATCH, c.PatchBatch(patches=patches)) == []

    def stands() -> bool:
        held = harness.get(resources.POD.path("p", harness.namespace))
        conditions = [x["message"] for x in held["status"].get("conditions", ()) if x["type"] == "PodScheduled"]
        return held["metadata"]["annotations"] == {"kerf.dev/touched": "t1"} and conditions == ["no node fits"]

    await eventually(stands, what="touch and report")
    await eventually(lambda: harness.events(pod.metadata.uid) == ["FailedScheduling"], what="the Event")
    assert harness.get(resources.NODE.path(node))["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100"
    assert harness.get(resources.VOLUME.path(volume))["spec"]["claimRef"]["name"] == "data"
    assert (
        await harness.order(subjects.CMD_PATCH, c.PatchBatch(patches=(c.DeletePod(**identity, reason="test"),))) == []
    )
    await eventually(lambda: isinstance(harness.seen(pod.metadata.uid), Gone), what="the end")


async def test_an_eviction_goes_through_the_eviction_api(harness: WatcherHarness) -> None:
    pod = await harness.pod("p")
    evict = c.Evict(uid=pod.metadata.uid, namespace=harness.namespace, name="p", reason="made room")
    assert await harness.order(subjects.CMD_EVICT, c.EvictBatch(evictions=(evict,))) == []
    await eventually(lambda: isinstance(harness.seen(pod.metadata.uid), Gone), what="the end")
    await eventually(lambda: harness.events(pod.metadata.uid) == ["Evicted"], what="the Event")


async def test_a_fresh_snapshot_holds_what_was_made_before_it(harness: WatcherHarness) -> None:
    for number in range(5):
        name = f"p{number}"
        pod = harness.create("Pod", name, {"spec": {"containers": [{"name": "c", "image": "i"}]}})
        answer = await harness.ctx.bus.request(
            subjects.QUERY_SNAPSHOT, encode(SnapshotRequest(fresh=True)), timeout_s=10
        )
        page = decode(answer, SnapshotPage)
        assert page.error == ""
        assert pod["metadata"]["uid"] in {f.object.metadata.uid for f in page.facts if isinstance(f, Put)}


async def test_two_watchers_have_feeds_of_their_own_and_share_the_orders(harness: WatcherHarness) -> None:
    """Placement follows one epoch; an order reaches one watcher, and would be harmless at both."""
    config = Config(kubeconfig=str(harness.plane.service_account("kerf-system", "kerf-watcher")))
    async with running(Watcher, config, bus_url=harness.url) as second:
        await eventually(lambda: second.health.ready, what="the second one")
        await eventually(lambda: len({b.epoch for b in harness.batches}) == 2, what="two epochs")
        pods = [await harness.pod(f"p{i}") for i in range(8)]
        node = f"node-of-{harness.namespace}"
        harness.create("Node", node)
        heard = lambda: {b.epoch for b in harness.batches for f in b.facts if f.object.metadata.name == node}  # noqa: E731
        await eventually(lambda: len(heard()) == 2, what="both knowing the node")
        for pod in pods:
            meta = pod.metadata
            bind = c.Bind(
                uid=meta.uid,
                namespace=meta.namespace,
                name=meta.name,
                resource_version=meta.resource_version,
                node=node,
            )
            assert await harness.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=1, binds=(bind,))) == []
        for epoch in {b.epoch for b in harness.batches}:
            numbers = [b.number for b in harness.batches if b.epoch == epoch]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_the_watcher_survives_an_outage_of_the_server_and_answers(own_control_plane: ControlPlane) -> None:
    plane = own_control_plane
    config = Config(kubeconfig=str(plane.kubeconfig()), heartbeat_s=0.1)
    async with EmbeddedServer() as server, running(Watcher, config, bus_url=server.url) as ctx:
        harness = WatcherHarness(plane, ctx, "default", server.url)
        await ctx.bus.subscribe(subjects.FEED_ALL, harness.heard)
        await eventually(lambda: ctx.health.ready, what="readiness")
        harness.create("Node", "n")
        pod = await harness.pod("p")
        await eventually(
            lambda: any(f.object.metadata.name == "n" for b in harness.batches for f in b.facts), what="the node"
        )
        meta = pod.metadata
        bind = c.Bind(
            uid=meta.uid, namespace=meta.namespace, name="p", resource_version=meta.resource_version, node="n"
        )
        plane.kill_api_server()
        [(outcome, message)] = await harness.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=1, binds=(bind,)))
        assert outcome in ("unknown", "throttled")
        assert message
        await eventually(
            lambda: "no connection" in ctx.health.report()["parts"]["cluster"]["detail"],
            what="the trouble in the report",
        )
        assert ctx.health.ready, "what it knows it goes on serving"
        number = harness.batches[-1].number
        await eventually(lambda: harness.batches[-1].number > number + 2, what="heartbeats")
        await asyncio.to_thread(plane.start_api_server)

        async def bound() -> bool:
            return await harness.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=1, binds=(bind,))) == []

        await eventually(bound, what="the same order once the server is back")
        await eventually(lambda: harness.seen(meta.uid).object.spec.node_name == "n", what="the bound pod on the feed")


async def test_a_watcher_that_alone_does_not_reach_the_server_leaves_the_work_to_the_other_one(
    own_control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that are cut, a network that loses everything, and an outage of the server itself, in which both
    stay."""
    monkeypatch.setattr(reach, "LOOK_S", 0.2)
    monkeypatch.setattr(reach, "CUT_OFF_S", 1.0)
    monkeypatch.setattr(reach, "ANSWERS_S", 1.5)
    monkeypatch.setattr(kube_source, "ANSWER_S", 1.0)
    plane = own_control_plane
    async with (
        Wire(plane.port) as wire,
        EmbeddedServer() as server,
        running(Watcher, Config(kubeconfig=_through(wire, plane, tmp_path)), bus_url=server.url) as cut_off,
        running(Watcher, Config(kubeconfig=str(plane.kubeconfig())), bus_url=server.url) as other,
    ):
        harness = WatcherHarness(plane, other, "default", server.url)
        await other.bus.subscribe(subjects.FEED_ALL, harness.heard)
        await eventually(lambda: cut_off.health.ready and other.health.ready, what="readiness")
        harness.create("Node", "n")
        for number, (cut, mend) in enumerate(
            ((lambda: (wire.refuse(), wire.cut()), lambda: wire.refuse(False)), (wire.freeze, wire.thaw))
        ):
            cut()
            await eventually(lambda: not cut_off.health.ready, what="the watcher that leaves")
            for part in range(4):
                name = f"p{number}-{part}"
                meta = (await harness.pod(name)).metadata
                bind = c.Bind(
                    uid=meta.uid, namespace="default", name=name, resource_version=meta.resource_version, node="n"
                )
                assert await harness.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=1, binds=(bind,))) == []
            mend()
            wire.cut()
            await eventually(lambda: cut_off.health.ready, what="its return")
        plane.kill_api_server()
        for ctx in (cut_off, other):
            await eventually(
                lambda ctx=ctx: "no connection" in ctx.health.report()["parts"]["cluster"]["detail"],
                what="the trouble in the report",
            )
        asked: list[bytes] = []

        async def heard(incoming: Incoming) -> None:
            asked.append(incoming.payload)

        await other.bus.subscribe(subjects.QUERY_REACH, heard)
        await eventually(lambda: len(set(asked)) == 2, what="the questions of both")
        await eventually(lambda: len(asked) >= 4, what="questions after the first ones were not answered")
        assert (cut_off.health.ready, other.health.ready) == (True, True)


def _through(wire: Wire, plane: ControlPlane, folder: Path) -> str:
    """A kubeconfig for connections over the wire."""
    document = json.loads(plane.kubeconfig().read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{wire.port}"
    (folder / "through-the-wire.kubeconfig").write_text(json.dumps(document))
    return str(folder / "through-the-wire.kubeconfig")
