"""The bench of the preemptor's plans, in small."""

from __future__ import annotations

from bench.plans import run


def test_the_bench_plans_for_all_of_its_pods_and_gangs_after_candidates_are_made() -> None:
    result = run(330, 3)
    assert (result.nodes, result.gang, result.ticks) == (330, 3, 2)
