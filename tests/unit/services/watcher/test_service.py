"""The watcher as it runs, over a real NATS server and the simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from services.simulator.source import SimulatedSource
from services.watcher import service
from services.watcher.config import Config
from services.watcher.service import Watcher
from shared.bus.embedded import EmbeddedServer
from shared.bus.port import Incoming
from shared.contracts import commands as c
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import wrap
from shared.contracts.events import SliceImpaired
from shared.contracts.facts import FeedBatch, Put, SnapshotPage, SnapshotRequest
from shared.model.grant import ContainerGrant, GpuShare, Grant, encode_grant
from shared.model.objects import Pod
from shared.service import Context, running
from tests.support import build
from tests.support.waiting import eventually as until

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"cpu": "8", "pods": "110"}},
}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    made = {"schedulerName": "kerf", "containers": [{"name": "c", "image": "i"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"}, "spec": made}


class Reader:
    """Follows the feed as placement does."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.batches: list[FeedBatch] = []

    async def start(self) -> None:
        await self.ctx.bus.subscribe(subjects.FEED_ALL, self._heard)

    async def _heard(self, incoming: Incoming) -> None:
        self.batches.append(decode(incoming.payload, FeedBatch))

    async def snapshot(self, *, fresh: bool = False) -> SnapshotPage:
        answer = await self.ctx.bus.request(subjects.QUERY_SNAPSHOT, encode(SnapshotRequest(fresh=fresh)))
        return decode(answer, SnapshotPage)

    async def apply(self, *documents: Any) -> c.SimAnswer:
        order = c.SimApply(objects=tuple(msgspec.Raw(msgspec.json.encode(d)) for d in documents))
        return decode(await self.ctx.bus.request(subjects.SIM_APPLY, encode(order)), c.SimAnswer)

    async def order(self, subject: str, order: Any) -> c.Answers:
        return decode(await self.ctx.bus.request(subject, encode(order)), c.Answers)

    def pod(self, name: str) -> Pod | None:
        """The newest state of a pod that the feed reported."""
        seen = [
            f.object
            for b in self.batches
            for f in b.facts
            if isinstance(f, Put) and isinstance(f.object, Pod) and f.object.metadata.name == name
        ]
        return seen[-1] if seen else None


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    async with (
        EmbeddedServer() as server,
        running(Watcher, Config(source="simulated", heartbeat_s=0.05), bus_url=server.url) as ctx,
    ):
        reader = Reader(ctx)
        await reader.start()
        await until(lambda: ctx.health.ready or (ctx.failure.done() and pytest.fail(ctx.failure.result())))
        yield reader


async def test_a_pod_goes_from_manifest_to_running(reader: Reader) -> None:
    """Created, reported on the feed, bound by order with its grant, and seen running."""
    assert await reader.apply(NODE, pod("p")) == c.SimAnswer(applied=2)
    await until(lambda: reader.pod("p") is not None)
    seen = reader.pod("p")
    assert seen is not None
    bind = c.Bind(
        uid=seen.metadata.uid,
        namespace="team",
        name="p",
        resource_version=seen.metadata.resource_version,
        node="n1",
        grant='{"x":1}',
    )
    assert await reader.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=7, binds=(bind,))) == c.Answers()
    await until(lambda: (reader.pod("p") or seen).status.phase == "Running")
    now = reader.pod("p")
    assert now is not None
    assert (now.spec.node_name, now.metadata.annotations["kerf.dev/grant"]) == ("n1", '{"x":1}')
    await until(lambda: reader.batches[-1].log_sequence_seen == 7)


