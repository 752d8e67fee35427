"""What a small run of the bench of terms about other pods rests on: pods are where their terms allow them."""

from __future__ import annotations

import pytest

from bench.terms import TERMS, Terms, measure


@pytest.mark.parametrize("kind", TERMS)
def test_all_pods_are_placed(kind: str) -> None:
    found = measure(16, 40, 8, kind)
    assert found["placed"] == 8
    assert 0 < found["ms_p50"] <= found["ms_p99"]


@pytest.mark.parametrize(("kind", "nodes"), [("plain", 1), ("apart", 8), ("preferred_apart", 8), ("spread", 8)])
def test_terms_keep_pods_apart(kind: str, nodes: int) -> None:
    cluster = Terms(16)
    for number in range(8):
        cluster.arrives(f"q{number}", "mine", kind)
    assert len({cluster.core.book.pods[f"q{number}"].charged for number in range(8)}) == nodes
