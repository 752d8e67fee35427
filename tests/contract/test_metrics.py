"""The metrics service over a real NATS server."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from services.metrics.core import Core
from services.metrics.service import Config, MetricsService
from services.metrics.usage import Ended, Record
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.bus.provision import provision
from shared.contracts import metrics_queries, queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import Envelope, wrap
from shared.contracts.events import Event, NodeInventoried, PlacementDecided, SliceEnforced, SliceReleased
from shared.contracts.metrics_queries import Span, SpanBatch, TraceAnswer, TraceQuery, UsageAnswer, UsageQuery, UsageRow
from shared.contracts.queries import EndedGrantsAnswer, EndedGrantsQuery, QueuesAnswer, QueueStanding, StatusAnswer
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.timestamps import seconds_text
from shared.service import Lifecycle, running
from shared.telemetry.trace_ids import trace_id_for
from tests.support.waiting import eventually


@pytest.fixture
async def bus(bus: NatsBus) -> NatsBus:
    inventory = Inventory(node="n1", boot_id="b", gpus=(Gpu(uuid="G", index=0, model="H200", memory_mib=1000),))
    await bus.kv(subjects.KV_NODES).put(subjects.token("n1"), encode(inventory))
    return bus


def pod(name: str) -> dict[str, Any]:
    return {"uid": f"u-{name}", "namespace": "team", "name": name, "node": "n1", "grant_id": f"g-{name}"}


def enforced(name: str) -> SliceEnforced:
    return SliceEnforced(
        container="c", strategy="advisory", promise="soft", gpus={"G": (500, 0)}, model="H200", **pod(name)
    )


def released(name: str) -> SliceReleased:
    return SliceReleased(boot_id="b", **pod(name))


LONG_AGO_S = time.time() - 3600


def say(bus: NatsBus, event: Event, at_s: float) -> None:
    """`at_s` counts from an hour ago, because what ended months ago would be dropped."""
    identity, payload = wrap(event, source="/test", now_s=LONG_AGO_S + at_s)
    bus.publish_event(subjects.event_in_namespace(event.ENTITY, event.VERB, "team"), payload, identity)


async def usage(bus: NatsBus, by: str = "pod") -> dict[str, UsageRow]:
    answer = decode(await bus.request(metrics_queries.USAGE.subject, encode(UsageQuery(by=by))), UsageAnswer)
    assert not answer.error
    return {row.key: row for row in answer.rows}


async def trace_of(bus: NatsBus, name: str) -> TraceAnswer:
    query = encode(TraceQuery(namespace="team", name=name))
    return decode(await bus.request(metrics_queries.TRACE.subject, query), TraceAnswer)


async def test_a_clock_ahead_hides_no_lag_and_figures_have_an_age(nats: EmbeddedServer, bus: NatsBus) -> None:
    """One event of tomorrow kept the lag at 0 for a day; figures of a placement that is gone looked like new ones."""
    async with running(MetricsService, Config(status_every_s=0.05), bus_url=nats.url) as ctx:

        def figure(name: str) -> float:
            lines = ctx.metrics.render().decode().splitlines()
            return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), -1.0)

        now_s = time.time() - LONG_AGO_S
        say(bus, enforced("ahead"), now_s + 86_400)
        say(bus, enforced("late"), now_s - 600)
        await eventually(lambda: 600 <= figure("kerf_event_lag_seconds") < 700, what="the lag of the second")
        await eventually(lambda: figure("kerf_status_age_seconds") > 0.3, what="an age without an answer")

        async def status(incoming: Incoming) -> None:
            await bus.respond(incoming, encode(StatusAnswer()))

        await bus.subscribe(queries.STATUS.subject, status)
        await eventually(lambda: 0 <= figure("kerf_status_age_seconds") < 0.2, what="an answer")


async def test_usage_is_exact_across_crash_and_restart(nats: EmbeddedServer, bus: NatsBus, tmp_path: Path) -> None:
    """Events from while the service was down are in the stream, and its own totals on disk; nothing counts twice."""
    config = Config(database=str(tmp_path / "usage.db"), write_every_s=0.05)

    async def costs(expected: dict[str, float]) -> bool:
        return {key: row.gpu_seconds for key, row in (await usage(bus)).items()} == expected

    async with running(MetricsService, config, bus_url=nats.url):
        say(bus, enforced("a"), 100)
        say(bus, released("a"), 110)
        say(bus, enforced("b"), 100)
        await eventually(lambda: _row(bus, "team/b"))
        await eventually(lambda: _costs_at_least(bus, "team/a", 5.0))
    say(bus, released("b"), 104)
    say(bus, enforced("c"), 100)
    say(bus, released("c"), 101)
    async with running(MetricsService, config, bus_url=nats.url):
        await eventually(lambda: costs({"team/a": 5.0, "team/b": 2.0, "team/c": 0.5}))
        assert (await usage(bus, "model"))["H200"].slices == 3


async def _row(bus: NatsBus, key: str) -> UsageRow | None:
    return (await usage(bus)).get(key)


async def _costs_at_least(bus: NatsBus, key: str, seconds: float) -> bool:
    row = await _row(bus, key)
    return row is not None and row.gpu_seconds >= seconds


async def test_slices_whose_end_was_never_told_are_counted_until_placement_has_nothing_of_them(
    nats: EmbeddedServer, bus: NatsBus
) -> None:
    """The stream was away when the end was published. What runs is counted on, and so is all while placement is
    silent."""
    over: list[str] = []
    asked = asyncio.Event()

    async def ended_grants(incoming: Incoming) -> None:
        about = decode(incoming.payload, EndedGrantsQuery).grant_ids
        if set(about) == {"g-a", "g-b"}:
            asked.set()
        await bus.respond(incoming, encode(EndedGrantsAnswer(grant_ids=tuple(id_ for id_ in over if id_ in about))))

    async def live() -> dict[str, int]:
        return {key: row.live for key, row in (await usage(bus)).items()}

    async def ended() -> bool:
        return await live() == {"team/a": 0, "team/b": 1}

    await bus.subscribe(queries.ENDED_GRANTS.subject, ended_grants)
    config = Config(write_every_s=0.05, missed_ends_every_s=0.05)
    async with running(MetricsService, config, bus_url=nats.url):
        say(bus, enforced("a"), 100)
        say(bus, enforced("b"), 100)
        await asked.wait()
        assert await live() == {"team/a": 1, "team/b": 1}
        over.append("g-a")
        await eventually(ended)


async def test_a_pod_that_was_deleted_while_it_was_bound_leaves_the_page_and_misses_no_end(
    nats: EmbeddedServer, bus: NatsBus
) -> None:
    """It was drawn as starting for ever: of its grant nothing is published but the decision."""
    asked: set[str] = set()

    async def ended_grants(incoming: Incoming) -> None:
        asked.clear()
        asked.update(decode(incoming.payload, EndedGrantsQuery).grant_ids)
        await bus.respond(incoming, encode(EndedGrantsAnswer(grant_ids=tuple({"g-ghost"} & asked))))

    await bus.subscribe(queries.ENDED_GRANTS.subject, ended_grants)
    share = GpuShare(node="n1", uuid="G", memory_mib=500, compute_milli=0)
    grant = Grant(grant_id="g-ghost", term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})
    of = {"uid": "u-ghost", "namespace": "team", "name": "ghost", "node": "n1"}
    async with running(MetricsService, Config(page_port=0, missed_ends_every_s=0.05), bus_url=nats.url) as ctx:
        say(bus, enforced("b"), 100)
        say(bus, PlacementDecided(term=1, sequence=1, grant=grant, **of), 100)
        await eventually(lambda: asked == {"g-b", "g-ghost"}, what="a question about both")
        await eventually(lambda: asked == {"g-b"}, what="none about the ghost")
        assert "kerf_usage_ends_missed_total 0.0" in ctx.metrics.render().decode()


async def test_a_recreated_stream_is_followed_from_its_beginning(
    nats: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """The stored position in the old stream must not hide events of the new one."""
    config = Config(database=str(tmp_path / "usage.db"), write_every_s=0.05)
    async with running(MetricsService, config, bus_url=nats.url):
        for name in "abcdefgh":
            say(bus, enforced(name), 100)
        await eventually(lambda: _row(bus, "team/h"))
    await nats.restart(wipe=True)
    await eventually(lambda: bus.connected)
    await provision(bus)
    async with running(MetricsService, config, bus_url=nats.url):
        say(bus, enforced("z"), 100)
        await eventually(lambda: _row(bus, "team/z"), within_s=30)


async def test_usage_says_since_when_whatever_clock_an_agent_has(nats: EmbeddedServer, bus: NatsBus) -> None:
    async def since(expected: str) -> bool:
        answer = decode(await bus.request(metrics_queries.USAGE.subject, encode(UsageQuery(by="pod"))), UsageAnswer)
        return (answer.since, answer.error) == (expected, "")

    async with running(MetricsService, Config(), bus_url=nats.url):
        assert await since("")
        say(bus, enforced("a"), 100)
        await eventually(lambda: since(seconds_text(LONG_AGO_S + 100)))
        identity, payload = wrap(enforced("b"), source="/test", now_s=0)
        payload = payload.replace(b"1970-01-01T00:00:00.000000Z", b"0001-01-01T00:00:00+14:00")
        bus.publish_event(subjects.event_in_namespace("slice", "enforced", "team"), payload, identity)
        await eventually(lambda: since("1970-01-01T00:00:00Z"))


async def test_the_newest_traces_can_be_queried_by_name(nats: EmbeddedServer, bus: NatsBus) -> None:
    """Events carry the pod's UID, and the UID is the trace id."""
    trace_id = f"{trace_id_for('u-a'):032x}"
    spans = tuple(
        Span(trace_id=trace_id, span_id=f"s{i}", parent_id="", name="x", service="t", start_ns=i, end_ns=i + 1)
        for i in (2, 1)
    )
    async with running(MetricsService, Config(), bus_url=nats.url):
        say(bus, enforced("a"), 100)
        await bus.publish(subjects.spans("placement"), encode(SpanBatch(spans=spans)))

        async def traced() -> TraceAnswer | None:
            answer = await trace_of(bus, "a")
            return answer if answer.spans else None

        found = await eventually(traced)
        assert (found.trace_id, [s.start_ns for s in found.spans]) == (trace_id, [1, 2])
        unknown = await trace_of(bus, "none")
        assert unknown.error == "no event has spoken of pod team/none"


