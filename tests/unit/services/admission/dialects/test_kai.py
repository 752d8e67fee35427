"""KAI's and Run:ai's annotations and labels in Kerf's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.dialects import Setting
from services.admission.dialects.kai import Kai
from services.admission.messages import Policy
from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused, reviewed, untouched
from tests.unit.services.admission.pods import container, pod

NV = "nvidia.com/container."
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


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            {"gpu-fraction": "0.25", "gpu-fraction.limit": "0.8"},
            GpuAsk(count=1, memory_milli=250, compute_milli=250, memory_limit_milli=800, compute_limit_milli=800),
        ),
        (
            {"gpu-fraction": "0.25", "kai.scheduler/container.main.gpu-memory.portion.limit": "0.505"},
            GpuAsk(count=1, memory_milli=250, compute_milli=250, memory_limit_milli=505, compute_limit_milli=505),
        ),
        (
            {"gpu-fraction": "0.25", "gpu-fraction.limit": "0.8", "gpu-fraction-num-devices": "2"},
            GpuAsk(count=2, memory_milli=250, compute_milli=250, memory_limit_milli=800, compute_limit_milli=800),
        ),
        ({"gpu-memory": "2000", "gpu-memory.limit": "4Gi"}, GpuAsk(count=1, memory_mib=2000, memory_limit_mib=4096)),
        (
            {"gpu-memory": "2000", "gpu-memory.limit": "4Gi", "gpu-fraction-num-devices": "2"},
            GpuAsk(count=2, memory_mib=2000, memory_limit_mib=4096),
        ),
        (
            {f"{NV}main.gpu-memory.request": "2000Mi", f"{NV}main.gpu-memory.limit": "4Gi"},
            GpuAsk(count=1, memory_mib=2000, memory_limit_mib=4096),
        ),
        ({f"{NV}main.gpu-memory.limit": "4Gi"}, GpuAsk(count=1, memory_mib=4096)),
    ],
)
def test_a_limit_above_the_share_is_what_it_may_use_beyond_it(annotations: dict[str, str], expected: GpuAsk) -> None:
    """kai-scheduler/KAI-Scheduler, pkg/common/resources and pkg/admission's nvfractions: `gpu-memory.limit` is a
    quantity, `gpu-fraction.limit` a part of one GPU; a limit alone is the request, too."""
    assert ask(kai(annotations)) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ({"gpu-fraction": "0.25"}, "0.8", {"gpu-memory-limit": "80%", "gpu-compute-limit": "80"}),
        ({"gpu-memory": "2000"}, "4G", {"gpu-memory-limit": "4000000000"}),
    ],
)
def test_run_ais_variable_is_a_limit(annotation: dict[str, str], value: str, expected: dict[str, str]) -> None:
    """run-ai/docs, docs/Researcher/scheduling/dynamic-gpu-fractions.md: RUNAI_GPU_MEMORY_LIMIT of the container."""
    manifest = kai(annotation)
    manifest["spec"]["containers"][0]["env"] = [{"name": "RUNAI_GPU_MEMORY_LIMIT", "value": value}]
    assert notes(manifest).items() >= expected.items()


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
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "1.5"}, "foreign-amount", "gpu-fraction.limit is '1.5'"),
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.3"}, "limit-below-request", "has the limit 30%"),
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.66667"}, "foreign-fraction", "write 0.666"),
        ({"gpu-fraction": "0.5", "gpu-memory.limit": "4Gi"}, "foreign-field", "goes with gpu-memory"),
        ({"gpu-memory": "2000", "gpu-fraction.limit": "0.8"}, "foreign-field", "goes with gpu-fraction"),
        ({"gpu-memory": "2000", "gpu-memory.limit": "much"}, "foreign-amount", "such as 24Gi"),
        ({f"{NV}main.gpu-memory.limit": "4Gi", f"{NV}b.gpu-memory.limit": "4Gi"}, "foreign-field", "to one container"),
        ({f"{NV}main.gpu-memory.limit": "4Gi", f"{NV}main.gpu-compute.mode": "sm-sharing"}, "foreign-field", "turns"),
        ({"gpu-memory": "2000", f"{NV}main.gpu-memory.request": "3000Mi"}, "mixed-dialects", "keep one of them"),
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
        ({"priorityClassName": "build"}, {"priorityClassName": "train"}, True),
        ({"priorityClassName": "train"}, {"priorityClassName": "build"}, False),
        ({"priorityClassName": "ours"}, {"priorityClassName": "ours", "priority": 100}, True),
        ({"priorityClassName": "ours", "kai.scheduler/preemptibility": "preemptible"}, {"priority": 0}, False),
        ({"priorityClassName": "ours", "kai.scheduler/preemptibility": "non-preemptible"}, {"priority": 0}, True),
        ({"notebook-name": "mine"}, {}, True),
        ({"notebook-name": "mine"}, {"priorityClassName": "train"}, False),
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


def test_a_label_with_a_class_of_unknown_value_is_refused() -> None:
    """To take such a pod for preemptible would make a victim of one that KAI never preempts."""
    refusal = refused(kai({"gpu-fraction": "0.5"}, {"priorityClassName": "research"}))
    assert refusal.code == "foreign-field"
    assert "write label kai.scheduler/preemptibility too" in refusal.sentence


@pytest.mark.parametrize("named", ["train", "usual"])
def test_its_label_is_the_class_whatever_the_pods_field_names(named: str) -> None:
    manifest = kai({"gpu-fraction": "0.5"}, {"priorityClassName": "build"})
    manifest["spec"] |= {"priorityClassName": named, "priority": 50}
    made = reviewed(manifest, Policy(setting=Setting(default_priority_class="usual")))
    assert made["spec"]["priorityClassName"] == "build"
    assert "priority" not in made["spec"]
    assert made["metadata"]["annotations"]["kerf.dev/preemptible"] == "false"


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


@pytest.mark.parametrize(
    "annotations",
    [
        {"gpu-memory": "9" * 5000},
        {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "9" * 5000},
        {"gpu-memory": "2000", "gpu-memory.limit": "9" * 5000},
        {f"{NV}main.gpu-memory.request": ""},
    ],
    ids=["memory", "devices", "limit", "empty"],
)
def test_an_amount_that_is_none_is_refused_in_a_short_sentence(annotations: dict[str, str]) -> None:
    """Python's int() raises ValueError on more than 4,300 digits."""
    answer = refused(kai(annotations))
    assert answer.code == "foreign-amount"
    assert len(answer.sentence) < 400


