"""The speed of copies is learned from large ones, follows what happens now, and is told anew only when it matters."""

from __future__ import annotations

import pytest

from services.node_agent.strategies.copy_speeds import MAX_MIB_PER_S, CopySpeeds, Learned


def test_the_first_copy_is_told() -> None:
    assert CopySpeeds().after("out", 4096, 2.0).out.told_mib_per_s == 2048


def test_each_way_is_learned_apart() -> None:
    learned = CopySpeeds().after("out", 4096, 2.0).after("back", 4096, 1.0)
    assert (learned.out.told_mib_per_s, learned.back.told_mib_per_s) == (2048, 4096)


@pytest.mark.parametrize(("mib", "seconds"), [(1023, 1.0), (4096, 0.0), (4096, -1.0), (0, 1.0)])
def test_what_says_nothing_is_not_learned(mib: int, seconds: float) -> None:
    assert Learned().after(mib, seconds) == Learned()


def test_a_small_change_is_learned_and_not_told() -> None:
    known = Learned().after(10_000, 5.0)
    again = known.after(10_400, 5.0)
    assert (known.told_mib_per_s, again.told_mib_per_s) == (2000, 2000)
    assert again != known


def test_a_host_that_became_slower_is_told_after_a_few_copies() -> None:
    known, copies = Learned().after(10_000, 2.5), 0
    while known.told_mib_per_s > 2200:
        known, copies = known.after(10_000, 5.0), copies + 1
    assert copies <= 8
    assert known.told_mib_per_s < 2200


def test_a_large_copy_counts_more_than_a_small_one() -> None:
    assert Learned().after(1024, 2.0).after(81_920, 20.0).told_mib_per_s > 3800


def test_no_speed_beyond_that_of_any_link_is_told() -> None:
    assert Learned().after(1 << 20, 0.001).told_mib_per_s == MAX_MIB_PER_S
