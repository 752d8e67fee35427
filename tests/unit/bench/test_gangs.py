"""The bench of gangs, in small."""

from __future__ import annotations

from bench.gangs import run


def test_the_bench_places_its_gangs_in_one_record_each_and_refuses_the_one_that_cannot_fit() -> None:
    result = run(10, 3, 5)
    assert (result.pods, result.nodes, result.records, result.waiting) == (10, 3, 1, 5)
