"""The real controllers of Kubeflow Trainer and of JobSet, on which it builds, with Kerf.

Source: kubeflow/trainer v2.3.0 `examples/flux`, `manifests/base`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.neighbours import (
    Neighbour,
    all_bound,
    applied,
    bound_by,
    documents,
    jobset_controller,
    neighbour,
    reviewed_world,
)
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def trainer(plane: ControlPlane) -> Iterator[Neighbour]:
    with jobset_controller(plane), neighbour(plane, "trainer") as made:
        base = made.source / "manifests/base"
        made.install(*sorted((base / "crds").glob("trainer.*.yaml")))
        made.register(base / "webhook/manifests.yaml")
        configuration = made.configured({
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration",
            "leaderElection": {"leaderElect": False}, "certManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": made.port},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{made.health_port}"},
            "metrics": {"bindAddress": "0"},
        })  # fmt: skip
        # Its certificate's folder is no setting: it is below the one for temporary files.
        folder = made.state / "k8s-webhook-server"
        folder.mkdir()
        (folder / "serving-certs").symlink_to(made.certificates)
        made.start(
            f"--config={configuration}",
            "--feature-gates=TrainJobStatus=false",
            environment={"TMPDIR": str(made.state)},
        )
        yield made


def example(trainer: Neighbour) -> list[dict[str, Any]]:
    """A runtime, and a job of two nodes with a GPU each in it."""
    folder = trainer.source / "examples/flux"
    return [*documents(folder / "flux-runtime.yaml"), *documents(folder / "lammps-train-gpus.yaml")]


async def test_the_nodes_of_an_examples_job_are_bound(plane: ControlPlane, trainer: Neighbour) -> None:
    async with reviewed_world(plane, "trainer", nodes=2, gpus=1) as world, applied(world, example(trainer), trainer):
        found = await all_bound(world, 2, trainer)
        assert len({pod["spec"]["nodeName"] for pod in found}) == 2


async def test_no_node_of_a_job_is_bound_where_not_all_fit(plane: ControlPlane, trainer: Neighbour) -> None:
    async with reviewed_world(plane, "trainer", nodes=1, gpus=1) as world, applied(world, example(trainer), trainer):
        assert not await bound_by(world, 2, lambda pod: pod["metadata"]["name"], waiting=2)
