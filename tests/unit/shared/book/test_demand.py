"""What a pod requests from a node, as kube-scheduler counts it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.book.demand import demand_of
from shared.model.objects import Container, ContainerStatus, Pod, PodSpec, PodStatus, Resources
from tests.support import build


def container(name: str, restart: str | None = None, **requests: str) -> Container:
    return Container(
        name=name,
        resources=Resources(requests={k.replace("_", "-"): v for k, v in requests.items()}),
        restart_policy=restart,
    )


def cpu_of(*containers: Container, init: tuple[Container, ...] = (), **spec: object) -> int:
    pod = build.pod("p", containers=containers, init_containers=init, **spec)
    return demand_of(pod).cpu_milli


@pytest.mark.parametrize(
    ("what", "cpu", "wanted"),
    [
        ("containers run together", cpu_of(container("a", cpu="1"), container("b", cpu="500m")), 1500),
        (
            "an init container runs alone, before",
            cpu_of(container("a", cpu="1"), init=(container("i", cpu="3"),)),
            3000,
        ),
        (
            "init containers run one after the other",
            cpu_of(container("a", cpu="1"), init=(container("i", cpu="2"), container("j", cpu="2"))),
            2000,
        ),
        (
            "a sidecar runs beside the app",
            cpu_of(container("a", cpu="1"), init=(container("s", "Always", cpu="1"),)),
            2000,
        ),
        (
            "an init container after a sidecar runs beside it",
            cpu_of(container("a", cpu="1"), init=(container("s", "Always", cpu="1"), container("i", cpu="3"))),
            4000,
        ),
        (
            "an init container before a sidecar does not",
            cpu_of(container("a", cpu="1"), init=(container("i", cpu="3"), container("s", "Always", cpu="1"))),
            3000,
        ),
        ("overhead comes on top", cpu_of(container("a", cpu="1"), overhead={"cpu": "250m"}), 1250),
        (
            "pod-level resources take the place of the sum",
            cpu_of(container("a", cpu="1"), container("b", cpu="1"), resources=Resources(requests={"cpu": "5"})),
            5000,
        ),
        ("fractions are rounded up", cpu_of(container("a", cpu="0.0001")), 1),
    ],
)
def test_cpu_is_counted_as_kube_scheduler_counts_it(what: str, cpu: int, wanted: int) -> None:
    assert cpu == wanted, what


def given(name: str, *, actuated: str, allocated: str) -> ContainerStatus:
    """By the kubelet, in cores."""
    body = {"name": name, "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actuated}}}
    return msgspec.convert(body, ContainerStatus)


def told(pod: Pod, *, why: str = "", **fields: Any) -> Pod:
    """The pod with a resize that is pending for that reason."""
    pending = [{"type": "PodResizePending", "status": "True", "reason": why}] if why else []
    told = msgspec.convert({"conditions": pending}, PodStatus)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(told, phase="Running", **fields))


@pytest.mark.parametrize(("what", "wants", "actuated", "allocated", "why", "counts"), [
    ("a growth that does not fit now", "8", "1", "1", "Deferred", 8000),
    ("a growth that can never fit", "1000", "1", "1", "Infeasible", 1000),
    ("a growth that is being carried out", "8", "1", "8", "", 8000),
    ("a shrink that has not been carried out", "1", "8", "8", "", 8000),
    ("a shrink that is being carried out", "1", "8", "1", "", 8000),
    ("a growth that was given up while a smaller one is carried out", "1000", "2", "4", "Infeasible", 4000),
])  # fmt: skip
def test_a_container_that_is_resized_counts_as_kube_scheduler_counts_it(
    what: str, wants: str, actuated: str, allocated: str, why: str, counts: int
) -> None:
    has = (given("a", actuated=actuated, allocated=allocated), given("gone", actuated="99", allocated="99"))
    app = build.pod("p", containers=(container("a", cpu=wants, memory="1Gi"),))
    demand = demand_of(told(app, why=why, container_statuses=has))
    assert (demand.cpu_milli, demand.memory_bytes) == (counts, 1 << 30), what
    beside = build.pod(
        "p", containers=(container("b", cpu="1"),), init_containers=(container("a", "Always", cpu=wants),)
    )
    assert demand_of(told(beside, why=why, init_container_statuses=has)).cpu_milli == 1000 + counts, what
    before = build.pod("p", containers=(container("b", cpu="1"),), init_containers=(container("a", cpu="1"),))
    assert demand_of(told(before, why=why, init_container_statuses=has)).cpu_milli == 1000, "it has ended"
    whole = build.pod("p", containers=(container("b", cpu="1"),), resources=Resources(requests={"cpu": wants}))
    own = {"resources": has[0].resources, "allocated_resources": has[0].allocated_resources}
    assert demand_of(told(whole, why=why, **own)).cpu_milli == counts, what


def test_kerfs_own_resources_are_not_read_of_a_status() -> None:
    pod = build.gpu_pod("p", memory="1Gi")
    has = {"name": "c", "resources": {"requests": {"kerf.dev/slot": "9", "cpu": "9"}}}
    seen = told(pod, container_statuses=(msgspec.convert(has, ContainerStatus),))
    assert (demand_of(seen).extended, demand_of(seen).cpu_milli) == ((("kerf.dev/slot", 1),), 0)


def test_a_limit_without_a_request_counts_as_the_request() -> None:
    pod = build.pod("p", containers=(Container(name="c", resources=Resources(limits={"memory": "1Gi"})),))
    assert demand_of(pod).memory_bytes == 1 << 30


def test_gpu_resources_are_not_charged_to_the_node_but_the_slot_is() -> None:
    demand = demand_of(build.gpu_pod("p", memory="1Gi", compute=10))
    assert demand.extended == (("kerf.dev/slot", 1),)


def test_an_empty_pod_needs_nothing() -> None:
    assert demand_of(build.pod("p")).cpu_milli == 0
    assert PodSpec().containers == ()