async def test_a_pod_that_has_lost_its_gpu_gets_an_event_if_it_is_on_the_node_that_says_so(reader: Reader) -> None:
    await reader.apply(NODE, pod("p", nodeName="n1"))
    await until(lambda: reader.pod("p") is not None)
    seen = reader.pod("p")
    assert seen is not None

    async def impaired(uid: str, node: str) -> None:
        slice_ = {"uid": uid, "namespace": "team", "name": "p", "container": "c", "gpu": "GPU-1"}
        said = SliceImpaired(node=node, reason="mps-fault", sentence="it", **slice_)
        _, payload = wrap(said, source="/test", now_s=1.0)
        await reader.ctx.bus.publish(subjects.event_in_namespace("slice", "impaired", "team"), payload)

    def written() -> float:
        lines = reader.ctx.metrics.render().decode().splitlines()
        name = "kerf_watcher_announcements_written_total "
        return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)

    await impaired(seen.metadata.uid, "n2")
    await impaired("another", "n1")
    await impaired(seen.metadata.uid, "n1")
    await until(lambda: written() == 1)
    last = c.AnnounceEvent(uid=seen.metadata.uid, namespace="team", name="p", reason="Last", note="of all")
    assert await reader.order(subjects.CMD_PATCH, c.PatchBatch(patches=(last,))) == c.Answers()
    await until(lambda: written() == 2)


async def test_a_pod_is_told_by_the_node_of_its_gpu_too(reader: Reader) -> None:
    share = GpuShare(node="serving", uuid="GPU-1", memory_mib=1, compute_milli=0)
    part = ContainerGrant(strategy="remote", serving="advisory", gpus=(share,))
    grant = encode_grant(Grant(grant_id="g", term=1, containers={"c": part}))
    made = pod("p", nodeName="n1")
    made["metadata"]["annotations"] = {"kerf.dev/grant": grant}
    await reader.apply(NODE, made)
    await until(lambda: reader.pod("p") is not None)
    seen = reader.pod("p")
    assert seen is not None
    for node in ("another", "serving"):
        said = SliceImpaired(
            node=node, uid=seen.metadata.uid, namespace="team", name="p", container="c", gpu="GPU-1",
            reason="server-ended", sentence="it",
        )  # fmt: skip
        _, payload = wrap(said, source="/test", now_s=1.0)
        await reader.ctx.bus.publish(subjects.event_in_namespace("slice", "impaired", "team"), payload)
    name = "kerf_watcher_announcements_written_total 1"
    await until(lambda: name in reader.ctx.metrics.render().decode())
    last = c.AnnounceEvent(uid=seen.metadata.uid, namespace="team", name="p", reason="Last", note="of all")
    assert await reader.order(subjects.CMD_PATCH, c.PatchBatch(patches=(last,))) == c.Answers()
    await until(lambda: name[:-1] + "2" in reader.ctx.metrics.render().decode())


async def test_numbers_rise_by_one_heartbeats_included(reader: Reader) -> None:
    await reader.apply(NODE)
    await until(lambda: len(reader.batches) > 5)
    numbers = [batch.number for batch in reader.batches]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len({batch.epoch for batch in reader.batches}) == 1
    assert any(not batch.facts for batch in reader.batches)


async def test_a_snapshot_and_the_batches_after_it_are_complete(reader: Reader) -> None:
    await reader.apply(NODE, *(pod(f"p{i}") for i in range(50)))
    page = await reader.snapshot(fresh=True)
    assert page.error == ""
    assert page.pages == 1
    await reader.apply(pod("later"))
    await until(lambda: reader.pod("later") is not None)
    after = [f.object.metadata.name for b in reader.batches if b.number > page.number for f in b.facts]
    before = [f.object.metadata.name for f in page.facts if isinstance(f.object, Pod)]
    assert len(before) == 50
    assert after == ["later"]


def pods_of(page: SnapshotPage) -> list[str]:
    return [f.object.metadata.name for f in page.facts if isinstance(f.object, Pod)]


class Behind(SimulatedSource):
    """A source that learns of a pod only when it lists again."""

    async def refresh(self) -> None:
        self._emit(build.put(build.pod("unseen")))


