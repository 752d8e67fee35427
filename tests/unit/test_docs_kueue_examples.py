"""What a job counts in Kueue by docs/examples/kueue/configuration.yaml, beside what its pods count in Kerf.

Kueue's arithmetic is that of sigs.k8s.io/kueue pkg/workload/workload.go (applyResourceTransformations): each resource
that has a transformation is multiplied by its factor, and the products are added up. A total is rounded up
(pkg/resources).
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.admission.core import Allowed, Policy, Request, review
from services.simulator.patch import json_patch
from shared.model.units import MIB, quantity

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples/kueue"
QUOTA = "kerf.dev/quota-gpu-milli"
CONFIGURATION = yaml.safe_load((EXAMPLES / "configuration.yaml").read_text())
EXACT: list[dict[str, str]] = [
    {"kerf.dev/gpu": "2"},
    {"kerf.dev/gpu-compute": "30"},
    {"kerf.dev/gpu-memory-percent": "25"},
    {"nvidia.com/gpu": "2"},
    {"nvidia.com/gpumem": "1"},
    {"nvidia.com/gpumem": "3000"},
    {"nvidia.com/gpumem": "12000"},
    {"nvidia.com/gpumem": "81920"},
    {"nvidia.com/gpumem-percentage": "50"},
]
MORE: list[dict[str, str]] = [
    {"kerf.dev/gpu-memory": "80Gi"},
    {"kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-compute": "30"},
    {"kerf.dev/gpu": "2", "kerf.dev/gpu-memory": "80Gi"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
    {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
    {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
]


def in_kueue(limits: dict[str, str]) -> int:
    factors = {one["input"]: one for one in CONFIGURATION["resources"]["transformations"]}
    assert all(one["strategy"] == "Replace" and set(one["outputs"]) == {QUOTA} for one in factors.values())
    return math.ceil(sum(decimal(amount) * decimal(factors[name]["outputs"][QUOTA]) for name, amount in limits.items()))


def decimal(text: object) -> Fraction:
    nano = str(text).removesuffix("n")
    return Fraction(int(nano), 10**9) if nano != str(text) else Fraction(quantity(str(text)))


def in_kerf(limits: dict[str, str]) -> int:
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    meta = {"name": "p", "namespace": "team"}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
    policy = Policy(plain_nvidia_namespaces=("*",), quota_gpu_bytes=81_920 * MIB)
    decided = review(Request(pod=pod, namespace="team"), policy)
    assert isinstance(decided, Allowed), decided
    made = json_patch(pod, list(decided.patches))
    return int(quantity(str(made["spec"]["containers"][0]["resources"]["limits"][QUOTA])))


@pytest.mark.parametrize("limits", EXACT, ids=str)
def test_one_amount_counts_in_kueue_what_it_counts_in_kerf(limits: dict[str, str]) -> None:
    assert in_kueue(limits) == in_kerf(limits)


@pytest.mark.parametrize("limits", MORE, ids=str)
def test_several_amounts_and_bytes_count_more_in_kueue_and_never_less(limits: dict[str, str]) -> None:
    assert in_kueue(limits) > in_kerf(limits)


def test_what_kerf_adds_to_pods_is_not_counted_again() -> None:
    """Pods of pod groups come to Kueue as Kerf has rewritten them."""
    assert {"kerf.dev/slot", QUOTA} <= set(CONFIGURATION["resources"]["excludeResourcePrefixes"])
