"""HAMi's resources and annotations in Kerf's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.core import TOLERATION
from services.admission.dialects import Setting, Vgpu
from services.admission.messages import Policy
from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused, reviewed, untouched
from tests.unit.services.admission.pods import container, pod

NAMES = {
    "gpu": "nvidia.com/gpu", "gpumem": "nvidia.com/gpumem", "percentage": "nvidia.com/gpumem-percentage",
    "gpucores": "nvidia.com/gpucores", "priority": "nvidia.com/priority",
}  # fmt: skip


def hami(annotations: dict[str, str] | None = None, scheduler: str = "", **limits: Any) -> dict[str, Any]:
    return one(scheduler, annotations, **{NAMES[key]: value for key, value in limits.items()})


@pytest.mark.parametrize(
    ("limits", "canonical"),
    [
        ({"gpu": 1, "gpumem": 3000}, {"gpu": "1", "gpu-memory": "3000Mi"}),
        ({"gpu": 2, "gpumem": 3000}, {"gpu": "2", "gpu-memory": "6000Mi"}),
        ({"gpu": 1, "gpumem": 3000, "gpucores": 30}, {"gpu": "1", "gpu-memory": "3000Mi", "gpu-compute": "30"}),
        ({"gpu": 2, "gpumem": 3000, "gpucores": 30}, {"gpu": "2", "gpu-memory": "6000Mi", "gpu-compute": "60"}),
        ({"gpu": 1, "percentage": 50}, {"gpu": "1", "gpu-memory-percent": "50"}),
        ({"gpu": 2, "percentage": 50, "gpucores": 10}, {"gpu": "2", "gpu-memory-percent": "100", "gpu-compute": "20"}),
        ({"gpu": 1, "gpumem": 3000, "percentage": 50}, {"gpu": "1", "gpu-memory": "3000Mi"}),
        ({"gpu": 1, "gpucores": 50}, {"gpu": "1", "gpu-memory-percent": "100", "gpu-compute": "50"}),
        ({"gpu": 1, "percentage": 100}, {"gpu": "1"}),
        ({"gpu": 2, "gpucores": 100}, {"gpu": "2"}),
        ({"gpu": 1, "gpumem": 3000, "gpucores": 100}, {"gpu": "1"}),
        ({"gpumem": 3000}, {"gpu": "1", "gpu-memory": "3000Mi"}),
        ({"gpucores": 50}, {"gpu": "1", "gpu-memory-percent": "100", "gpu-compute": "50"}),
        ({"gpu": 1, "percentage": 0}, {"gpu": "1"}),
        ({"gpu": 1, "gpumem": 1000, "percentage": 100}, {"gpu": "1"}),
        ({"gpu": 1, "gpumem": 3000, "priority": 1}, {"gpu": "1", "gpu-memory": "3000Mi"}),
    ],
)
def test_amounts_of_each_gpu_become_totals(limits: dict[str, Any], canonical: dict[str, str]) -> None:
    assert amounts(hami(**limits)) == canonical


@pytest.mark.parametrize(
    ("limits", "canonical"),
    [
        ({"gpu": 1}, {"gpu": "1"}),
        ({"gpu": 2, "percentage": 100}, {"gpu": "2"}),
        ({"gpu": 1, "percentage": 50}, {"gpu": "1", "gpu-memory-percent": "50", "gpu-compute": "10"}),
        ({"gpu": 1, "gpucores": 50}, {"gpu": "1", "gpu-memory": "4000Mi", "gpu-compute": "50"}),
        ({"gpu": 1, "gpucores": 0}, {"gpu": "1", "gpu-memory": "4000Mi", "gpu-compute": "10"}),
    ],
)
def test_defaults_make_no_part_of_a_gpu_that_was_asked_for_alone(
    limits: dict[str, Any], canonical: dict[str, str]
) -> None:
    """HAMi's webhook reserves all cores before its scheduler fills in the defaults."""
    policy = Policy(setting=Setting(hami=Vgpu(default_memory_mib=4000, default_cores=10)))
    assert amounts(hami(scheduler="hami-scheduler", **limits), policy) == canonical


def test_gpus_alone_are_hamis_only_with_hamis_scheduler() -> None:
    """Else they are plain NVIDIA, read by opt-in."""
    assert amounts(hami(scheduler="hami-scheduler", gpu=2)) == {"gpu": "2"}
    assert untouched(hami(gpu=2))


