"""KAI's and Run:ai's annotations and labels in Kerf's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.messages import Policy
from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused, reviewed, untouched
from tests.unit.services.admission.pods import container, pod

OPTED_IN = Policy(plain_nvidia_namespaces=("*",))


def kai(annotations: dict[str, str], labels: dict[str, str] | None = None, **limits: Any) -> dict[str, Any]:
    return one("kai-scheduler", annotations, labels, **limits)


@pytest.mark.parametrize(
    ("annotations", "canonical"),
    [
        ({"gpu-fraction": "0.5"}, {"gpu": "1", "gpu-compute": "50"}),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, {"gpu": "2", "gpu-compute": "50"}),
        ({"gpu-fraction": "0.125", "gpu-fraction-num-devices": "2"}, {"gpu": "2", "gpu-compute": "25"}),
        ({"gpu-memory": "2000"}, {"gpu": "1", "gpu-memory": "2000Mi"}),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"}, {"gpu": "3", "gpu-memory": "6000Mi"}),
    ],
)
def test_the_first_container_gets_the_share(annotations: dict[str, str], canonical: dict[str, str]) -> None:
    assert amounts(kai(annotations)) == canonical


def test_another_container_gets_it_by_name() -> None:
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "work"}
    made = reviewed(pod(container("side"), container("work"), annotations=annotations, schedulerName="kai-scheduler"))
    assert "resources" not in made["spec"]["containers"][0] or not made["spec"]["containers"][0]["resources"]
    assert made["spec"]["containers"][1]["resources"]["limits"]["kerf.dev/gpu-compute"] == "50"


@pytest.mark.parametrize(
    ("annotations", "code", "says"),
    [
        ({"gpu-fraction": "1.5"}, "foreign-amount", "nvidia.com/gpu"),
        ({"gpu-fraction": "0"}, "foreign-amount", "between 0 and 1"),
        ({"gpu-fraction": "half"}, "foreign-amount", "such as 0.5"),
        ({"gpu-fraction": "0.125"}, "foreign-fraction", "Write 0.12 or 0.13"),
        ({"gpu-memory": "16Gi"}, "foreign-amount", "kerf.dev/gpu-memory"),
        ({"gpu-memory": "0"}, "foreign-amount", "from 1 on"),
        ({"gpu-memory": "100", "gpu-fraction": "0.5"}, "mixed-dialects", "exclude each other"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}, "foreign-amount", "number of GPUs"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}, "foreign-field", "no container"),
        ({"gpu-fraction": "0.5", "gpu-sm-percentage": "50"}, "foreign-field", "kerf.dev/gpu-compute"),
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"}, "foreign-field", "gpu-fraction"),
    ],
)
def test_what_has_no_meaning_is_refused_with_kerfs_word(annotations: dict[str, str], code: str, says: str) -> None:
    answer = refused(kai(annotations))
    assert answer.code == code
    assert says in answer.sentence


def test_a_share_beside_whole_gpus_is_refused_as_in_kai() -> None:
    assert refused(kai({"gpu-fraction": "0.5"}, **{"nvidia.com/gpu": 1})).code == "mixed-dialects"


def test_a_share_beside_kerfs_resources_is_refused() -> None:
    manifest = one("", {"gpu-fraction": "0.5"}, {"kai.scheduler/queue": "q"}, **{"kerf.dev/gpu": 1})
    assert refused(manifest).code == "mixed-dialects"


def test_annotations_without_a_prefix_are_kais_only_with_its_scheduler_or_queue() -> None:
    assert untouched(one(annotations={"gpu-memory": "2000"}))
    queued = one("", {"gpu-memory": "2000"}, {"runai/queue": "team"})
    assert amounts(queued) == {"gpu": "1", "gpu-memory": "2000Mi"}


def test_whole_gpus_and_instances_are_read_by_opt_in() -> None:
    whole, instance = kai({}, **{"nvidia.com/gpu": 2}), kai({}, **{"nvidia.com/mig-1g.10gb": 1})
    assert untouched(whole)
    assert amounts(whole, OPTED_IN) == {"gpu": "2"}
    assert amounts(instance, OPTED_IN) == {"mig-1g.10gb": "1"}
    assert notes(whole, OPTED_IN) == {"dialect": "kai"}


@pytest.mark.parametrize("label", ["kai.scheduler/queue", "runai/queue"])
def test_its_queue_is_kerfs(label: str) -> None:
    made = reviewed(kai({"gpu-fraction": "0.5"}, {label: "vision"}))
    assert made["metadata"]["labels"] == {label: "vision", "kerf.dev/queue": "vision"}


@pytest.mark.parametrize(
    ("labels", "spec", "never"),
    [
        ({}, {}, False),
        ({}, {"priorityClassName": "train"}, False),
        ({}, {"priorityClassName": "build-preemptible"}, False),
        ({}, {"priorityClassName": "build"}, True),
        ({}, {"priorityClassName": "inference"}, True),
        ({}, {"priorityClassName": "ours", "priority": 99}, False),
        ({}, {"priorityClassName": "ours", "priority": 100}, True),
        ({"priorityClassName": "build"}, {}, True),
        ({"kai.scheduler/preemptibility": "non-preemptible"}, {}, True),
        ({"kai.scheduler/preemptibility": "Non-Preemptible"}, {"priorityClassName": "train"}, True),
        ({"kai.scheduler/preemptibility": "preemptible"}, {"priorityClassName": "inference"}, False),
        ({"kai.scheduler/preemptibility": "semi-preemptible"}, {"priorityClassName": "build"}, False),
        ({"kai.scheduler/preemptibility": "unknown"}, {"priorityClassName": "build"}, True),
    ],
)
def test_preemptible_as_in_kai(labels: dict[str, str], spec: dict[str, Any], never: bool) -> None:
    manifest = kai({"gpu-fraction": "0.5"}, labels)
    manifest["spec"] |= spec
    assert notes(manifest).get("preemptible") == ("false" if never else None)


def test_a_deployments_pods_are_inference_unless_they_name_a_class() -> None:
    manifest = kai({"gpu-fraction": "0.5"})
    manifest["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1"}]
    assert notes(manifest)["preemptible"] == "false"
    manifest["spec"]["priorityClassName"] = "train"
    assert "preemptible" not in notes(manifest)


def test_its_label_names_the_priority_class() -> None:
    manifest = kai({"gpu-fraction": "0.5"}, {"priorityClassName": "build"})
    manifest["spec"]["priority"] = 0
    spec = reviewed(manifest)["spec"]
    assert spec["priorityClassName"] == "build"
    assert "priority" not in spec


@given(st.integers(1, 99), st.integers(1, 8))
def test_a_fraction_is_the_same_part_of_memory_and_compute(percent: int, devices: int) -> None:
    annotations = {"gpu-fraction": f"0.{percent:02}", "gpu-fraction-num-devices": str(devices)}
    part = percent * 10
    assert ask(kai(annotations)) == GpuAsk(count=devices, memory_milli=part, compute_milli=part)
