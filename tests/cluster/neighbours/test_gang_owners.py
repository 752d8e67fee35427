"""Gangs of Ray, LeaderWorkerSet, Grove, KAI and Volcano on a real API server: objects and pods as they are written.

What a gang's pods are told while one of them lacks, pod by pod. The controllers themselves run in the tests beside this
one, except for Grove's and KAI's, which no module has. What those write is taken from: ai-dynamo/grove
`scheduler/api/core/v1alpha1`, NVIDIA/KAI-Scheduler `pkg/podgrouper`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from shared.kube.resources import GANG_SOURCES
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count(1)
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

LWS = "leaderworkerset.sigs.k8s.io"
"""The prefix of LeaderWorkerSet's labels."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of owner: its object, and the labels and annotations of its pods, those first that must wait."""

    group: str
    kind: str
    spec: dict[str, Any]
    labels: tuple[dict[str, str], ...]
    annotations: tuple[dict[str, str], ...] = ()
    says: str = ""
    """What the Event of the pods says that wait for the last one."""

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"


OWNERS = {
    "ray": Owner(
        group="ray.io",
        kind="RayCluster",
        spec={
            "headGroupSpec": {"rayStartParams": {}},
            "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "minReplicas": 2, "maxReplicas": 4}],
        },
        labels=tuple(
            {"ray.io/cluster": "train", "ray.io/node-type": kind, "ray.io/group": group}
            for kind, group in (("worker", "gpu"), ("worker", "gpu"), ("head", "headgroup"))
        ),
        says="0 of the 1 pod of subgroup headgroup",
    ),
    "leader-worker-set": Owner(
        group="leaderworkerset.x-k8s.io",
        kind="LeaderWorkerSet",
        spec={"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": {"size": 3}},
        labels=tuple(
            {f"{LWS}/name": "train", f"{LWS}/group-index": "0", f"{LWS}/group-key": "9f2b", f"{LWS}/worker-index": i}
            for i in ("1", "2", "0")
        ),
        says="0 of the 1 pod of subgroup leader",
    ),
    "grove": Owner(
        group="scheduler.grove.io",
        kind="PodGang",
        spec={
            "podgroups": [
                {"name": "train-decode", "podReferences": [], "minReplicas": 2},
                {"name": "train-router", "podReferences": [], "minReplicas": 1},
            ]
        },
        labels=tuple(
            {"grove.io/podgang": "train", "grove.io/podclique": f"train-{part}"}
            for part in ("decode", "decode", "router")
        ),
        says="0 of the 1 pod of subgroup train-router",
    ),
    "kai": Owner(
        group="scheduling.run.ai",
        kind="PodGroup",
        spec={"queue": "q", "subGroups": [{"name": "decode", "minMember": 2}, {"name": "router", "minMember": 1}]},
        labels=tuple({"kai.scheduler/subgroup-name": part} for part in ("decode", "decode", "router")),
        annotations=({"pod-group-name": "train"},) * 3,
        says="0 of the 1 pod of subgroup router",
    ),
    "volcano": Owner(
        group="scheduling.volcano.sh",
        kind="PodGroup",
        spec={"minMember": 3, "minTaskMember": {"ps": 1, "worker": 2}},
        labels=({},) * 3,
        annotations=tuple(
            {"scheduling.k8s.io/group-name": "train", "volcano.sh/task-spec": task}
            for task in ("worker", "worker", "ps")
        ),
        says="0 of the 1 pod of subgroup ps",
    ),
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        for owner in OWNERS.values():
            source = source_of(owner)
            schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
            version = {"name": source.prefix.rpartition("/")[2], "served": True, "storage": True, "schema": schema}
            status, answer = made.request("POST", CRDS, {
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{owner.plural}.{owner.group}"},
                "spec": {
                    "group": owner.group, "scope": "Namespaced", "versions": [version],
                    "names": {"kind": owner.kind, "plural": owner.plural},
                },
            })  # fmt: skip
            assert status == 201, answer
        yield made


def source_of(owner: Owner) -> Any:
    return next(r for r in GANG_SOURCES if (r.group, r.plural) == (owner.group, owner.plural))


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[Whole]:
    """Two nodes of two GPUs."""

    async def all_served() -> bool:
        paths = [source_of(owner).collection() for owner in OWNERS.values()]
        return all([(await asyncio.to_thread(plane.request, "GET", path))[0] == 200 for path in paths])

    await eventually(all_served, within_s=WITHIN_S, what="all kinds served")
    async with whole(plane, f"owners-{next(_NUMBERS)}") as cluster:
        yield cluster


@pytest.mark.parametrize("name", OWNERS)
async def test_its_pods_are_bound_when_each_subgroup_has_its_minimum(world: Whole, name: str) -> None:
    owner = OWNERS[name]
    source = source_of(owner)
    document = {
        "apiVersion": source.prefix.removeprefix("apis/"),
        "kind": owner.kind,
        "metadata": {"name": "train"},
        "spec": owner.spec,
    }
    await world.ask("POST", source.collection(world.namespace), document)
    limits = {"kerf.dev/gpu": "1"}
    spec = {"containers": [{"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}]}
    annotations = owner.annotations or ({},) * len(owner.labels)
    for number, (labels, notes) in enumerate(zip(owner.labels, annotations, strict=True)):
        meta = {"name": f"train-{number}", "labels": labels, "annotations": notes}
        if number == len(owner.labels) - 1:
            event = await world.event("train-0", "FailedScheduling")
            assert owner.says in event["message"]
            assert not (await world.seen("Pod", "train-0"))["spec"].get("nodeName")
        await world.ask("POST", f"/api/v1/namespaces/{world.namespace}/pods", {"metadata": meta, "spec": spec})
    for number in range(len(owner.labels)):
        await world.bound(f"train-{number}")
