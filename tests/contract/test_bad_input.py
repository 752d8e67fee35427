"""Malformed queries, commands, events, facts and inventories, sent to running services over real NATS.

Each gets a clear error (in its answer, or in a log line if no client waits for an answer), and nothing else is
affected: right after it a valid pod is placed. Invalid requests in a pod's own manifest are in test_core_refusals.py,
settings are in test_bad_settings.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cli.stack import Stack, stack
from cli.up import apply, node_object
from shared.bus.port import NoResponder
from shared.contracts import metrics_queries, queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import SimAnswer, SimDelete
from shared.contracts.queries import ExplainAnswer, StatusQuery, WhyQuery
from tests.support.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("bad-input")]

NODES = [{"name": f"n{i}", "count": 2, "memory_mib": 81_920, "nvlinks": 0} for i in range(2)]
HUGE = 10**30
PATIENCE_S = 60.0
"""How long a busy machine may take; the bus alone would give up a request after 2 s."""
GPU = {"index": 0, "model": "H", "memory_mib": 1000}
META = {"uid": "u", "namespace": "team", "name": "p"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[Stack]:
    async with stack(NODES) as running:
        await apply(running.bus, [node_object(node) for node in NODES])
        await _leads(running)
        await _works(running, "first")
        yield running


async def _leads(made: Stack) -> None:
    """Waits for the leader. A stack is ready before it has one, and on a busy machine the first query would be earlier;
    from here on a query without a subscriber is a failure, because the leader session has ended."""

    async def answers() -> bool:
        try:
            await made.bus.request(queries.STATUS.subject, encode(StatusQuery()), timeout_s=PATIENCE_S)
        except NoResponder:
            return False
        return True

    await eventually(answers, within_s=PATIENCE_S, what="a leader that answers queries")


_NUMBERS = itertools.count()


async def _works(made: Stack, name: str) -> None:
    """Creates a valid pod, which is placed and bound, and deletes it."""
    limits = {"kerf.dev/gpu": "1", "kerf.dev/gpu-memory": "1Gi"}
    # A new name each time, because a pod of the last test may still be ending.
    name = f"{name}-{next(_NUMBERS)}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name}, "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}}  # fmt: skip
    answer = await apply(made.bus, [pod])
    assert answer.refusals == ()

    async def bound() -> bool:
        query = encode(WhyQuery(namespace="default", name=name))
        reply = await made.bus.request(queries.WHY.subject, query, timeout_s=PATIENCE_S)
        explained = decode(reply, ExplainAnswer).explanation
        return explained is not None and explained.state == "bound"

    await eventually(bound, within_s=PATIENCE_S, what=f"the binding of {name}")
    assert (await _delete(made, "Pod", name, namespace="default")).refusals == ()
    assert made.failed() == ""


async def _delete(made: Stack, kind: str, name: str, *, namespace: str = "") -> SimAnswer:
    order = encode(SimDelete(kind=kind, namespace=namespace, name=name))
    return decode(await made.bus.request(subjects.SIM_DELETE, order, timeout_s=PATIENCE_S), SimAnswer)


def _bytes(payload: Any) -> bytes:
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


def _manifest(kind: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"objects": [{"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, **rest}]}


def _pod(limit: Any) -> dict[str, Any]:
    return {
        "spec": {"schedulerName": "kerf", "containers": [{"name": "c", "image": "i", "resources": {"limits": limit}}]}
    }


ASKED: list[tuple[str, str, Any, str]] = [
    ("why: no JSON", queries.WHY.subject, b"{", "this is no WhyQuery: Input data was truncated"),
    ("why: a list", queries.WHY.subject, [], "Expected `object`, got `array`"),
    (
        "why: wrong type",
        queries.WHY.subject,
        {"namespace": 1, "name": "x"},
        "Expected `str`, got `int` - at `$.namespace`",
    ),
    ("why: field missing", queries.WHY.subject, {"namespace": "x"}, "missing required field `name`"),
    ("why: not UTF-8", queries.WHY.subject, b'{"namespace":"\xff","name":"x"}', "this is no WhyQuery"),
    ("why: nested without end", queries.WHY.subject, b"[" * 100_000, "this is no WhyQuery"),
    ("why: no pod of that name", queries.WHY.subject, {"namespace": "a", "name": "b"}, "no pod a/b is known"),
    ("what-if: no JSON", queries.WHAT_IF.subject, b"nonsense", "this is no WhatIfQuery"),
    ("what-if: a number for a pod", queries.WHAT_IF.subject, {"pod": 5}, "that is no pod manifest"),
    ("what-if: another kind", queries.WHAT_IF.subject, {"pod": {"kind": "Node"}}, "that is no pod manifest"),
    (
        "what-if: a word for a spec",
        queries.WHAT_IF.subject,
        {"pod": {"kind": "Pod", "spec": "no"}},
        "Expected `object`, got `str`",
    ),
    (
        "what-if: no containers",
        queries.WHAT_IF.subject,
        {"pod": {"kind": "Pod", "spec": {}}},
        "the pod has no containers",
    ),
    (
        "what-if: words for a number",
        queries.WHAT_IF.subject,
        {"pod": {"kind": "Pod", **_pod({"kerf.dev/gpu": "two"})}},
        "'two'",
    ),
    (
        "what-if: negative nodes",
        queries.WHAT_IF.subject,
        {"pod": {"kind": "Pod", **_pod({"kerf.dev/gpu": "1"})}, "max_nodes": -1},
        "nodes",
    ),
    ("inspect: wrong type", queries.INSPECT.subject, {"node": 5}, "Expected `str`, got `int`"),
    ("inspect: no such node", queries.INSPECT.subject, {"node": "nowhere"}, "there is no node nowhere"),
    ("grant: fields missing", queries.GRANT.subject, {}, "missing required field `uid`"),
    ("grant: no such pod", queries.GRANT.subject, {"uid": "u", "node": "n0"}, "no pod with uid u is bound"),
    ("status: no JSON", queries.STATUS.subject, b"[", "this is no StatusQuery"),
    ("usage: no JSON", metrics_queries.USAGE.subject, b"{", "this is no UsageQuery"),
    ("usage: wrong type", metrics_queries.USAGE.subject, {"by": 3}, "Expected `str`, got `int`"),
    ("usage: no such key", metrics_queries.USAGE.subject, {"by": "colour"}, "colour"),
    ("trace: no JSON", metrics_queries.TRACE.subject, b"\x00", "this is no TraceQuery"),
    (
        "trace: no pod of that name",
        metrics_queries.TRACE.subject,
        {"namespace": "a", "name": "b"},
        "no event has spoken of pod a/b",
    ),
    ("snapshot: no JSON", subjects.QUERY_SNAPSHOT, b"{", "this is no SnapshotRequest"),
    ("snapshot: wrong type", subjects.QUERY_SNAPSHOT, {"page": "first"}, "Expected `int`, got `str`"),
    ("snapshot: unknown", subjects.QUERY_SNAPSHOT, {"snapshot": "never"}, "snapshot 'never' has no page 0 here"),
    ("snapshot: a page before the first", subjects.QUERY_SNAPSHOT, {"page": -1}, "has no page -1"),
    ("apply: no JSON", subjects.SIM_APPLY, b"{", "this is no SimApply"),
    ("apply: a word for objects", subjects.SIM_APPLY, {"objects": "x"}, "Expected `array`, got `str`"),
    ("apply: a number for an object", subjects.SIM_APPLY, {"objects": [5]}, "object"),
    ("apply: an unknown kind", subjects.SIM_APPLY, _manifest("Spaceship", "x"), "Spaceship"),
    ("apply: no name", subjects.SIM_APPLY, {"objects": [{"apiVersion": "v1", "kind": "Node", "metadata": {}}]}, "name"),
    (
        "apply: a wrong type inside",
        subjects.SIM_APPLY,
        _manifest("Pod", "x", spec={"containers": "none"}),
        "containers",
    ),
    ("apply: words for GPUs", subjects.SIM_APPLY, _manifest("Pod", "x", **_pod({"kerf.dev/gpu": "two"})), "'two'"),
    ("delete: no JSON", subjects.SIM_DELETE, b"{", "this is no SimDelete"),
    ("delete: an unknown kind", subjects.SIM_DELETE, {"kind": "Spaceship", "namespace": "a", "name": "b"}, "Spaceship"),
]


@pytest.mark.parametrize(("subject", "payload", "words"), [row[1:] for row in ASKED], ids=[row[0] for row in ASKED])
async def test_a_malformed_query_is_answered_with_an_error(made: Stack, subject: str, payload: Any, words: str) -> None:
    reply = (await made.bus.request(subject, _bytes(payload), timeout_s=PATIENCE_S)).decode()
    assert words in reply
    await _works(made, "after-a-question")


SLICE = {"namespace": "team", "name": "p", "container": "c", "grant_id": "x-1", "strategy": "advisory"}
RELEASED = subjects.release("n0")
SAID: list[tuple[str, str, Any, str]] = [
    ("feed: no JSON", subjects.feed("e"), b"{", "bus_handler_failed"),
    ("feed: a word for a number", subjects.feed("e"), {"epoch": "e", "number": "one"}, "bus_handler_failed"),
    (
        "feed: an unknown fact",
        subjects.feed("e"),
        {"epoch": "e", "number": 1, "facts": [{"fact": "guess"}]},
        "bus_handler_failed",
    ),
    (
        "feed: a wrong object",
        subjects.feed("e"),
        {"epoch": "e", "number": 1, "facts": [{"fact": "put", "object": {"kind": "Node", "spec": 1}}]},
        "bus_handler_failed",
    ),
    ("bind: no JSON", subjects.CMD_BIND, b"{", "order_malformed"),
    ("bind: fields missing", subjects.CMD_BIND, {"term": 1}, "order_malformed"),
    ("bind: wrong type", subjects.CMD_BIND, {"term": 1, "sequence": 1, "binds": {}}, "order_malformed"),
    ("patch: an unknown tag", subjects.CMD_PATCH, {"patches": [{"patch": "explode"}]}, "order_malformed"),
    ("patch: no tag", subjects.CMD_PATCH, {"patches": [{}]}, "order_malformed"),
    (
        "evict: a word for a grace period",
        subjects.CMD_EVICT,
        {"evictions": [META | {"reason": "r", "grace_period_seconds": "soon"}]},
        "order_malformed",
    ),
    ("node grant: no JSON", subjects.node_command("n0", "grant"), b"{", "bus_handler_failed"),
    ("node grant: no grant", subjects.node_command("n0", "grant"), META | {"term": 1}, "bus_handler_failed"),
    (
        "node release: wrong type",
        subjects.node_command("n0", "release"),
        {"term": "x", "uid": "u", "grant_id": "g"},
        "bus_handler_failed",
    ),
    (
        "node sync: wrong type",
        subjects.node_command("n0", "sync"),
        {"term": 1, "node": "n0", "grants": 3},
        "bus_handler_failed",
    ),
    ("node ack: wrong type", subjects.node_command("n0", "ack"), {"grant_ids": "g"}, "bus_handler_failed"),
    ("heartbeat: no JSON", subjects.heartbeat("n0"), b"{", "bus_handler_failed"),
    ("heartbeat: a number for nodes", subjects.heartbeat("n0"), {"nodes": 5}, "bus_handler_failed"),
    ("grant answer: wrong type", "ACK.grant", {"ok": "perhaps"}, "bus_handler_failed"),
    ("sync answer: fields missing", "ACK.sync", {"node": "n0"}, "bus_handler_failed"),
    (
        "sync answer: negative memory",
        "ACK.sync",
        {
            "node": "n0",
            "boot_id": "b",
            "term": 1,
            "accepted": True,
            "live": [{"uid": "u", **SLICE, "gpus": {"g": [-5, 0]}}],
        },
        "bus_handler_failed",
    ),
    (
        "sync answer: more than a number holds",
        "ACK.sync",
        {
            "node": "n0",
            "boot_id": "b",
            "term": 1,
            "accepted": True,
            "live": [{"uid": "u", **SLICE, "gpus": {"g": [HUGE, 0]}}],
        },
        "bus_handler_failed",
    ),
    ("released: no JSON", RELEASED, b"{", "bus_handler_failed"),
    ("released: fields missing", RELEASED, {"reason": "why not"}, "bus_handler_failed"),
    ("released: wrong type", RELEASED, {"grant_id": 5}, "bus_handler_failed"),
    (
        "sync answer: of another node",
        "ACK.sync",
        {"node": "n1", "boot_id": "b", "term": 1, "accepted": True},
        "bus_handler_failed",
    ),
    (
        "grant answer: of another node",
        "ACK.grant",
        {"ok": False, "node": "n1", "grant_id": "g", "dead": True},
        "bus_handler_failed",
    ),
    ("heartbeat: of another node", subjects.heartbeat("n0"), {"nodes": ["n0", "n1"]}, "bus_handler_failed"),
    ("spans: no JSON", subjects.spans("placement"), b"{", "bus_handler_failed"),
    ("spans: wrong type", subjects.spans("placement"), {"spans": [{"name": 5}]}, "bus_handler_failed"),
]


@pytest.mark.parametrize(("subject", "payload", "logged"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
async def test_a_malformed_message_is_logged_and_ignored(made: Stack, subject: str, payload: Any, logged: str) -> None:
    if subject.startswith("ACK."):
        subject = subjects.ack(made.services["placement"].instance, subject.removeprefix("ACK."), "n0")
    with capture_logs() as lines:
        await made.bus.publish(subject, _bytes(payload))
        line = await eventually(
            lambda: next((entry for entry in lines if entry["event"] == logged), None),
            within_s=PATIENCE_S,
            what=f"a log line {logged}",
        )
    assert line["subject"] == subject
    assert "this is no " in line["error"] or "an agent speaks of its own node alone" in line["error"]
    await _works(made, "after-a-message")


async def test_facts_of_a_later_watchers_kinds_are_left_out(made: Stack) -> None:
    batch = {"epoch": "e", "number": 1, "facts": [{"fact": "put", "object": {"kind": "Spaceship"}}]}
    with capture_logs() as lines:
        await made.bus.publish(subjects.feed("e"), _bytes(batch))
        line = await eventually(
            lambda: next((entry for entry in lines if entry["event"] == "facts_left_out"), None),
            within_s=PATIENCE_S,
            what="a log line facts_left_out",
        )
    assert line["kind"] == "Spaceship"
    await _works(made, "after-a-later-kind")


def _gpus(*gpus: dict[str, Any], node: str = "n9", **rest: Any) -> dict[str, Any]:
    return {"node": node, "boot_id": "b", "gpus": list(gpus), **rest}


INVENTORIES: list[tuple[str, Any, str]] = [
    ("no JSON", b"{", "this is no Inventory"),
    ("fields missing", {"node": "n9"}, "missing required field `boot_id`"),
    ("a word for memory", _gpus(GPU | {"uuid": "a", "memory_mib": "much"}), "Expected `int`, got `str`"),
    ("negative memory", _gpus(GPU | {"uuid": "a", "memory_mib": -1}), "memory_mib is -1"),
    ("more memory than a number holds", _gpus(GPU | {"uuid": "a", "memory_mib": HUGE}), "memory_mib is 1000"),
    ("an unknown state", _gpus(GPU | {"uuid": "a", "state": "sleepy"}), "Invalid enum value"),
    ("an unknown strategy", _gpus(GPU | {"uuid": "a"}, strategies=["magic"]), "Invalid enum value"),
    ("the same GPU twice", _gpus(GPU | {"uuid": "a"}, GPU | {"uuid": "a", "index": 1}), "names GPU a twice"),
    ("a GPU without a name", _gpus(GPU | {"uuid": ""}), "uuid is empty"),
    ("another node's name", _gpus(node="n0"), "speaks of node 'n0'"),
]


@pytest.mark.parametrize(("payload", "words"), [row[1:] for row in INVENTORIES], ids=[row[0] for row in INVENTORIES])
async def test_a_malformed_inventory_is_logged_and_ignored(made: Stack, payload: Any, words: str) -> None:
    """Under a separate key, as a broken or foreign agent would write it."""
    kv = made.bus.kv(subjects.KV_NODES)
    with capture_logs() as lines:
        await kv.put("n9", _bytes(payload))
        await eventually(
            lambda: [
                entry for entry in lines if entry["event"] == "bus_watch_handler_failed" and words in entry["error"]
            ],
            within_s=PATIENCE_S,
            what=f"a log line that says {words}",
        )
    await _works(made, "after-an-inventory")
    await kv.delete("n9")


async def test_an_unknown_node_command_has_no_responder(made: Stack) -> None:
    with pytest.raises(NoResponder):
        await made.bus.request(subjects.node_command("n0", "dance"), b"{}", timeout_s=5)
    await _works(made, "after-a-dance")


ABSURD: list[tuple[str, dict[str, Any]]] = [
    ("more CPU than a number holds", {"cpu": str(HUGE)}),
    ("negative memory", {"memory": "-5Gi"}),
    ("words for pods", {"pods": "many"}),
    ("an exponent without end", {"cpu": "1e999999999"}),
]


@pytest.mark.parametrize("amounts", [row[1] for row in ABSURD], ids=[row[0] for row in ABSURD])
async def test_a_node_of_absurd_size_does_not_end_the_leader(made: Stack, amounts: dict[str, Any]) -> None:
    """It may be refused, or be listed with nothing to offer; other nodes are not affected."""
    node = node_object({"name": "absurd"})
    node["status"]["allocatable"] = node["status"]["allocatable"] | amounts
    await apply(made.bus, [node])
    await _works(made, "beside-the-absurd")
    await _delete(made, "Node", "absurd")


async def test_a_grant_of_absurd_size_does_not_end_the_leader(made: Stack) -> None:
    """Only the watcher may write grants, but a cluster without the policies may contain any grant."""
    share = {"node": "n0", "uuid": "g", "memory_mib": HUGE, "compute_milli": -1}
    grant = {"grant_id": "x", "term": 1, "containers": {"c": {"strategy": "advisory", "gpus": [share]}}}
    pod = _manifest("Pod", "spoofed", **_pod({}))["objects"][0]
    pod["metadata"]["annotations"] = {"kerf.dev/grant": msgspec.json.encode(grant).decode()}
    pod["spec"]["nodeName"] = "n0"
    await apply(made.bus, [pod])
    await _works(made, "beside-the-spoofed")


@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage", "example.com/thing"])
async def test_a_bound_pod_of_absurd_size_does_not_end_the_leader(made: Stack, resource: str) -> None:
    """Any user may create a pod that names its node; the API server accepts 9E of any resource."""
    pod = _manifest("Pod", "colossus")["objects"][0]
    pod["spec"] = {
        "nodeName": "n0",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {resource: "9E"}}}],
    }
    await apply(made.bus, [pod])
    await _works(made, "beside-the-colossus")
    await _delete(made, "Pod", "colossus", namespace="default")
    await _works(made, "after-the-colossus")
