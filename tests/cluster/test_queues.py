"""Queues on a real API server: the ConfigMap as a fact, with rights on this one only."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from shared.bus.port import NoResponder
from shared.contracts import queries
from shared.contracts.base import decode, encode
from shared.contracts.queries import QueuesAnswer, QueuesQuery
from shared.kube import resources
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count(1)
POLICY = resources.POLICY.path("kerf-policy", "kerf-system")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        yield made


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    """Two nodes of two GPUs."""
    async with whole(plane, f"queues-{next(_NUMBERS)}") as cluster:
        yield cluster
        await asyncio.to_thread(plane.request, "DELETE", POLICY)


async def write(world: Whole, text: str, name: str = "kerf-policy") -> None:
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kerf-system"},
        "data": {"queues.yaml": text},
    }
    await world.ask(
        "PATCH",
        resources.POLICY.path(name, "kerf-system") + "?fieldManager=tests&force=true",
        document,
        content_type="application/apply-patch+yaml",
    )


async def standing(world: Whole) -> QueuesAnswer:
    return decode(await world.made.bus.request(queries.QUEUES.subject, encode(QueuesQuery())), QueuesAnswer)


async def in_force(world: Whole, names: list[str]) -> None:
    async def there() -> bool:
        try:
            return [queue.name for queue in (await standing(world)).queues] == names
        except NoResponder:
            return False  # no instance of placement leads yet

    await eventually(there, within_s=WITHIN_S, every_s=0.05, what=f"the queues {names}")


async def pod(world: Whole, name: str, queue: str) -> None:
    limits = {"kerf.dev/gpu": "1"}
    container = {"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}
    document = {"metadata": {"name": name, "labels": {"kerf.dev/queue": queue}}, "spec": {"containers": [container]}}
    await world.ask("POST", resources.POD.collection(world.namespace), document)


async def test_a_limit_holds_is_reported_and_is_raised_by_an_edit(world: Whole) -> None:
    await write(world, "queues: [{name: other}]", name="of-another-owner")
    await write(world, "queues: [{name: a, limit: {gpus: 1}}, {name: b}]")
    await in_force(world, ["a", "b"])
    await pod(world, "first", "a")
    await world.bound("first")
    await pod(world, "second", "a")
    await pod(world, "third", "b")
    await world.bound("third")
    event = await world.event("second", "FailedScheduling")
    assert "queue a uses 1 GPU of its limit of 1 GPU" in event["message" if "message" in event else "note"]
    await write(world, "queues: [{name: a, limits: {gpus: 2}}]")

    async def refused() -> bool:
        return "unknown field `limits`" in (await standing(world)).invalid

    await eventually(refused, within_s=WITHIN_S, every_s=0.05, what="the invalid text told")
    await in_force(world, ["a", "b"])
    await write(world, "queues: [{name: a, limit: {gpus: 2}}, {name: b}]")
    await world.bound("second")


async def test_the_queue_of_a_bound_pod_stays(world: Whole) -> None:
    await write(world, "queues: [{name: a}, {name: b}]")
    await in_force(world, ["a", "b"])
    await pod(world, "settled", "a")
    await world.bound("settled")
    change: Any = {"metadata": {"labels": {"kerf.dev/queue": "b"}}}
    status, answer = await asyncio.to_thread(
        world.plane.request,
        "PATCH",
        resources.POD.path("settled", world.namespace),
        change,
        content_type="application/merge-patch+json",
    )
    assert status in (403, 422)
    assert "[bound-queue]" in json.loads(answer)["message"]


async def test_the_watcher_may_read_no_other_config_map(plane: ControlPlane) -> None:
    review = {
        "user": "system:serviceaccount:kerf-system:kerf-watcher",
        "resourceAttributes": {"verb": "list", "resource": "configmaps", "namespace": "kerf-system"},
    }
    for name, allowed in (("kerf-policy", True), ("kerf-schedulers", False), ("", False)):
        spec = review | {"resourceAttributes": review["resourceAttributes"] | {"name": name}}  # type: ignore[operator]
        status, answer = await asyncio.to_thread(
            plane.request, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec}
        )
        assert status == 201, answer
        assert json.loads(answer)["status"]["allowed"] is allowed, name
