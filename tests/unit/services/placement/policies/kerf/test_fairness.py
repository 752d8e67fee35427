"""Which pods are rejected, and which groups lose weight for them."""

from __future__ import annotations

import numpy as np
import pytest

from services.placement.policies.kerf.fairness import Fairness, Floats, fair_groups
from services.placement.policies.kerf.parameters import FLOW, OFTEN, PAIRS_REFUSED, TURNED_AWAY


def test_a_rejected_pod_is_counted_only_for_the_gpus_that_it_could_use() -> None:
    fairness = Fairness()
    for _ in range(9000):
        fairness.meet(1, np.array([True, False]), placed=False)
        fairness.meet(1, np.array([False, True]), placed=True)
    one, two = fairness.rates(3)
    assert one.tolist() == [pytest.approx(0.95, abs=0.01), 0.0, 0.0]
    assert two.tolist() == [0.0, 0.0, 0.0]
    for _ in range(40_000):
        fairness.meet(1, np.array([True, True]), placed=True)
    assert fairness.rates(2)[0, 0] < 0.001


def test_a_few_pods_of_two_gpus_are_enough_to_count_and_are_forgotten_when_none_follow() -> None:
    fairness = Fairness()
    for _ in range(120):
        fairness.meet(2, np.array([True]), placed=False)
        fairness.meet(4, np.array([True]), placed=True)
        fairness.meet(0, np.array([True]), placed=False)
    assert fairness.rates(1).tolist() == [[0.0], [pytest.approx(0.865, abs=0.01)]]
    for _ in range(330_000):
        fairness.meet(1, np.array([True]), placed=True)
    assert fairness.rates(1)[1, 0] < 0.01


def test_groups_lose_weight_as_single_gpu_pods_are_rejected_and_all_of_it_when_often() -> None:
    scarce = np.array([0, 0, 0.01, 0, 0.2, 0, 0, 0, 1.0])
    none, some, many, all_of_them = (_groups(scarce, one, 0.0) for one in (0.0, TURNED_AWAY, OFTEN, 1.0))
    assert none[[4, 8]].tolist() == [FLOW.strong_groups * 0.2, FLOW.strong_groups]
    assert some[[4, 8]].tolist() == [FLOW.weak_groups * 0.2, FLOW.weak_groups]
    assert not many[3:].any()
    assert not all_of_them[3:].any()
    assert none[0] == FLOW.open_groups
    assert some[0] == many[0] == 0


def test_the_weight_of_a_pair_grows_with_rejected_pods_of_two_gpus_and_not_of_one() -> None:
    scarce = np.array([0, 0, 0.01, 0, 0.2, 0, 0, 0, 1.0])
    for one in (0.0, OFTEN, 1.0):
        calm, half, pressed, beyond = (
            _groups(scarce, one, two)[2] for two in (0.0, PAIRS_REFUSED / 2, PAIRS_REFUSED, 1.0)
        )
        assert 0 < calm < half < pressed == beyond == FLOW.pairs


def _groups(scarce: Floats, one: float, two: float) -> Floats:
    """Of one GPU kind, for which pods of one and of two GPUs are rejected at these rates."""
    return fair_groups(scarce, np.array([[one], [two]]), FLOW)[0]