@pytest.mark.parametrize("containers", [None, []])
def test_a_share_without_a_container_is_refused(containers: list[Any] | None) -> None:
    manifest = kai({"gpu-fraction": "0.5"})
    manifest["spec"]["containers"] = containers
    answer = refused(manifest)
    assert (answer.code, "no container" in answer.sentence) == ("foreign-field", True)


@pytest.mark.parametrize("env", [["RUNAI_GPU_MEMORY_LIMIT"], True, {"name": "RUNAI_GPU_MEMORY_LIMIT"}, [None]])
def test_variables_that_are_none_are_refused(env: Any) -> None:
    manifest = kai({"gpu-fraction": "0.5"})
    manifest["spec"]["containers"][0]["env"] = env
    assert refused(manifest).code == "malformed"


def test_a_pod_of_thousands_of_containers_is_refused_before_it_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """That took seconds, in which no other pod was reviewed."""
    monkeypatch.setattr(Kai, "translate", lambda *_: pytest.fail("it was translated"))
    manifest = kai({"gpu-fraction": "0.5"})
    manifest["spec"]["containers"] = [container(f"c{number}") for number in range(257)]
    assert refused(manifest).code == "too-many-containers"


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [({"gpu-sm-percentage": "3"}, {}), ({"gpu-sm-cores": "3"}, {}), ({}, {"priorityClassName": "of-our-own"})],
)
def test_of_a_pod_without_gpus_nothing_about_gpus_is_refused(
    annotations: dict[str, str], labels: dict[str, str]
) -> None:
    taken = Policy(takeover_schedulers=("kai-scheduler",))
    assert reviewed(kai(annotations, labels, cpu="1"), taken)["spec"]["schedulerName"] == "kerf"
    for limits in ({"nvidia.com/gpu": 1}, {"kerf.dev/gpu": 1}):
        assert refused(kai(annotations, labels, **limits), taken).code == "foreign-field"
    claimed = kai(annotations, labels)
    claimed["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "mine"}]
    assert refused(claimed, taken).code == "foreign-field"
