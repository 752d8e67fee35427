"""Gangs whose size an object states, such as a pod group."""

from __future__ import annotations

from typing import Any

from shared.model.kube_object import Meta
from shared.model.objects import Gang, Pod
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.scheduling.gangs.members import why


def owned(name: str) -> Pod:
    return build.gpu_pod(name, gpus=1, labels={"scheduling.x-k8s.io/pod-group": "train"})


def pod_group(minimum: int, **fields: Any) -> Gang:
    meta = Meta(
        name="podgroup.scheduling.x-k8s.io/train", namespace="team", uid="uid-pg", resource_version=build.next_version()
    )
    return Gang(metadata=meta, minimum=minimum, **fields)


def test_gang_members_wait_for_the_object_that_states_their_number() -> None:
    placement = Placement().nodes("n1", gpus=4)
    pods = [owned("p0"), owned("p1")]
    assert placement.place(*pods) == {}
    assert why(placement, "p0").summary[0].code == "gang-unknown"
    placement.facts(pod_group(2))
    assert sorted(placement.place(*pods)) == ["p0", "p1"]


def test_the_object_may_exist_first_and_may_change_later() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.facts(pod_group(3))
    assert placement.place(owned("p0"), owned("p1")) == {}
    summary = why(placement, "p0").summary[0]
    assert (summary.code, summary.helps) == (
        "gang-gathering",
        "create the other 1 pod, or lower the minimum of podgroup.scheduling.x-k8s.io/train to 2",
    )
    placement.gone(pod_group(3))
    placement.facts(pod_group(2))
    assert len(placement.binds()) == 2


def test_a_group_without_a_minimum_is_no_gang() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.facts(pod_group(0))
    assert placement.place(owned("p0")) == {"p0": "n1"}


def test_parts_of_an_object_are_gangs_of_their_own() -> None:
    def worker(name: str, part: str) -> Pod:
        return build.gpu_pod(
            name, gpus=1, labels={"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": part}
        )

    placement = Placement().nodes("n1", gpus=4)
    meta = Meta(name="jobset.jobset.x-k8s.io/js", namespace="team", uid="uid-js", resource_version=build.next_version())
    placement.facts(Gang(metadata=meta, minimum=0, parts={"driver": 1, "workers": 2}))
    assert placement.place(worker("d", "driver"), worker("w0", "workers")) == {"d": "n1"}
    assert sorted(placement.place(worker("w1", "workers"), worker("w0", "workers"))) == ["w0", "w1"]