@pytest.mark.parametrize(
    ("limits", "code", "says"),
    [
        ({"gpu": 1, "percentage": 101}, "foreign-amount", "kerf.dev/gpu-memory-percent"),
        ({"gpu": 1, "gpumem": 1000, "gpucores": 101}, "foreign-amount", "kerf.dev/gpu-compute"),
        ({"gpu": 1, "gpumem": 17179869184}, "foreign-unit", "without a unit"),
        ({"gpu": 1, "gpumem": "0.5"}, "foreign-fraction", "whole numbers"),
        ({"gpu": 1, "gpumem": "-1"}, "negative", "negative"),
        ({"gpu": 1, "gpumem": "lots"}, "not-a-quantity", "lots"),
        ({"gpu": 1, "gpumem": 1000, "priority": 0}, "foreign-field", "priorityClassName"),
    ],
)
def test_what_has_no_meaning_is_refused_with_kerfs_word(limits: dict[str, Any], code: str, says: str) -> None:
    answer = refused(hami(**limits))
    assert answer.code == code
    assert says in answer.sentence


@pytest.mark.parametrize(
    ("annotations", "ours"),
    [
        ({"nvidia.com/use-gputype": "A100,H100"}, {"gpu-model": "A100|H100"}),
        ({"nvidia.com/nouse-gputype": "T4"}, {"gpu-model-not": "T4"}),
        ({"nvidia.com/use-gpuuuid": "GPU-1,GPU-2"}, {"gpu-uuid": "GPU-1|GPU-2"}),
        ({"nvidia.com/nouse-gpuuuid": "GPU-1"}, {"gpu-uuid-not": "GPU-1"}),
        ({"hami.io/node-scheduler-policy": "spread"}, {"policy": "spread"}),
        ({"hami.io/gpu-scheduler-policy": "binpack,numa"}, {"gpu-policy": "binpack"}),
        ({"hami.io/gpu-scheduler-policy": "topology-aware"}, {"topology": "preferred", "topology-mode": "ring"}),
        ({"hami.io/gpu-scheduler-policy": "numa"}, {}),
        ({"nvidia.com/vgpu-mode": "hami-core"}, {}),
        ({"nvidia.com/vgpu-mode": "mig"}, {"isolation": "hard"}),
        ({"nvidia.com/vgpu-mode": "hami-core,mig"}, {}),
        ({"nvidia.com/numa-bind": "true"}, {"topology": "numa"}),
        ({"nvidia.com/numa-bind": "yes"}, {}),
        ({"nvidia.com/use-gputype": "A100", "kerf.dev/gpu-model": "H200"}, {"gpu-model": "H200"}),
    ],
)
def test_annotations_that_kerf_has_a_word_for(annotations: dict[str, str], ours: dict[str, str]) -> None:
    assert notes(hami(annotations, gpu=1, gpumem=1000)) == ours | {"dialect": "hami"}


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"hami.io/node-scheduler-policy": "fastest"}, "kerf.dev/policy"),
        ({"hami.io/gpu-scheduler-policy": "binpack,spread"}, "kerf.dev/gpu-policy"),
        ({"hami.io/gpu-scheduler-policy": "coldest"}, "kerf.dev/gpu-policy"),
        ({"nvidia.com/vgpu-mode": "mps"}, "kerf.dev/isolation"),
        ({"nvidia.com/use-gpuindexes": "0"}, "kerf.dev/gpu-uuid"),
        ({"hami.io/device-scoring-weights": "slot=1"}, "kerf.dev/policy"),
    ],
)
def test_annotations_that_kerf_cannot_honour_are_refused(annotations: dict[str, str], says: str) -> None:
    answer = refused(hami(annotations, gpu=1, gpumem=1000))
    assert answer.code == "foreign-field"
    assert says in answer.sentence


def test_mutex_asks_for_gpus_that_no_other_pod_uses() -> None:
    assert amounts(hami({"hami.io/gpu-scheduler-policy": "mutex,spread"}, gpu=2, gpumem=1000)) == {"gpu": "2"}


