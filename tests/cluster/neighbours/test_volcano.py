"""Volcano's real controllers, admission and scheduler, and its project's example, with Kerf.

Volcano's controllers create a job's pods when its PodGroup is `Inqueue`, which its scheduler says, also where Kerf
places the pods. So it runs here, as its project configures it. Source: volcano-sh/volcano v1.14.1
`example/MindSpore-example`, `installer`, `pkg/controllers/job/job_controller_actions.go`.
"""

from __future__ import annotations

import contextlib
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
    lws_controller,
    neighbour,
    reviewed_world,
)
from tests.support.whole import Whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
EXAMPLE = "example/MindSpore-example/mindspore_gpu/mindspore-gpu.yaml"
"""A master without GPUs and two workers with one each; all three start together."""
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
TASK = "volcano.sh/task-spec"
LWS = "docs/examples/sample/gang-scheduling/lws-sample-volcano.yaml"
"""Two groups of four pods without GPUs, with Volcano's scheduler; a PodGroup for each group."""
INSTALLER = "installer/volcano-development.yaml"
"""What its project installs: its webhooks and its scheduler's configuration, among others."""


@pytest.fixture(scope="module")
def volcano(plane: ControlPlane) -> Iterator[Neighbour]:
    """Its controllers, beside its admission and its scheduler."""
    with (
        neighbour(plane, "volcano-controllers") as made,
        neighbour(plane, "volcano-admission") as admission,
        neighbour(plane, "volcano-scheduler") as scheduler,
    ):
        made.install(*sorted((made.source / "config/crd").glob("*/bases/*.yaml")))
        made.beside = (admission, scheduler)
        admission.register(made.source / INSTALLER)
        config, folder = f"--kubeconfig={plane.kubeconfig()}", admission.certificates
        admission.start(
            config, "--listen-address=127.0.0.1", f"--port={admission.port}", "--webhook-url=https://127.0.0.1",
            "--enabled-admission=/jobs/mutate,/jobs/validate,/podgroups/validate,/queues/mutate,/queues/validate,"
            "/hypernodes/validate,/cronjobs/validate",
            f"--tls-cert-file={folder}/tls.crt", f"--tls-private-key-file={folder}/tls.key",
            f"--ca-cert-file={folder}/ca.crt",
        )  # fmt: skip
        file = scheduler.state / "scheduler.conf"
        (configured,) = (
            one["data"]["volcano-scheduler.conf"]
            for one in documents(made.source / INSTALLER)
            if one["metadata"]["name"] == "volcano-scheduler-configmap"
        )
        file.write_text(configured)
        scheduler.start(config, f"--scheduler-conf={file}", "--leader-elect=false", "--cache-dumper=false")
        made.start(config, "--leader-elect=false")
        yield made


@contextlib.asynccontextmanager
async def world_of(plane: ControlPlane, *, nodes: int, gpus: int) -> AsyncIterator[Whole]:
    labels = {"take-over.kerf.dev/volcano": "true"}
    async with reviewed_world(plane, "volcano", nodes=nodes, gpus=gpus, labels=labels) as world:
        yield world


def task(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["annotations"][TASK])


async def test_the_tasks_of_an_example_are_bound(plane: ControlPlane, volcano: Neighbour) -> None:
    found = documents(volcano.source / EXAMPLE)
    async with world_of(plane, nodes=2, gpus=1) as world, applied(world, found, volcano):
        bound = await all_bound(world, 3, volcano)
        assert Counter(map(task, bound)) == {"mpimaster": 1, "mpiworker": 2}


async def test_a_set_of_leaders_and_workers_written_for_volcano_is_bound_group_by_group(
    plane: ControlPlane, volcano: Neighbour
) -> None:
    """Its controller writes a PodGroup of Volcano's for each group. Seven GPUs: one group runs, and the other one has
    no pod that does."""
    with lws_controller(plane, scheduler="volcano") as lws:
        async with world_of(plane, nodes=1, gpus=7) as world:
            await gpus_for_each_container(world)
            async with applied(world, documents(lws.source / LWS), lws):
                bound = await bound_by(world, 8, lambda pod: pod["metadata"]["labels"][GROUP], waiting=4)
                assert list(bound.values()) == [4]
                groups = await world.ask(
                    "GET", f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{world.namespace}/podgroups"
                )
                assert [group["spec"]["minMember"] for group in groups["items"]] == [4, 4]


async def test_no_task_is_bound_where_not_all_fit(plane: ControlPlane, volcano: Neighbour) -> None:
    found = documents(volcano.source / EXAMPLE)
    async with world_of(plane, nodes=1, gpus=1) as world, applied(world, found, volcano):
        assert not await bound_by(world, 3, task, waiting=3)