async def test_prometheus_reads_events_inventories_and_placement(nats: EmbeddedServer, bus: NatsBus) -> None:
    async def status(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(StatusAnswer(term=3, gpus=1, pods_waiting=2)))

    async def queues(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(QueuesAnswer(queues=(QueueStanding(name="a", gpu_milli_used=500),))))

    await bus.subscribe(queries.STATUS.subject, status)
    await bus.subscribe(queries.QUEUES.subject, queues)
    lifecycle = Lifecycle(http_port=0)
    async with running(MetricsService, Config(status_every_s=0.05), bus_url=nats.url, lifecycle=lifecycle) as ctx:
        say(bus, enforced("a"), 100)

        async def exposed() -> bool:
            lines = (await asyncio.to_thread(_get, f"http://127.0.0.1:{ctx.http_port}/metrics")).splitlines()
            return {
                'kerf_node_gpu_memory_allocated_bytes{model="H200",node="n1"} 5.24288e+08',
                'kerf_node_gpu_memory_allocated_mib{model="H200",node="n1"} 500.0',
                "kerf_pods_waiting 2.0",
                'kerf_queue_gpus_used{queue="a"} 0.5',
                'kerf_node_gpus{model="H200",node="n1"} 1.0',
            } <= set(lines)

        await eventually(exposed)


