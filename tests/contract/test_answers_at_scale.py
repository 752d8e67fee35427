"""Every query of the contract, answered over a real NATS server by a cluster of 5,000 nodes with 8 GPUs each, all full.

A new query is asked too: its fields namespace, name, uid and node are filled in, and `LARGEST` has what makes the
answer of a query large.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.ask import ask
from services.metrics.service import GRANTS_ASKED_ABOUT
from services.metrics.usage import Began, UsageBook
from services.placement import messages as m
from services.placement.config import Config
from services.placement.core import Core
from services.placement.queries.responder import ANSWERS, responder
from services.preemptor import messages as pm
from services.preemptor.config import Config as PreemptorConfig
from services.preemptor.core import Core as PreemptorCore
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.bus.provision import provision
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.metrics_queries import Span, SpanBatch
from shared.contracts.preemption import PreemptAnswer, PreemptQuery
from shared.contracts.queries import QUERIES, AddGpus, AddNodes
from shared.contracts.query import Query
from shared.service import Lifecycle, load, running
from shared.telemetry.trace_ids import trace_id_for
from tests.support import build
from tests.support.command import kerf
from tests.support.large_cluster import GPUS, facts, inventory, node_name, pod_name
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("scale")  # the cores are built once

NODES = 5000
WITHIN_S = 60.0
WAITING = pod_name(NODES * GPUS)
LARGEST: dict[str, dict[str, Any]] = {
    "why": {"max_nodes": 500},
    "what-if": {
        "max_nodes": 500,
        "drain": tuple(node_name(i) for i in range(500)),
        "add_nodes": (AddNodes(like=node_name(600), count=2),),
        "add_gpus": (AddGpus(node=node_name(601), count=1),),
    },
    "advise": {"namespace": "", "name": "", "gpus": GPUS, "groups": 4},
    "inspect": {"node": ""},
    "status": {"waiting": 10},
    "usage": {"by": "pod"},
    "trace": {"uid": "uid-traced"},
    "ended-grants": {"grant_ids": tuple(f"grant-{number}" for number in range(GRANTS_ASKED_ABOUT))},
    "grant": {"uid": "uid-" + "-".join(pod_name(0)), "node": node_name(0)},
}


def question(query: Query) -> Any:
    """The question with the largest answer: about a pod that waits, unless `LARGEST` says otherwise."""
    usual = {"namespace": WAITING[0], "name": WAITING[1], "uid": "uid-" + "-".join(WAITING), "node": node_name(0)}
    fields = {field.name for field in msgspec.structs.fields(query.question)}
    return query.question(**({k: v for k, v in usual.items() if k in fields} | LARGEST.get(query.name, {})))


@functools.cache
def placement() -> Core:
    core = Core("leader", Config())
    core.handle(m.TermTaken(term=100, records=(), mark=None), 0.0)
    core.handle(m.SnapshotSeen(tuple(facts(NODES)), 0), 0.0)
    core.handle(m.FactsSeen(build.put(build.queues(_queues()))), 0.0)
    for number in range(NODES):
        core.handle(m.InventorySeen(inventory(number)), 0.0)
    core.nodes.open = True  # as after a takeover
    return core


def _queues() -> str:
    """As many queues as a large company has teams."""
    names = "\n".join(f"- {{name: team-{i}-training-and-inference, guaranteed: {{gpus: 4}}}}" for i in range(1000))
    return f"queues:\n{names}\n"


@functools.cache
def preemptor() -> PreemptorCore:
    core = PreemptorCore(PreemptorConfig(), lambda: "plan-1")
    core.handle(pm.SnapshotSeen(tuple(facts(NODES))), 0.0)
    for number in range(NODES):
        core.handle(pm.InventorySeen(inventory(number)), 0.0)
    return core


def usage_book(path: Path) -> None:
    book = UsageBook(str(path))
    slices = [
        Began(
            grant_id=f"grant-{number}",
            container="c",
            uid=f"uid-{number}",
            namespace=pod_name(number)[0],
            pod=pod_name(number)[1],
            node=node_name(number // GPUS),
            model="NVIDIA-H200-141GB-HBM3e",
            started_ms=1,
            gpus=((f"gpu-{number}", 1024, 1000),),
        )
        for number in range(NODES * GPUS)
    ]
    book.write(slices, 1)
    book.close()


def spans() -> tuple[Span, ...]:
    """As many as metrics keeps of a pod that is tried for ever, each with what placement writes."""
    trace_id = f"{trace_id_for('uid-traced'):032x}"
    return tuple(
        Span(
            trace_id=trace_id,
            span_id=f"{i:016x}",
            parent_id="",
            name="place",
            service="placement",
            start_ns=i,
            end_ns=i + 1,
            attributes={"kerf.reason": "needs one GPU with 65536 MiB; " * 100},
        )
        for i in range(400)
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("usage") / "usage.db"
    usage_book(path)
    return path


@pytest.fixture
async def site(database: Path) -> AsyncIterator[tuple[EmbeddedServer, NatsBus]]:
    """Placement's and the preemptor's handlers on cores built directly, and the whole metrics service."""
    async with EmbeddedServer() as nats, await NatsBus.connect(nats.url) as bus:
        await provision(bus)
        for query in QUERIES:
            if query.receivers == "placement":
                await bus.subscribe(query.subject, responder(placement(), bus, query))

        async def dry_run(incoming: Incoming) -> None:
            asked = decode(incoming.payload, PreemptQuery)
            answer: PreemptAnswer = preemptor().dry_run(asked.namespace, asked.name, 0.0)
            await bus.respond(incoming, encode(answer))

        await bus.subscribe(queries.PREEMPT.subject, dry_run)
        kind = load("metrics")
        settings = Lifecycle(nats_url=nats.url)
        async with running(kind, msgspec.convert({"database": str(database)}, kind.config_type), lifecycle=settings):
            for span in spans():
                await bus.publish(subjects.spans("placement"), encode(SpanBatch(spans=(span,))))
            yield nats, bus


def test_every_query_of_placement_has_an_answer() -> None:
    assert {query.name for query in QUERIES if query.receivers == "placement"} == set(ANSWERS)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
async def test_a_query_is_answered_at_5000_nodes(query: Query, site: tuple[EmbeddedServer, NatsBus]) -> None:
    _, bus = site

    async def answered() -> Any:
        answer = await ask(bus, query.subject, question(query), query.answer, timeout_s=WITHIN_S, errors=False)
        # Metrics may not have read the spans yet.
        return answer if query.name != "trace" or len(answer.spans) == len(spans()) else None

    answer = await eventually(answered, within_s=WITHIN_S, what="the answer")
    assert answer.error == ""
    assert query.name != "inspect" or len(answer.nodes) == NODES


async def test_inspect_shows_every_node_and_cordon_asks_for_one(site: tuple[EmbeddedServer, NatsBus]) -> None:
    """Cordon finds the node of a GPU among 5,000; its agent is not connected here, and the error names it."""
    nats, bus = site
    asked: list[queries.InspectQuery] = []

    async def spy(incoming: Incoming) -> None:
        asked.append(decode(incoming.payload, queries.InspectQuery))

    await bus.subscribe(queries.INSPECT.subject, spy)
    seen = await kerf("inspect", nats=nats.url)
    assert (seen.code, seen.err) == (0, "")
    assert all(node_name(i) in seen.out for i in (0, NODES - 1))
    gpu = inventory(17).gpus[3].uuid
    for target in (node_name(17), gpu):
        done = await kerf("cordon", target, nats=nats.url)
        assert (done.code, f"the agent of node {node_name(17)} is not connected" in done.err) == (1, True), done.err
    assert [(query.node, query.gpu) for query in asked] == [
        ("", ""),
        (node_name(17), ""),
        (gpu, ""),
        ("", gpu),
    ]
