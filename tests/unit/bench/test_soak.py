"""What the soak prints of a churn."""

from __future__ import annotations

from bench.soak import summary
from tests.chaos.churn.run import Report

REPORT = Report(
    seconds=12.5,
    seed=1,
    faults=7,
    kinds={"kill": 4, "wipe": 3},
    pods_created=90,
    max_bound=60,
    looks=100,
    double_bookings=1,
    lost=2,
    leaks_mib=512,
    leaks=1,
    stuck={"pod-1": 61.0, "pod-2": 90.0},
    stuck_in_service={"pod-2": 62.0},
    gap_s=2.3456,
    violations=("double booking: a", "lost: b", "lost: c", "leak: d", "grant: e"),
)


def test_the_object_has_each_count_and_what_is_left_of_the_violations() -> None:
    found = summary(REPORT, spares_one=True)
    assert {key: found[key] for key in ("faults", "kinds", "double_bookings", "pods_lost", "leaks")} == {
        "faults": 7,
        "kinds": {"kill": 4, "wipe": 3},
        "double_bookings": 1,
        "pods_lost": 2,
        "leaks": 1,
    }
    assert (found["stuck_over_60s"], found["stuck_over_60s_in_service"]) == (2, 1)
    assert (found["gap_ms_max"], found["other_violations"]) == (2346, 1)
    assert (found["seconds"], found["spares_one"]) == (12.5, True)
