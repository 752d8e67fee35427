"""The real controller of LeaderWorkerSet, its webhooks and its project's examples, with Kerf.

Source: kubernetes-sigs/lws v0.9.0 `docs/examples`, `pkg/webhooks/pod_webhook.go`, `pkg/controllers/pod_controller.go`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.neighbours import (
    Neighbour,
    all_bound,
    applied,
    bound_by,
    documents,
    gpus_for_each_container,
    label_nodes,
    lws_controller,
    reviewed_world,
    runs,
)
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
GROUP, INDEX = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
SGLANG = "docs/examples/sglang/lws.yaml"
"""Two groups of a leader and a worker, each pod with one GPU."""
EXCLUSIVE = "docs/examples/sample/lws-exclusive-placement.yaml"
"""Three groups of four pods, each group in a node pool of its own."""
POOL = "cloud.google.com/gke-nodepool"


@pytest.fixture(scope="module")
def lws(plane: ControlPlane) -> Iterator[Neighbour]:
    with lws_controller(plane) as made:
        yield made


def group(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"][GROUP])


async def test_the_groups_of_an_example_are_bound(plane: ControlPlane, lws: Neighbour) -> None:
    async with (
        reviewed_world(plane, "lws", nodes=2, gpus=2) as world,
        applied(world, documents(lws.source / SGLANG), lws),
    ):
        found = await all_bound(world, 4, lws)
        assert Counter(map(group, found)) == {"0": 2, "1": 2}


async def test_a_group_is_not_bound_in_part(plane: ControlPlane, lws: Neighbour) -> None:
    """Three GPUs for two groups of two pods: one group runs, and of the other no pod does."""
    async with (
        reviewed_world(plane, "lws", nodes=1, gpus=3) as world,
        applied(world, documents(lws.source / SGLANG), lws),
    ):
        bound = await bound_by(world, 4, group, waiting=2)
        assert list(bound.values()) == [2]


async def test_a_group_in_a_topology_of_its_own_is_bound_after_its_leader(plane: ControlPlane, lws: Neighbour) -> None:
    """Its workers are created when its leader has a node, whose topology they then name."""
    async with reviewed_world(plane, "lws", nodes=3, gpus=4) as world:
        await label_nodes(world, lambda number: {POOL: f"pool-{number}"})
        await gpus_for_each_container(world)
        async with applied(world, documents(lws.source / EXCLUSIVE), lws):
            found = await all_bound(world, 12, lws)
            nodes = {(group(pod), pod["spec"]["nodeName"]) for pod in found}
            assert len(nodes) == len({node for _, node in nodes}) == 3


async def test_with_leader_ready_the_workers_follow_their_leader(plane: ControlPlane, lws: Neighbour) -> None:
    """The example with one field more: no example of the project sets it."""
    found = documents(lws.source / SGLANG)
    found[0]["spec"] |= {"startupPolicy": "LeaderReady", "replicas": 1}
    async with reviewed_world(plane, "lws", nodes=1, gpus=2) as world, applied(world, found, lws):
        (leader,) = await all_bound(world, 1, lws)
        assert leader["metadata"]["labels"][INDEX] == "0"
        await runs(world, leader)
        await all_bound(world, 2, lws)
