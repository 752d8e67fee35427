"""Fair shares: computed by hand, and properties for any tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.policy import Amounts, QueuePolicy, QueueRule
from shared.queues.amounts import Amount
from shared.queues.fair_shares import fair_shares
from shared.queues.tree import Tree

G = 1000


def make_tree(*rules: QueueRule, gpus: int) -> Tree:
    tree = Tree(QueuePolicy(queues=rules))
    tree.set_capacity(Amount(gpus * G, 1, 1))
    return tree


def queue(name: str, guaranteed: float = 0, weight: float = 1, **rest: object) -> QueueRule:
    return QueueRule(name=name, guaranteed=Amounts(gpus=guaranteed), weight=weight, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "gpus", "waiting", "expected"),
    [
        pytest.param((queue("a"), queue("b")), 4, {"a": 9, "b": 9}, {"a": 2, "b": 2}, id="halves"),
        pytest.param(
            (queue("a"), queue("b")),
            4,
            {"a": 1, "b": 9},
            {"a": 1, "b": 3},
            id="unwanted capacity goes to the other queue",
        ),
        pytest.param(
            (queue("a", 3), queue("b")),
            4,
            {"a": 9, "b": 9},
            {"a": 3.5, "b": 0.5},
            id="guarantees first; equal halves are not rounded up",
        ),
        pytest.param(
            (queue("a", weight=2), queue("b")),
            4,
            {"a": 9, "b": 9},
            {"a": 3, "b": 1},
            id="to whole GPUs, the larger part up",
        ),
        pytest.param(
            (queue("a", 1, weight=0), queue("b")),
            4,
            {"a": 9, "b": 9},
            {"a": 1, "b": 3},
            id="weight 0 gets its guarantee",
        ),
        pytest.param(
            (queue("a", priority=1), queue("b")), 4, {"a": 3, "b": 9}, {"a": 3, "b": 1}, id="priority before weight"
        ),
        pytest.param(
            (queue("a", limit=Amounts(gpus=1)), queue("b")),
            4,
            {"a": 9, "b": 9},
            {"a": 1, "b": 3},
            id="not above its limit",
        ),
        pytest.param(
            (queue("p"), queue("q"), queue("p1", parent="p", weight=3), queue("p2", parent="p")),
            8,
            {"p1": 9, "p2": 9, "q": 9},
            {"p": 4, "q": 4, "p1": 3, "p2": 1},
            id="parents divide their share",
        ),
    ],
)
def test_by_hand(rules: tuple[QueueRule, ...], gpus: int, waiting: dict[str, int], expected: dict[str, float]) -> None:
    found = fair_shares(make_tree(*rules, gpus=gpus), {name: count * G for name, count in waiting.items()})
    assert {name: found[name] / G for name in expected} == expected


RULES = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from((0.0, 0.5, 1, 3)), st.integers(0, 1)), min_size=1, max_size=5
)


@given(rules=RULES, gpus=st.integers(0, 12), wants=st.lists(st.integers(0, 9_000), min_size=5, max_size=5))
def test_fair_shares_exceed_neither_capacity_nor_demand(
    rules: list[tuple[int, float, int]], gpus: int, wants: list[int]
) -> None:
    tree = make_tree(
        *(queue(f"q{i}", least, weight, priority=first) for i, (least, weight, first) in enumerate(rules)), gpus=gpus
    )
    found = fair_shares(tree, {f"q{i}": want for i, want in enumerate(wants[: len(rules)])})
    guaranteed = sum(least * G for least, _, _ in rules)
    assert sum(found.values()) <= max(gpus * G, 1, guaranteed) + 1e-6
    for i, (least, _, _) in enumerate(rules):
        assert found[f"q{i}"] >= min(wants[i], least * G) - 1e-6, "a guarantee is due in full"
        assert found[f"q{i}"] < wants[i] + G, "beyond what is wanted by the rounding alone"


@given(rules=RULES, gpus=st.integers(0, 12), wants=st.lists(st.integers(0, 9_000), min_size=5, max_size=5))
def test_names_and_their_order_do_not_matter(rules: list[tuple[int, float, int]], gpus: int, wants: list[int]) -> None:
    many = list(enumerate(rules))
    one = fair_shares(
        make_tree(*(queue(f"q{i}", least, weight, priority=first) for i, (least, weight, first) in many), gpus=gpus),
        {f"q{i}": wants[i] for i, _ in many},
    )
    other = fair_shares(
        make_tree(
            *(queue(f"z{9 - i}", least, weight, priority=first) for i, (least, weight, first) in reversed(many)),
            gpus=gpus,
        ),
        {f"z{9 - i}": wants[i] for i, _ in many},
    )
    assert [one[f"q{i}"] for i, _ in many] == pytest.approx([other[f"z{9 - i}"] for i, _ in many])
