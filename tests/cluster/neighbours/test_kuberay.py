"""The real KubeRay operator and its project's examples, with Kerf.

Source: ray-project/kuberay v1.6.2 `ray-operator/config/samples`, `ray-operator/controllers/ray`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from shared.model.grant import decode_grant
from tests.support.neighbours import (
    GPUS_OF_NVIDIA,
    Neighbour,
    all_bound,
    applied,
    bound_by,
    documents,
    neighbour,
    reviewed_world,
)
from tests.support.whole import Whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
CLASSIFIER = "pytorch-resnet-image-classifier/ray-job.pytorch-image-classifier.yaml"
"""A RayJob: a head without GPUs, which is not Kerf's, and four workers with one each."""
HALVES = "ray-cluster.kai-gpu-sharing.yaml"
"""For KAI: a head, and two workers that share a GPU."""


@pytest.fixture(scope="module")
def kuberay(plane: ControlPlane) -> Iterator[Neighbour]:
    with neighbour(plane, "kuberay") as made:
        made.install(*sorted((made.source / "config/crd/bases").glob("*.yaml")))
        yield made


@contextlib.asynccontextmanager
async def world_of(
    plane: ControlPlane, kuberay: Neighbour, *, nodes: int, gpus: int, labels: Mapping[str, str], scheduler: str = ""
) -> AsyncIterator[Whole]:
    """`scheduler`: the batch scheduler that the operator is told of."""
    kuberay.start(
        "--metrics-addr=0",
        f"--health-probe-bind-address=127.0.0.1:{kuberay.health_port}",
        "--enable-leader-election=false",
        f"--batch-scheduler={scheduler}",
    )
    async with reviewed_world(plane, "ray", nodes=nodes, gpus=gpus, labels=labels) as world:
        yield world


ACCOUNT = {
    "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pytorch-distributed-training"},
}  # fmt: skip
"""Which the classifier's example asks its user to make."""


def example(kuberay: Neighbour, name: str) -> list[dict[str, Any]]:
    """Without KAI's queues, whose kind is not installed."""
    return [one for one in documents(kuberay.source / "config/samples" / name) if one["kind"] != "Queue"]


def name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


async def test_the_workers_of_an_example_are_bound(plane: ControlPlane, kuberay: Neighbour) -> None:
    """Its head counts as there: another scheduler places it."""
    async with (
        world_of(plane, kuberay, nodes=2, gpus=2, labels=GPUS_OF_NVIDIA) as world,
        applied(world, [ACCOUNT, *example(kuberay, CLASSIFIER)], kuberay),
    ):
        found = await all_bound(world, 4, kuberay, others=1)
        assert {pod["metadata"]["labels"]["ray.io/group"] for pod in found} == {"gpu-group"}


async def test_no_worker_is_bound_where_not_all_fit(plane: ControlPlane, kuberay: Neighbour) -> None:
    async with (
        world_of(plane, kuberay, nodes=1, gpus=3, labels=GPUS_OF_NVIDIA) as world,
        applied(world, [ACCOUNT, *example(kuberay, CLASSIFIER)], kuberay),
    ):
        assert not await bound_by(world, 4, name, waiting=4, others=1)


async def test_head_and_workers_written_for_kai_are_bound_on_halves_of_a_gpu(
    plane: ControlPlane, kuberay: Neighbour
) -> None:
    labels = {"take-over.kerf.dev/kai-scheduler": "true"}
    async with (
        world_of(plane, kuberay, nodes=1, gpus=1, labels=labels, scheduler="kai-scheduler") as world,
        applied(world, example(kuberay, HALVES), kuberay),
    ):
        found = await all_bound(world, 3, kuberay)
        grants = [decode_grant(text) for pod in found if (text := pod["metadata"]["annotations"].get("kerf.dev/grant"))]
        shares = [share for grant in grants for given in grant.containers.values() for share in given.gpus]
        assert [share.compute_milli for share in shares] == [500, 500]
