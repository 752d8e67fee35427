"""The real controller of JobSet, its webhooks and its project's examples, with Kerf.

No example of the project has GPUs: the namespace gives each container one. The examples are those of v0.7.3, the last
release whose module has them; the controller is v0.12.0. Source: kubernetes-sigs/jobset `site/static/examples`,
`pkg/webhooks/pod_webhook.go`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.neighbours import (
    Neighbour,
    all_bound,
    applied,
    bound_by,
    documents,
    gpus_for_each_container,
    jobset_controller,
    label_nodes,
    runs,
)
from tests.support.whole import Whole, whole
from tools import binaries
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
_NUMBERS = itertools.count(1)
PARALLEL, EXCLUSIVE = "simple/paralleljobs.yaml", "simple/exclusive-placement.yaml"
"""A job of four pods and one of one; three jobs of three pods, each in a node pool of its own."""
IN_ORDER = "startup-policy/startup-driver-ready.yaml"
"""A driver, and four workers when it is ready."""
POOL = "cloud.google.com/gke-nodepool"
JOB = "jobset.sigs.k8s.io/job-key"


@pytest.fixture(scope="module")
def jobset(plane: ControlPlane) -> Iterator[Neighbour]:
    with jobset_controller(plane) as made:
        yield made


@contextlib.asynccontextmanager
async def world_of(plane: ControlPlane, *, nodes: int, gpus: int) -> AsyncIterator[Whole]:
    async with whole(plane, f"jobset-{next(_NUMBERS)}", nodes=nodes, gpus=gpus) as world:
        await gpus_for_each_container(world)
        yield world


def example(name: str) -> list[dict[str, Any]]:
    return documents(binaries.source("jobset-examples") / "site/static/examples" / name)


def job(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"][JOB])


async def test_the_jobs_of_an_example_are_bound(plane: ControlPlane, jobset: Neighbour) -> None:
    async with world_of(plane, nodes=2, gpus=3) as world, applied(world, example(PARALLEL), jobset):
        found = await all_bound(world, 5, jobset)
        assert sorted(Counter(map(job, found)).values()) == [1, 4]


async def test_no_pod_is_bound_where_a_part_of_its_jobs_fits(plane: ControlPlane, jobset: Neighbour) -> None:
    async with world_of(plane, nodes=2, gpus=2) as world, applied(world, example(PARALLEL), jobset):
        assert not await bound_by(world, 5, job, waiting=5)


async def test_jobs_in_topologies_of_their_own_follow_their_first_pods(plane: ControlPlane, jobset: Neighbour) -> None:
    """The other pods of a job are created when its first one has a node, whose topology they then name."""
    async with world_of(plane, nodes=3, gpus=3) as world:
        await label_nodes(world, lambda number: {POOL: f"pool-{number}"})
        async with applied(world, example(EXCLUSIVE), jobset):
            found = await all_bound(world, 9, jobset)
            nodes = {(job(pod), pod["spec"]["nodeName"]) for pod in found}
            assert len(nodes) == len({node for _, node in nodes}) == 3


async def test_jobs_that_start_in_order_are_bound_in_order(plane: ControlPlane, jobset: Neighbour) -> None:
    async with world_of(plane, nodes=2, gpus=3) as world, applied(world, example(IN_ORDER), jobset):
        (driver,) = await all_bound(world, 1, jobset)
        await runs(world, driver)
        await all_bound(world, 5, jobset)
