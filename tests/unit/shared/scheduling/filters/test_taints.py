"""Taints and tolerations, and cordoned nodes, case by case."""

from __future__ import annotations

import pytest

from tests.support import build
from tests.unit.shared.scheduling.filters.verdict import Spec, pod, tainted, verdict

GPU_TAINT = ("dedicated", "gpu", "NoSchedule")


@pytest.mark.parametrize(
    ("behaviour", "tolerations", "taints", "code"),
    [
        ("a NoSchedule taint excludes a pod that does not tolerate it", [], [GPU_TAINT], "taint"),
        ("a NoExecute taint too", [], [("leaving", "", "NoExecute")], "taint"),
        ("PreferNoSchedule is a preference", [], [("dedicated", "gpu", "PreferNoSchedule")], ""),
        (
            "Exists without a key tolerates everything",
            [{"operator": "Exists"}],
            [GPU_TAINT, ("leaving", "", "NoExecute")],
            "",
        ),
        ("Exists tolerates any value of its key", [{"key": "dedicated", "operator": "Exists"}], [GPU_TAINT], ""),
        ("Equal tolerates its value", [{"key": "dedicated", "operator": "Equal", "value": "gpu"}], [GPU_TAINT], ""),
        ("no operator is Equal", [{"key": "dedicated", "value": "gpu"}], [GPU_TAINT], ""),
        ("Equal does not tolerate another value", [{"key": "dedicated", "value": "cpu"}], [GPU_TAINT], "taint"),
        (
            "an effect limits the toleration",
            [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}],
            [GPU_TAINT],
            "taint",
        ),
        (
            "every taint needs its own toleration",
            [{"key": "dedicated", "operator": "Exists"}],
            [GPU_TAINT, ("x", "", "NoSchedule")],
            "taint",
        ),
        (
            "an unknown operator tolerates nothing",
            [{"key": "dedicated", "operator": "Like", "value": "gpu"}],
            [GPU_TAINT],
            "taint",
        ),
    ],
)
def test_taints(behaviour: str, tolerations: list[Spec], taints: list[tuple[str, str, str]], code: str) -> None:
    assert verdict(pod(tolerations=tolerations), node=tainted(*taints)) == code, behaviour


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    cordoned = build.node("n", unschedulable=True)
    assert verdict(pod(), node=cordoned) == "cordoned"
    assert (
        verdict(pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]), node=cordoned)
        == ""
    )
