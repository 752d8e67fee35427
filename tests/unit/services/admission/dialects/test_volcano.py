"""Volcano's vGPUs, and its older GPU sharing, in Kerf's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused


def vgpu(annotations: dict[str, str] | None = None, **limits: Any) -> dict[str, Any]:
    return one("volcano", annotations, **{f"volcano.sh/{name.replace('_', '-')}": v for name, v in limits.items()})


@pytest.mark.parametrize(
    ("limits", "canonical"),
    [
        ({"vgpu_number": 1, "vgpu_memory": 1024}, {"gpu": "1", "gpu-memory": "1024Mi"}),
        ({"vgpu_number": 2, "vgpu_memory": 1024, "vgpu_cores": 50},
         {"gpu": "2", "gpu-memory": "2048Mi", "gpu-compute": "100"}),
        ({"vgpu_memory": 1024}, {"gpu": "1", "gpu-memory": "1024Mi"}),
        ({"vgpu_number": 1, "vgpu_memory_percentage": 30}, {"gpu": "1", "gpu-memory-percent": "30"}),
        ({"vgpu_number": 3}, {"gpu": "3"}),
        ({"vgpu_number": 3, "vgpu_cores": 100}, {"gpu": "3"}),
        ({"vgpu_number": 1, "vgpu_cores": 20}, {"gpu": "1", "gpu-memory-percent": "100", "gpu-compute": "20"}),
        ({"gpu_memory": 2000}, {"gpu": "1", "gpu-memory": "2000Mi"}),
        ({"gpu_number": 2}, {"gpu": "2"}),
    ],
)  # fmt: skip
def test_amounts_of_each_gpu_become_totals(limits: dict[str, Any], canonical: dict[str, str]) -> None:
    assert amounts(vgpu(**limits)) == canonical


@pytest.mark.parametrize(
    ("annotations", "limits", "code"),
    [
        ({}, {"vgpu_number": 1, "vgpu_memory_percentage": 101}, "foreign-amount"),
        ({}, {"vgpu_number": 1, "vgpu_cores": 200}, "foreign-amount"),
        ({}, {"vgpu_number": 1, "gpu_memory": 100}, "mixed-dialects"),
        ({"volcano.sh/vgpu-mode": "mps"}, {"vgpu_number": 1}, "foreign-field"),
        ({"volcano.sh/gpu-index": "0"}, {"gpu_number": 1}, "foreign-field"),
    ],
)
def test_what_has_no_meaning_is_refused(annotations: dict[str, str], limits: dict[str, Any], code: str) -> None:
    assert refused(vgpu(annotations, **limits)).code == code


def test_the_mode_and_the_model_are_kerfs_annotations() -> None:
    annotations = {"volcano.sh/vgpu-mode": "mig", "nvidia.com/use-gputype": "A100"}
    assert notes(vgpu(annotations, vgpu_number=1, vgpu_memory=1000)) == {
        "dialect": "volcano", "gpu-model": "A100", "isolation": "hard",
    }  # fmt: skip


@given(st.integers(1, 8), st.integers(1, 1 << 20), st.integers(0, 99))
def test_what_placement_reads_is_what_the_pod_named_of_each_gpu(count: int, memory: int, cores: int) -> None:
    read = ask(vgpu(vgpu_number=count, vgpu_memory=memory, vgpu_cores=cores))
    assert read == GpuAsk(count=count, memory_mib=memory, compute_milli=cores * 10)