def test_high_priority_gets_the_installations_class() -> None:
    policy = Policy(setting=Setting(hami=Vgpu(high_priority_class="gpu-high")))
    manifest = hami(gpu=1, gpumem=1000, priority=0)
    manifest["spec"]["priority"] = 0
    spec = reviewed(manifest, policy)["spec"]
    assert spec["priorityClassName"] == "gpu-high"
    assert "priority" not in spec, "the API server computes it again"
    manifest["spec"]["priorityClassName"] = "mine"
    assert reviewed(manifest, policy)["spec"]["priorityClassName"] == "mine"


def test_the_clusters_default_class_is_none_of_the_pods_own() -> None:
    """The API server's Priority plugin has written its name by the time of the review."""
    manifest = hami(gpu=1, gpumem=1000, priority=0)
    manifest["spec"] |= {"priorityClassName": "usual", "priority": 5, "preemptionPolicy": "Never"}
    setting = Setting(default_priority_class="usual", hami=Vgpu(high_priority_class="gpu-high"))
    spec = reviewed(manifest, Policy(setting=setting))["spec"]
    assert spec["priorityClassName"] == "gpu-high"
    assert not {"priority", "preemptionPolicy"} & spec.keys()
    nameless = Policy(setting=Setting(default_priority_class="usual"))
    assert refused(manifest, nameless).code == "foreign-field"


def test_the_installations_defaults_fill_the_request() -> None:
    policy = Policy(
        setting=Setting(hami=Vgpu(memory_factor=10, default_gpus=2, default_memory_mib=512, default_cores=5))
    )
    assert ask(hami(gpu=1, gpumem=300), policy) == GpuAsk(count=1, memory_mib=3000, compute_milli=50)
    assert ask(hami(gpucores=30), policy) == GpuAsk(count=2, memory_mib=512, compute_milli=300)
    none = Policy(setting=Setting(hami=Vgpu(default_gpus=0)))
    assert refused(hami(gpumem=300), none).code == "foreign-amount"


def test_each_container_has_its_own_request() -> None:
    manifest = pod(
        container("a", **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}),
        container("b", **{"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25}),
        container("c"),
    )
    assert amounts(manifest, index=1) == {"gpu": "1", "gpu-memory-percent": "25"}
    assert "limits" not in reviewed(manifest)["spec"]["containers"][2].get("resources", {})


def test_a_mixture_with_another_dialect_is_refused() -> None:
    assert refused(one(**{"nvidia.com/gpumem": 1, "aliyun.com/gpu-mem": 1})).code == "mixed-dialects"
    assert refused(one(**{"nvidia.com/gpumem": 1, "kerf.dev/gpu": 1})).code == "mixed-dialects"


def test_a_dialect_that_the_installation_does_not_read_passes_unchanged() -> None:
    assert untouched(hami(gpu=1, gpumem=1000), Policy(dialects=("gpushare",)))
    assert untouched(hami(gpu=1, gpumem=1000, scheduler="another-scheduler"))


@given(st.integers(1, 8), st.integers(1, 1 << 20), st.integers(0, 99))
def test_what_placement_reads_is_what_the_pod_named_of_each_gpu(count: int, memory: int, cores: int) -> None:
    read = ask(hami(gpu=count, gpumem=memory, gpucores=cores))
    assert read == GpuAsk(count=count, memory_mib=memory, compute_milli=cores * 10)


@given(st.integers(1, 8), st.integers(1, 100), st.integers(1, 99))
def test_percentages_are_conserved_exactly(count: int, percentage: int, cores: int) -> None:
    read = ask(hami(gpu=count, percentage=percentage, gpucores=cores))
    assert read == GpuAsk(count=count, memory_milli=percentage * 10, compute_milli=cores * 10)


def test_a_priority_alone_asks_for_no_gpu() -> None:
    """Such a pod went to Kerf without the toleration of Kerf's nodes. Of one that is taken over it is taken out: no
    node has any."""
    assert untouched(hami(priority=1))
    assert untouched(hami(priority=1, scheduler="hami-scheduler"))
    taken = hami(priority=1, scheduler="hami-scheduler")
    made = reviewed(taken, Policy(takeover_schedulers=("hami-scheduler",)))
    assert (made["spec"]["schedulerName"], made["spec"]["tolerations"]) == ("kerf", [TOLERATION])
    assert made["spec"]["containers"][0]["resources"] == {}
    assert amounts(hami(gpu=1, priority=1)) == {"gpu": "1"}