async def test_a_fresh_snapshot_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader must know what a watch has not reported yet (R5)."""

    async def behind(*_: Any) -> Behind:
        return Behind(admission_url="", reporter="test")

    monkeypatch.setattr(service, "make_source", behind)
    config = Config(source="simulated", heartbeat_s=0.05)
    async with EmbeddedServer() as server, running(Watcher, config, bus_url=server.url) as ctx:
        await until(lambda: ctx.health.ready)
        reader = Reader(ctx)
        assert pods_of(await reader.snapshot()) == []
        assert pods_of(await reader.snapshot(fresh=True)) == ["unseen"]


class Unanswered(SimulatedSource):
    """A source without an answer of its API server."""

    async def refresh(self) -> None:
        await asyncio.Event().wait()


async def test_a_fresh_snapshot_that_the_api_server_keeps_waiting_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four that wait for ever took all places, and no reader got a snapshot."""

    async def unanswered(*_: Any) -> Unanswered:
        return Unanswered(reporter="test")

    monkeypatch.setattr(service, "make_source", unanswered)
    monkeypatch.setattr(service, "FRESH_S", 0.1)
    async with EmbeddedServer() as server, running(Watcher, Config(source="simulated"), bus_url=server.url) as ctx:
        await until(lambda: ctx.health.ready)
        reader = Reader(ctx)
        pages = await asyncio.gather(*(reader.snapshot(fresh=True) for _ in range(5)))
        assert {page.error for page in pages} == {"the API server has not said within 0 s what there is now"}
        assert (await reader.snapshot()).error == ""


async def test_answers_name_only_what_did_not_end_well(reader: Reader) -> None:
    await reader.apply(NODE, pod("good"), pod("stale"))
    await until(lambda: reader.pod("stale") is not None)
    good, stale = reader.pod("good"), reader.pod("stale")
    assert good is not None
    assert stale is not None
    binds = (
        c.Bind(
            uid=good.metadata.uid,
            namespace="team",
            name="good",
            resource_version=good.metadata.resource_version,
            node="n1",
        ),
        c.Bind(uid=stale.metadata.uid, namespace="team", name="stale", resource_version="1", node="n1"),
        c.Bind(
            uid=stale.metadata.uid,
            namespace="team",
            name="stale",
            resource_version=stale.metadata.resource_version,
            node="nowhere",
        ),
        c.Bind(uid="gone", namespace="team", name="gone", resource_version="5", node="n1"),
    )
    answers = await reader.order(subjects.CMD_BIND, c.BindBatch(term=1, sequence=1, binds=binds))
    assert [(a.uid, a.outcome, a.resource_version) for a in answers.answers] == [
        (stale.metadata.uid, "conflict", "1"),
        (stale.metadata.uid, "no-node", stale.metadata.resource_version),
        ("gone", "throttled", "5"),
    ]


async def test_a_report_becomes_a_condition_and_an_event(reader: Reader) -> None:
    await reader.apply(pod("p"))
    await until(lambda: reader.pod("p") is not None)
    seen = reader.pod("p")
    assert seen is not None
    report = c.ReportPending(
        uid=seen.metadata.uid, namespace="team", name="p", reason="Unschedulable", message="0/0 nodes fit"
    )
    assert await reader.order(subjects.CMD_PATCH, c.PatchBatch(patches=(report,))) == c.Answers()
    await until(lambda: any(x.message == "0/0 nodes fit" for x in (reader.pod("p") or seen).status.conditions))


async def test_a_refused_manifest_is_named_and_the_others_are_created(reader: Reader) -> None:
    answer = await reader.apply(
        {"kind": "Pod", "metadata": {"name": "empty"}}, NODE, {"kind": "Lamp", "metadata": {"name": "l"}}
    )
    assert answer.applied == 1
    assert [text.split(":")[0] for text in answer.refusals] == ["Pod empty", "Lamp l"]