async def test_a_malformed_event_and_one_about_another_node_stop_nothing(nats: EmbeddedServer, bus: NatsBus) -> None:
    async with running(MetricsService, Config(), bus_url=nats.url) as ctx:
        bus.publish_event("kerf.v1.event.slice.enforced.ns.team", b"{}", "x1")
        _, of_another = wrap(NodeInventoried(node="good", gpus=0, memory_mib=0), source="/evil", now_s=LONG_AGO_S)
        bus.publish_event(subjects.event_on_node("node", "inventoried", "evil"), of_another, "x2")
        say(bus, enforced("a"), 100)
        await eventually(lambda: _row(bus, "team/a"))
        assert "kerf_events_unreadable_total 2.0" in ctx.metrics.render().decode()


async def test_a_record_that_no_attempt_can_write_keeps_back_no_other(
    nats: EmbeddedServer, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_event = Core.event

    def event(core: Core, envelope: Envelope, event: Event | None) -> list[Record]:
        bad = [Ended("\ud800", 1)] if isinstance(event, SliceReleased) else []
        return [*bad, *of_event(core, envelope, event)]

    monkeypatch.setattr(Core, "event", event)
    async with running(MetricsService, Config(), bus_url=nats.url) as ctx:
        say(bus, enforced("p"), 0)
        say(bus, released("p"), 10)
        await eventually(lambda: _costs_at_least(bus, "team/p", 5), what="the pod's use")
        assert "kerf_usage_records_left_out_total 1.0" in ctx.metrics.render().decode()


async def test_an_invalid_query_is_answered_with_the_reason(nats: EmbeddedServer, bus: NatsBus) -> None:
    async with running(MetricsService, Config(), bus_url=nats.url):
        answer = decode(await bus.request(metrics_queries.USAGE.subject, encode(UsageQuery(by="colour"))), UsageAnswer)
        assert "not by 'colour'" in answer.error


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
