"""What a slice shall have by its use: never beyond the bounds, never below what is used, and steady if that is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.model.autoscale import (
    REFUSED_SETTLE_S,
    SETTLE_S,
    Autoscale,
    AutoscaleError,
    Bounds,
    Follower,
    Use,
    read_autoscale,
)

EVERY_S = 10.0
BOUNDS = st.tuples(st.integers(1, 40_000), st.integers(0, 40_000)).map(lambda b: Bounds(low=b[0], high=b[0] + b[1]))


def use(at_s: float, memory_mib: int, granted_mib: int, refused: int = 0) -> Use:
    return Use(at_s=at_s, memory_mib=memory_mib, granted_mib=granted_mib, refused=refused)


@given(
    BOUNDS,
    st.lists(st.tuples(st.floats(1, 400), st.floats(0, 1), st.integers(0, 1)), max_size=60),
    st.integers(1, 80_000),
)
def test_it_stays_within_the_bounds_and_never_below_what_is_used(
    bounds: Bounds, samples: list[tuple[float, float, int]], granted_mib: int
) -> None:
    """A grant that is outside of the bounds at first comes into them, and does not leave them again."""
    follower, at_s, refused = Follower(), 0.0, 0
    for wait_s, part, fails in samples:
        at_s, refused = at_s + wait_s, refused + fails
        used = int(granted_mib * part)
        wanted, _ = follower.wanted(use(at_s, used, granted_mib, refused), Autoscale(memory=bounds))
        assert wanted >= used
        assert wanted >= bounds.low
        assert wanted <= max(bounds.high, granted_mib)
        if bounds.low <= granted_mib <= bounds.high:
            assert bounds.low <= wanted <= bounds.high
        granted_mib = wanted


@given(BOUNDS, st.integers(1, 80_000), st.integers(0, 80_000))
def test_a_constant_use_leads_to_one_amount(bounds: Bounds, granted_mib: int, used_mib: int) -> None:
    """However often it is sampled: up at most until it is enough, or down once; before that to its bounds."""
    follower, amounts = Follower(), [granted_mib]
    for number in range(200):
        used = min(used_mib, amounts[-1])
        wanted, _ = follower.wanted(use(number * EVERY_S, used, amounts[-1]), Autoscale(memory=bounds))
        if wanted != amounts[-1]:
            amounts.append(wanted)
    rises = [after > before for before, after in itertools.pairwise(amounts)]
    assert rises in ([True] * len(rises), [False] * len(rises))
    assert rises.count(False) <= 1 + (granted_mib > bounds.high)


def test_a_failed_allocation_gives_a_quarter_more_at_once() -> None:
    follower, scale = Follower(), read_autoscale("memory=4Gi..20Gi")
    assert follower.wanted(use(0, 1000, 4096), scale) == (4096, 0)
    assert follower.wanted(use(10, 1000, 4096, refused=1), scale) == (5120, 0)


def test_memory_is_given_back_after_a_whole_settling_time_and_later_after_a_failed_allocation() -> None:
    scale = read_autoscale("memory=1Gi..20Gi")
    for fails, settle_s in ((0, SETTLE_S), (1, REFUSED_SETTLE_S)):
        follower, granted, at_s = Follower(), 8192, 0.0
        follower.wanted(use(at_s, 2048, granted), scale)
        granted, _ = follower.wanted(use(at_s, 2048, granted, refused=fails), scale)
        while at_s + EVERY_S < settle_s:
            at_s += EVERY_S
            assert follower.wanted(use(at_s, 2048, granted, refused=fails), scale) == (granted, 0)
        assert follower.wanted(use(at_s + EVERY_S, 2048, granted, refused=fails), scale) == (2560, 0)


def test_gpu_time_grows_after_a_busy_minute() -> None:
    follower, scale = Follower(), read_autoscale("compute=10..60")

    def at(at_s: float, gpu_milli: int) -> int:
        sample = Use(at_s=at_s, memory_mib=0, granted_mib=1024, gpu_milli=gpu_milli, granted_milli=400)
        return follower.wanted(sample, scale)[1]

    assert [at(second, 395) for second in (0, 30, 50)] == [400, 400, 400]
    assert at(60, 395) == 500
    assert at(70, 395) == 400, "a minute begins anew"


@pytest.mark.parametrize(
    "text", ["", "memory", "memory=4Gi", "memory=8Gi..4Gi", "memory=0..4Gi", "speed=1..2", "memory=x..y"]
)
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(AutoscaleError, match=r"kerf\.dev/autoscale"):
        read_autoscale(text)


@given(BOUNDS, st.integers(1, 40_000), st.integers(1, 40_000), st.floats(0, 1))
def test_on_its_way_up_an_amount_stops_at_the_request(
    bounds: Bounds, granted_mib: int, requested_mib: int, part: float
) -> None:
    seen = use(0.0, int(granted_mib * part), granted_mib)
    freely, _ = Follower().wanted(seen, Autoscale(memory=bounds))
    wanted, _ = Follower().wanted(replace(seen, requested_mib=requested_mib), Autoscale(memory=bounds))
    assert wanted == (requested_mib if granted_mib < requested_mib < freely else freely)


def test_of_two_changes_the_one_within_the_request_comes_first() -> None:
    bounds = Autoscale(memory=Bounds(low=1000, high=9000), compute=Bounds(low=200, high=900))
    asked = replace(use(0.0, 0, 0), granted_milli=400, requested_mib=2000, requested_milli=400)
    for memory_mib, granted_mib, wanted in (
        (1500, 1536, (2000, 400)),
        (2000, 2048, (2560, 500)),
        (10, 1536, (1536, 500)),
    ):
        follower = Follower()
        for at_s in (0.0, 30.0, 60.0):
            seen = replace(asked, at_s=at_s, memory_mib=memory_mib, granted_mib=granted_mib, gpu_milli=399)
            found = follower.wanted(seen, bounds)
        assert found == wanted
