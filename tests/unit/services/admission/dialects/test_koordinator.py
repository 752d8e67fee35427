"""Koordinator's totals, divided over gpu.shared, in Kerf's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.request import GpuAsk
from tests.unit.services.admission.dialects.reviews import amounts, ask, notes, one, refused

NAMES = {"gpu": "gpu", "shared": "gpu.shared", "core": "gpu-core", "memory": "gpu-memory", "ratio": "gpu-memory-ratio"}


def koord(
    annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **limits: Any
) -> dict[str, Any]:
    named = {f"koordinator.sh/{NAMES[key]}": value for key, value in limits.items()}
    return one("koord-scheduler", annotations, labels, **named)


@pytest.mark.parametrize(
    ("limits", "canonical"),
    [
        ({"shared": 1, "core": 50, "ratio": 50}, {"gpu": "1", "gpu-memory-percent": "50", "gpu-compute": "50"}),
        ({"shared": 2, "core": 100, "ratio": 100}, {"gpu": "2", "gpu-memory-percent": "100", "gpu-compute": "100"}),
        ({"shared": 2, "core": 100, "memory": "16Gi"}, {"gpu": "2", "gpu-memory": "16Gi", "gpu-compute": "100"}),
        ({"shared": 1, "memory": "8Gi"}, {"gpu": "1", "gpu-memory": "8Gi"}),
        ({"memory": 8589934592, "core": 50}, {"gpu": "1", "gpu-memory": "8589934592", "gpu-compute": "50"}),
        ({"ratio": 50}, {"gpu": "1", "gpu-memory-percent": "50"}),
        ({"ratio": 200, "core": 200}, {"gpu": "2"}),
        ({"ratio": 200}, {"gpu": "2", "gpu-memory-percent": "200"}),
        ({"gpu": 50}, {"gpu": "1", "gpu-memory-percent": "50", "gpu-compute": "50"}),
        ({"gpu": 100}, {"gpu": "1"}),
        ({"gpu": 300}, {"gpu": "3"}),
    ],
)
def test_totals_stay_totals(limits: dict[str, Any], canonical: dict[str, str]) -> None:
    assert amounts(koord(**limits)) == canonical


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"core": 50}, "kerf.dev/gpu-memory"),
        ({"shared": 1}, "neither of"),
        ({"memory": "8Gi", "ratio": 50}, "both"),
        ({"gpu": 50, "core": 50}, "both core and memory"),
        ({"gpu": 150}, "at most 100 of each GPU"),
        ({"ratio": 150}, "gpu.shared"),
        ({"shared": 2, "ratio": 75}, "the same of each"),
        ({"shared": 1, "ratio": 50, "core": 101}, "at most 100"),
        ({"shared": 3, "memory": "16Gi"}, "cannot be divided"),
    ],
)
def test_what_koordinator_does_not_schedule_is_refused(limits: dict[str, Any], says: str) -> None:
    answer = refused(koord(**limits))
    assert answer.code == "foreign-amount"
    assert says in answer.sentence


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [
        ({"scheduling.koordinator.sh/device-allocate-hint": "{}"}, {}),
        ({"scheduling.koordinator.sh/device-joint-allocate": "{}"}, {}),
        ({"scheduling.koordinator.sh/gpu-partition-spec": "{}"}, {}),
        ({}, {"koordinator.sh/gpu-isolation-provider": "another"}),
    ],
)
def test_fields_that_kerf_cannot_honour_are_refused(annotations: dict[str, str], labels: dict[str, str]) -> None:
    assert refused(koord(annotations, labels, gpu=50)).code == "foreign-field"


def test_its_label_for_pods_that_are_no_victims_is_read() -> None:
    labels = {
        "scheduling.koordinator.sh/disable-preemptible": "true",
        "koordinator.sh/gpu-isolation-provider": "HAMi-core",
    }
    assert notes(koord(None, labels, gpu=50)) == {"dialect": "koordinator", "preemptible": "false"}
    assert notes(koord(gpu=50)) == {"dialect": "koordinator"}


@given(st.integers(1, 8), st.integers(1, 100), st.integers(0, 99))
def test_each_gpu_gets_its_part_exactly(count: int, ratio: int, core: int) -> None:
    read = ask(koord(shared=count, ratio=ratio * count, core=core * count))
    assert read == GpuAsk(count=count, memory_milli=ratio * 10, compute_milli=core * 10)
