"""A set is enough when its sizes add up; every proper subset of a result that may stay is too little."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.minimal_sets import add_until_enough, first_unneeded, put_back_unneeded


class One(msgspec.Struct, frozen=True):
    uid: str
    size: int


PODS = st.lists(st.integers(1, 9), max_size=7).map(lambda sizes: [One(f"p{i}", size) for i, size in enumerate(sizes)])


def total(pods: Sequence[One]) -> int:
    return sum(pod.size for pod in pods)


def alone(pod: One, _: Sequence[One]) -> list[One]:
    return [pod]


@given(PODS, st.integers(1, 40))
def test_the_shortest_prefix_is_added(pods: list[One], needed: int) -> None:
    found = add_until_enough(pods, alone, lambda some: total(some) >= needed)
    if total(pods) < needed:
        assert found is None
    else:
        assert found == pods[: len(found or ())]
        assert total(found or ()) >= needed > total((found or ())[:-1])


@given(PODS, st.integers(1, 40))
def test_no_pod_of_a_minimal_set_can_stay(pods: list[One], needed: int) -> None:
    if total(pods) < needed:
        return

    def is_enough(some: Sequence[One]) -> bool:
        return total(some) >= needed

    found = put_back_unneeded(pods, [{pod.uid} for pod in reversed(pods)], is_enough)
    assert is_enough(found)
    assert not any(is_enough(rest) for rest in combinations(found, len(found) - 1))
    assert first_unneeded(found, [{pod.uid} for pod in found], is_enough) is None


def test_a_candidate_that_must_stay_is_skipped_and_a_unit_leaves_together() -> None:
    a, b, c = One("a", 5), One("b", 2), One("c", 2)
    units = {"a": None, "b": [b, c], "c": [c]}
    assert add_until_enough([a, b, c], lambda pod, _: units[pod.uid], lambda some: total(some) >= 3) == [b, c]


def test_groups_stay_in_their_order_and_as_a_whole() -> None:
    pods = [One("a", 3), One("b", 1), One("c", 2)]
    assert put_back_unneeded(pods, [{"b", "c"}, {"a"}], lambda some: total(some) >= 3) == [pods[0]]
    assert first_unneeded(pods, [{"a", "b"}, {"b"}], lambda some: total(some) >= 3) == {"b"}
