"""From a user's manifest to a slice on a node, through a real API server with every policy in force."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from cli.ask import ask
from shared.contracts import metrics_queries, queries
from shared.contracts.base import decode, encode
from shared.contracts.metrics_queries import Span, TraceAnswer, TraceQuery
from shared.contracts.queries import InspectAnswer, InspectQuery
from shared.model.grant import decode_grant
from tests.cluster.test_admission_webhook import DATA, webhook
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        yield made


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    async with whole(plane, f"way-{next(_NUMBERS)}") as cluster:
        yield cluster


async def inspect(world: Whole) -> InspectAnswer:
    return await ask(world.made.bus, queries.INSPECT.subject, InspectQuery(), InspectAnswer)


async def test_a_canonical_pod_is_bound_with_its_grant_and_has_an_event(world: Whole) -> None:
    pod = await world.pod("one", gpu_memory="20Gi")
    assert pod["spec"]["schedulerName"] == "kerf"
    seen = await world.bound("one")
    grant = decode_grant(seen["metadata"]["annotations"]["kerf.dev/grant"])
    (share,) = grant.containers["main"].gpus
    assert (share.node, share.memory_mib) == (seen["spec"]["nodeName"], 20_480)
    event = await world.event("one", "Scheduled")
    assert event["message"] == f"Successfully assigned {world.namespace}/one to {share.node}"


async def test_gpushares_statefulset_runs_unchanged(plane: ControlPlane, world: Whole) -> None:
    async with webhook(plane):
        document = yaml.safe_load((DATA / "gpushare-statefulset.yaml").read_text())
        await world.ask("POST", f"/apis/apps/v1/namespaces/{world.namespace}/statefulsets", document)
        shares = []
        for number in range(3):
            seen = await world.bound(f"binpack-1-{number}")
            grant = decode_grant(seen["metadata"]["annotations"]["kerf.dev/grant"])
            shares += [share for container in grant.containers.values() for share in container.gpus]
    assert [share.memory_mib for share in shares] == [3072] * 3
    assert len({share.uuid for share in shares}) == 1, "they are packed onto one GPU"


async def test_a_pod_that_does_not_fit_shows_the_reason_in_kubectl_describe(world: Whole) -> None:
    await world.pod("huge", gpu="3")
    event = await world.event("huge", "FailedScheduling")
    assert event["type"] == "Warning"
    assert "needs 3 GPUs on one node, the node has 2" in event["message"]
    assert "ask for at most 2 GPUs" in event["message"]

    async def condition() -> Any:
        conditions = (await world.seen("Pod", "huge"))["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), None)

    said = await eventually(condition, within_s=WITHIN_S, what="the condition PodScheduled=False")
    assert said["reason"] == "Unschedulable"


async def test_what_a_deleted_pod_had_goes_to_the_next(world: Whole) -> None:
    """All GPUs are taken; the last pod waits until a node has released a slice."""
    for number in range(4):
        await world.pod(f"full-{number}", gpu="1")
    for number in range(4):
        await world.bound(f"full-{number}")
    await world.pod("next", gpu="1")
    await world.event("next", "FailedScheduling")
    first = (
        decode_grant((await world.seen("Pod", "full-0"))["metadata"]["annotations"]["kerf.dev/grant"])
        .containers["main"]
        .gpus[0]
    )
    await world.delete_pod("full-0")
    seen = await world.bound("next")
    assert decode_grant(seen["metadata"]["annotations"]["kerf.dev/grant"]).containers["main"].gpus[0].uuid == first.uuid
    holders = [
        pod.name
        for node in (await inspect(world)).nodes
        for gpu in node.gpus
        if gpu.uuid == first.uuid
        for pod in gpu.pods
    ]
    assert holders == ["next"]


async def test_one_trace_contains_spans_of_every_service(world: Whole) -> None:
    await world.pod("traced", gpu_memory="1Gi")
    await world.bound("traced")
    query = TraceQuery(namespace=world.namespace, name="traced")

    async def whole_trace() -> tuple[Span, ...] | None:
        """Spans travel twice a second, so there may be none yet."""
        spans = decode(
            await world.made.bus.request(metrics_queries.TRACE.subject, encode(query), timeout_s=10), TraceAnswer
        ).spans
        return (
            spans
            if {"admission", "placement", "bind"} <= {s.name for s in spans} and len({s.service for s in spans}) >= 3
            else None
        )

    spans = await eventually(
        whole_trace, within_s=WITHIN_S, every_s=0.2, what="spans of watcher, placement and node agent"
    )
    assert len({s.trace_id for s in spans}) == 1
    (root,) = [s for s in spans if s.name == "admission"]
    assert root.parent_id == ""
    assert any("slice" in s.name for s in spans), [s.name for s in spans]
    known = {s.span_id for s in spans}
    assert all(s.parent_id in known for s in spans if s is not root)
