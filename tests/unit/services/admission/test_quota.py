"""What containers count under ResourceQuota. tests/cluster/test_canonical_request.py compares the policies' CEL."""

from __future__ import annotations

import pytest

from services.admission.core import Allowed, Policy, Refused, Request, review
from services.admission.quota import quota_gpu_milli
from services.admission.service import Config
from services.simulator.patch import json_patch
from tests.unit.services.admission.pods import container, pod

GI = 1 << 30


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({"kerf.dev/gpu": "3"}, 3000),
        ({"kerf.dev/gpu-memory": "20Gi"}, 500),
        ({"kerf.dev/gpu-memory": "1Mi"}, 1),
        ({"kerf.dev/gpu-compute": "30"}, 300),
        ({"kerf.dev/gpu-memory": "20Gi", "kerf.dev/gpu-compute": "60"}, 600),
        ({"kerf.dev/gpu-memory": "141Gi"}, 1000),
        ({"kerf.dev/gpu": "4", "kerf.dev/gpu-memory": "40Gi", "kerf.dev/gpu-compute": "40"}, 1000),
        ({"kerf.dev/gpu": "8", "kerf.dev/gpu-memory": "8Mi"}, 8),
        ({"kerf.dev/gpu": "8", "kerf.dev/gpu-compute": "8"}, 80),
        ({"kerf.dev/mig-1g.10gb": "2", "kerf.dev/gpu": "0"}, 466),
        ({"cpu": "4"}, 0),
    ],
)
def test_the_larger_part_of_memory_and_compute(limits: dict[str, str | int], counts: int) -> None:
    assert quota_gpu_milli(limits, 40 * GI, 1) == counts


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({"kerf.dev/gpu": "1"}, 1000),
        ({"kerf.dev/gpu-memory": "1Mi"}, 143),
        ({"kerf.dev/gpu-memory": "20Gi"}, 500),
        ({"kerf.dev/gpu": "8", "kerf.dev/gpu-memory": "8Mi", "kerf.dev/gpu-compute": "8"}, 1144),
        ({"kerf.dev/mig-1g.5gb": "1"}, 142),
        ({"cpu": "4"}, 0),
    ],
)
def test_a_part_counts_at_least_what_the_operator_sets_on_each_gpu(limits: dict[str, str | int], counts: int) -> None:
    assert quota_gpu_milli(limits, 40 * GI, 143) == counts


def test_the_least_is_the_installations() -> None:
    asked = pod(container(memory="1Mi"))
    answer = review(Request(pod=asked), Config(quota_least_milli=143).policy())
    assert isinstance(answer, Allowed)
    made = json_patch(asked, list(answer.patches))
    assert made["spec"]["containers"][0]["resources"]["limits"]["kerf.dev/quota-gpu-milli"] == "143"


def test_it_is_no_way_to_ask_for_a_gpu() -> None:
    answer = review(Request(pod=pod(container(**{"kerf.dev/quota-gpu-milli": "500"}))), Policy())
    assert isinstance(answer, Refused)
    assert answer.code == "quota-without-gpu"
