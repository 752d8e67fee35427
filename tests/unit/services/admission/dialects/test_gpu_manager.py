"""gpu-manager's hundredths of a GPU and blocks of 256 MiB in Kerf's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused


def vcuda(annotations: dict[str, str] | None = None, **limits: Any) -> dict[str, Any]:
    return one("", annotations, **{f"tencent.com/vcuda-{name}": value for name, value in limits.items()})


@pytest.mark.parametrize(
    ("limits", "canonical"),
    [
        ({"core": 50, "memory": 30}, {"gpu-memory": "7680Mi", "gpu-compute": "50"}),
        ({"core": 1, "memory": 1}, {"gpu-memory": "256Mi", "gpu-compute": "1"}),
        ({"core": 100, "memory": 30}, {"gpu": "1"}),
        ({"core": 200, "memory": 60}, {"gpu": "2"}),
        ({"core": 200}, {"gpu": "2"}),
    ],
)
def test_a_hundred_are_a_gpu(limits: dict[str, Any], canonical: dict[str, str]) -> None:
    assert amounts(vcuda(**limits)) == canonical
    assert notes(vcuda(**limits)) == {"dialect": "gpu-manager"}


@pytest.mark.parametrize(
    ("annotations", "limits", "code", "says"),
    [
        ({}, {"core": 150, "memory": 30}, "foreign-amount", "a multiple of 100"),
        ({}, {"memory": 30}, "foreign-amount", "kerf.dev/gpu-memory"),
        ({}, {"core": 50}, "foreign-amount", "vcuda-memory"),
        ({"tencent.com/vcuda-core-limit": "80"}, {"core": 50, "memory": 1}, "foreign-field", "kerf.dev/gpu-compute"),
        ({}, {"core": "0.5", "memory": 1}, "foreign-fraction", "whole"),
    ],
)
def test_what_has_no_meaning_is_refused(
    annotations: dict[str, str], limits: dict[str, Any], code: str, says: str
) -> None:
    answer = refused(vcuda(annotations, **limits))
    assert answer.code == code
    assert says in answer.sentence


def test_a_limit_that_is_the_request_is_honoured() -> None:
    assert amounts(vcuda({"tencent.com/vcuda-core-limit": "50"}, core=50, memory=4))["gpu-compute"] == "50"


@given(st.integers(1, 99), st.integers(1, 1 << 16))
def test_blocks_are_256_mib(core: int, blocks: int) -> None:
    assert ask(vcuda(core=core, memory=blocks)) == GpuAsk(count=1, memory_mib=blocks * 256, compute_milli=core * 10)
