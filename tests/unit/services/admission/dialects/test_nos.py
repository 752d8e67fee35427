"""nos' slices of N GB in Kerf's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.messages import Policy
from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused, reviewed


def test_a_slice_is_memory_of_one_gpu_without_compute() -> None:
    manifest = one("nos-scheduler", **{"nvidia.com/gpu-10gb": 1})
    assert amounts(manifest) == {"gpu-memory": "10Gi"}
    assert notes(manifest) == {"dialect": "nos"}
    manifest["spec"]["hostIPC"] = True
    assert reviewed(manifest)["spec"]["hostIPC"] is True


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu-10gb": 2}, {"nvidia.com/gpu-10gb": 1, "nvidia.com/gpu-4gb": 1}])
def test_a_container_has_one_slice(limits: dict[str, int]) -> None:
    answer = refused(one(**limits))
    assert answer.code == "foreign-amount"
    assert "kerf.dev/gpu-memory" in answer.sentence


def test_whole_gpus_beside_a_slice_are_a_mixture() -> None:
    policy = Policy(plain_nvidia_namespaces=("*",))
    assert refused(one(**{"nvidia.com/gpu-10gb": 1, "nvidia.com/gpu": 1}), policy).code == "mixed-dialects"


@given(st.integers(1, 1024))
def test_a_gb_is_a_gib_as_in_mps(size: int) -> None:
    assert ask(one(**{f"nvidia.com/gpu-{size}gb": 1})) == GpuAsk(count=1, memory_mib=size * 1024)
