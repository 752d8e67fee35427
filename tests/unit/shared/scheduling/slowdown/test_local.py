"""What is predicted of containers that share a GPU: never below 1, more with each neighbour, the same for the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.use import UseProfile
from shared.scheduling.slowdown.local import WAYS, Sharer, Way, slowdown_of, way_of

milli = st.integers(0, 1000)
uses = st.builds(
    UseProfile, busy_milli=milli, sm_milli=milli, bandwidth_milli=milli, request_us=st.integers(0, 1_000_000)
)
sharers = st.builds(Sharer, uses, st.sampled_from([0, 100, 300]), st.integers(100, 1000), st.integers(100, 1000))
ways = st.sampled_from(WAYS)


def using(busy: int, sm: int = 1000, bandwidth: int = 0, **rest: int) -> Sharer:
    return Sharer(UseProfile(busy_milli=busy, sm_milli=sm, bandwidth_milli=bandwidth), **rest)


@given(sharers, st.lists(sharers, max_size=6), ways)
def test_no_container_gets_faster_by_sharing(me: Sharer, others: list[Sharer], way: Way) -> None:
    assert slowdown_of(me, others, way) >= 1


@given(sharers, st.lists(sharers, max_size=4), sharers, ways)
def test_one_more_neighbour_makes_no_container_faster(me: Sharer, others: list[Sharer], more: Sharer, way: Way) -> None:
    assert slowdown_of(me, [*others, more], way) >= slowdown_of(me, others, way) - 1e-9


@given(sharers, sharers, st.integers(0, 500), ways)
def test_a_busier_neighbour_makes_no_container_faster(me: Sharer, other: Sharer, more: int, way: Way) -> None:
    busy = min(1000, other.use.busy_milli + more)
    busier = msgspec.structs.replace(other, use=msgspec.structs.replace(other.use, busy_milli=busy))
    assert slowdown_of(me, [busier], way) >= slowdown_of(me, [other], way) - 1e-9


@given(sharers, st.lists(sharers, min_size=2, max_size=5), ways)
def test_the_order_of_neighbours_does_not_matter(me: Sharer, others: list[Sharer], way: Way) -> None:
    assert slowdown_of(me, others, way) == pytest.approx(slowdown_of(me, others[::-1], way))


@given(sharers, st.lists(sharers, max_size=4))
def test_neither_whole_gpus_nor_instances_notice_neighbours(me: Sharer, others: list[Sharer]) -> None:
    assert slowdown_of(me, others, "alone") == 1
    assert slowdown_of(me, others, "partition") == slowdown_of(me, [], "partition")


@pytest.mark.parametrize(
    ("me", "others", "way", "expected"),
    [
        (using(1000), [using(1000)], "turns", 2.08),
        (using(500), [using(500)], "turns", 1.27),
        (using(1000), [], "turns", 1.0),
        (using(800, reserved_milli=400), [using(1000)], "turns", 2.0),
        (using(400, reserved_milli=400), [using(1000)], "turns", 1.0),
        (using(1000), [using(1000, reserved_milli=500)], "turns", 2.0),
        (using(1000, 400), [using(1000, 400)], "concurrent", 1.0),
        (using(1000, 700), [using(1000, 700)], "concurrent", 1.4),
        (using(1000, 700, 600), [using(1000, 200, 600)], "concurrent", 1.35),
        (using(1000, 800, sm_milli=400), [], "concurrent", 2.0),
        (using(1000, 571, sm_milli=571), [], "partition", 1.0),
        (using(1000, 1000, sm_milli=500), [using(1000)], "partition", 2.0),
        (using(1000, 100, 1000, bandwidth_milli=250), [], "partition", 4.0),
    ],
    ids=[
        "two that saturate take turns", "two that are busy half of the time", "alone", "a share is never exceeded",
        "a share is kept whatever others do", "what is reserved is missing", "SMs for both",
        "more SMs than there are", "bandwidth, and the caches before it is used up", "a cap", "what it needs",
        "half of the SMs", "a quarter of the bandwidth",
    ],
)  # fmt: skip
def test_slowdowns(me: Sharer, others: list[Sharer], way: Way, expected: float) -> None:
    assert slowdown_of(me, others, way) == pytest.approx(expected, abs=0.005)


def test_short_requests_wait_at_the_gate_more_than_long_ones() -> None:
    def sharer(request_us: int) -> Sharer:
        return Sharer(UseProfile(busy_milli=300, request_us=request_us))

    beside = [using(500)]
    short, long = (slowdown_of(sharer(us), beside, "turns") for us in (2_000, 200_000))
    assert short > long > 1


def test_what_was_learned_scales_what_is_predicted() -> None:
    me = using(1000, 700)
    learned = msgspec.structs.replace(me, use=msgspec.structs.replace(me.use, sensitivity_milli=500))
    assert slowdown_of(learned, [me], "concurrent") == pytest.approx(1.2)


def test_every_strategy_shares_in_one_way() -> None:
    ways = {name: way_of(name) for name in ("exclusive", "mps", "mig", "interposer", "time_slice", "unknown")}
    assert list(ways.values()) == ["alone", "concurrent", "partition", "turns", "turns", "turns"]
