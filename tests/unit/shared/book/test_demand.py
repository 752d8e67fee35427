"""What a pod requests from a node, as kube-scheduler counts it."""

from __future__ import annotations

import pytest

from shared.book.demand import demand_of
from shared.model.objects import Container, PodSpec, Resources
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


def test_a_limit_without_a_request_counts_as_the_request() -> None:
    pod = build.pod("p", containers=(Container(name="c", resources=Resources(limits={"memory": "1Gi"})),))
    assert demand_of(pod).memory_bytes == 1 << 30


def test_gpu_resources_are_not_charged_to_the_node_but_the_slot_is() -> None:
    demand = demand_of(build.gpu_pod("p", memory="1Gi", compute=10))
    assert demand.extended == (("kerf.dev/slot", 1),)


def test_an_empty_pod_needs_nothing() -> None:
    assert demand_of(build.pod("p")).cpu_milli == 0
    assert PodSpec().containers == ()
