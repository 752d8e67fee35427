"""The real MPI operator and its project's example, with Kerf.

Source: kubeflow/mpi-operator v0.8.0 `examples/v2beta1`, `pkg/controller/mpi_job_controller.go`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.neighbours import (
    Neighbour,
    all_bound,
    applied,
    bound_by,
    documents,
    neighbour,
    reviewed_world,
)
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
EXAMPLE = "examples/v2beta1/tensorflow-benchmarks/tensorflow-benchmarks.yaml"
"""A launcher without GPUs, which is not Kerf's, and two workers with one each."""
ROLE = "training.kubeflow.org/job-role"


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Neighbour]:
    with neighbour(plane, "mpi-operator") as made:
        made.install(made.source / "manifests/base/kubeflow.org_mpijobs.yaml")
        made.start(f"--kubeConfig={plane.kubeconfig()}", "--lock-namespace=default")
        yield made


async def test_the_workers_of_an_example_are_bound(plane: ControlPlane, operator: Neighbour) -> None:
    """Its launcher counts as there: another scheduler places it."""
    found = documents(operator.source / EXAMPLE)
    async with reviewed_world(plane, "mpi", nodes=2, gpus=1) as world, applied(world, found, operator):
        bound = await all_bound(world, 2, operator, others=1)
        assert {pod["metadata"]["labels"][ROLE] for pod in bound} == {"worker"}


async def test_no_worker_is_bound_where_not_all_fit(plane: ControlPlane, operator: Neighbour) -> None:
    found = documents(operator.source / EXAMPLE)
    async with reviewed_world(plane, "mpi", nodes=1, gpus=1) as world, applied(world, found, operator):
        assert not await bound_by(world, 2, lambda pod: pod["metadata"]["name"], waiting=2, others=1)
