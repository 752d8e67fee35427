"""Pods of one controller are read once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.book.states import is_read_alike, pod_state, state_like
from shared.model import names
from shared.model.kube_object import OwnerReference
from shared.model.objects import (
    ContainerStatus,
    HeldResources,
    Pod,
    PodClaim,
    PodStatus,
    SchedulingGroup,
    WorkloadReference,
)
from tests.support import build

NOTES = {names.ANNOTATION_GPU_USE: "busy=60%", names.ANNOTATION_TURNS: "allowed", names.ANNOTATION_GANG: "g",
         names.ANNOTATION_GANG_SIZE: "2"}  # fmt: skip


def written(name: str, **spec: Any) -> Pod:
    return build.gpu_pod(name, gpus=1, annotations=NOTES, labels={"app": "a"}, **spec)


def with_meta(pod: Pod, **meta: Any) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **meta))


def with_spec(pod: Pod, **spec: Any) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def test_a_pod_that_reads_alike_has_the_state_that_reading_it_gives() -> None:
    one, other = written("one"), written("other")
    assert is_read_alike(one, other)
    assert state_like(pod_state(one), other) == pod_state(other)


def test_a_pod_that_cannot_be_read_is_refused_alike() -> None:
    one, other = (build.gpu_pod(name, gpus=1, annotations={names.ANNOTATION_TURNS: "maybe"}) for name in "ab")
    assert pod_state(one).refusal_code == "bad-annotation"
    assert state_like(pod_state(one), other) == pod_state(other)


def test_a_pod_that_is_refused_counts_in_its_gang_all_the_same() -> None:
    """Of a pod that has ended, the ResourceClaim made from a template is gone."""
    pod = with_spec(written("p"), resource_claims=(PodClaim(name="mine", resource_claim_name="gone"),))
    read = pod_state(pod)
    assert "does not exist" in read.refusal
    assert read.gang is not None
    assert read.gang.minimum == 2


def test_what_a_refused_pod_says_of_its_life_counts_all_the_same() -> None:
    """It may run: it was placed by that, and can still be evicted."""
    pod = with_meta(written("p"), annotations={"kerf.dev/isolation": "", "kerf.dev/min-runtime": "1h"})
    assert (pod_state(pod).refusal_code, pod_state(pod).life.min_runtime_s) == ("bad-annotation", 3600)
    pod = with_meta(pod, annotations={"kerf.dev/preemptible": "false", "kerf.dev/min-runtime": "soon"})
    assert (pod_state(pod).refusal_code, pod_state(pod).life.preemptible) == ("bad-annotation", False)


def test_what_is_wrong_with_a_request_is_reported_before_what_is_wrong_with_a_gang() -> None:
    wrong = {**NOTES, names.ANNOTATION_GANG_SIZE: "some"}
    pod = with_meta(written("p"), annotations=wrong)
    assert (pod_state(pod).refusal_code, pod_state(pod).gang) == ("bad-gang", None)
    both = with_spec(pod, resource_claims=(PodClaim(name="mine", resource_claim_name="gone"),))
    assert pod_state(both).refusal_code == pod_state(with_meta(both, annotations=NOTES)).refusal_code != "bad-gang"


def test_a_binding_changes_nothing_that_is_read() -> None:
    pod = written("p")
    bound = with_spec(
        with_meta(pod, resource_version="9", annotations={**NOTES, names.ANNOTATION_GRANT: "{}"}), node_name="n"
    )
    assert is_read_alike(pod, bound)
    assert is_read_alike(bound, pod)


@pytest.mark.parametrize("change", [
    {"containers": build.gpu_pod("x", gpus=2).spec.containers},
    {"init_containers": build.gpu_pod("x", gpus=1).spec.containers},
    {"overhead": {"cpu": "1"}},
    {"resources": build.gpu_pod("x", gpus=1).spec.containers[0].resources},
    {"scheduling_group": SchedulingGroup(pod_group_name="g")},
    {"workload_ref": WorkloadReference(name="w")},
])  # fmt: skip
def test_a_field_that_is_read_tells_pods_apart(change: dict[str, Any]) -> None:
    pod = written("p")
    assert not is_read_alike(pod, with_spec(pod, **change))


def test_a_resize_by_kubernetes_tells_pods_apart() -> None:
    pod = written("p")
    has = ContainerStatus(name="c", resources=HeldResources(requests={"cpu": "2"}))
    shrinks = msgspec.structs.replace(pod, status=PodStatus(container_statuses=(has,)))
    failed = msgspec.structs.replace(shrinks.status, resize="Infeasible")
    assert not is_read_alike(pod, shrinks)
    assert not is_read_alike(shrinks, msgspec.structs.replace(pod, status=failed))


@pytest.mark.parametrize("change", [
    {"annotations": {**NOTES, names.ANNOTATION_TURNS: "never"}},
    {"labels": {"app": "b"}},
    {"owner_references": (OwnerReference(kind="Job", name="j", uid="u", controller=True),)},
])  # fmt: skip
def test_metadata_that_is_read_tells_pods_apart(change: dict[str, Any]) -> None:
    pod = written("p")
    assert not is_read_alike(pod, with_meta(pod, **change))


def test_a_reserved_place_counts_against_quotas_as_its_pod_would() -> None:
    """What a queue may have that cannot be taken back is counted by the placeholder before the pod is there."""
    state = pod_state(build.gpu_pod("p", gpus=1, annotations={names.ANNOTATION_PREEMPTIBLE: "false"}))
    assert not state.life.preemptible
    assert not state.placeholder("uid").life.preemptible
