"""What several rounds of the bench come to."""

from __future__ import annotations

from typing import Any

from bench.bind import summary


def measured(rate: float, cpu: int) -> dict[str, Any]:
    return {
        "ceiling_pods_per_s": 400.0,
        "kerf_pods_per_s": rate,
        "ratio_to_ceiling": rate / 400.0,
        "kerf_cpu_us_per_pod": cpu,
        "kerf_cpu_us_per_pod_by_process": {"placement": cpu - 100, "nats": 100},
    }


def test_rounds_are_summed_up_by_median_smallest_and_largest() -> None:
    found = summary([measured(300.0, 500), measured(360.0, 900), measured(320.0, 400)])
    assert found["kerf_pods_per_s"] == {"median": 320.0, "min": 300.0, "max": 360.0}
    assert found["ratio_to_ceiling"]["median"] == 0.8
    assert found["kerf_cpu_us_per_pod: placement"] == {"median": 400, "min": 300, "max": 800}


def test_what_was_not_measured_is_not_summed_up() -> None:
    assert "kube_scheduler_pods_per_s" not in summary([measured(300.0, 500)])
