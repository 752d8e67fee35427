"""The set-ups of the MIG papers: no instances overlap, moves lose no job, and the same seed gives the same figures."""

from __future__ import annotations

import random

import pytest

from bench import mig_papers
from bench.mig_papers import (
    CHOICES,
    FRAGMENTATION,
    GPUS,
    JOBS,
    MIXES,
    ORDERS,
    PROFILES,
    Kerf,
    Masks,
    Static,
    acceptance,
    least_makespan_s,
    makespan,
)
from shared.model.mig import MigProfile, mask_at


def profile(name: str) -> MigProfile:
    return next(p for p in PROFILES if p.name == name)


def test_fragmentation_by_hand() -> None:
    """In the way of what one slice is: a 7g does not count, for it has too few free slices anyway."""
    assert FRAGMENTATION[0] == FRAGMENTATION[0b11111111] == 0
    at_four = mask_at(profile("1g.10gb"), 4)
    assert FRAGMENTATION[at_four] == 1 + 2 + 2 + 4
    at_zero = mask_at(profile("1g.10gb"), 0)
    assert FRAGMENTATION[at_zero] == 1 + 2 + 2 + 4 + 4, "and of the only place of a 4g"


@pytest.mark.parametrize("policy", CHOICES)
def test_instances_never_overlap_and_moves_lose_no_job(policy: str) -> None:
    random_, fleet = random.Random(1), Masks(GPUS, CHOICES[policy])
    held: dict[int, MigProfile] = {}
    moved = 0
    for job in range(400):
        wanted = random_.choice(PROFILES)
        if fleet.start(job, wanted):
            held[job] = wanted
        elif others := fleet.start_by_moves(job, wanted):
            held[job] = wanted
            moved += len(others)
        if held and random_.random() < 0.6:
            gone = random_.choice(list(held))
            fleet.end(gone)
            del held[gone]
        taken = [0] * GPUS
        for gpu, start, kind in fleet._held.values():
            assert not taken[gpu] & mask_at(kind, start)
            taken[gpu] |= mask_at(kind, start)
        assert taken == fleet._masks
        assert {number: kind for number, (_, _, kind) in fleet._held.items()} == held
    assert moved > 0


def test_kerf_carries_out_the_moves_that_it_found() -> None:
    fleet = Kerf(1, 2)
    for job in range(14):
        assert fleet.start(job, profile("1g.10gb"))
    for job in (0, 1, 2, 3, 7, 8, 9, 10):
        fleet.end(job)
    assert not fleet.start(14, profile("7g.80gb"))
    moved = fleet.start_by_moves(14, profile("7g.80gb"))
    assert moved
    assert set(moved) <= {4, 5, 6, 11, 12, 13}
    assert fleet._engine.book.overbooked() == []
    assert len(fleet._engine.book.grants) == 7
    assert fleet.start_by_moves(15, profile("7g.80gb")) == [], "there is no room by any moves"


def test_an_unchanged_layout_gives_the_smallest_instance_that_covers_a_job() -> None:
    fleet = Static()
    assert [fleet.start(job, profile("4g.40gb")) for job in range(3)] == [True, True, False], "the 4g, then the 7g"
    fleet.end(0)
    assert fleet.start(3, profile("3g.40gb"))
    assert fleet.start(4, profile("4g.40gb")), "the 3g was free for the job before"


def test_kerf_accepts_more_than_first_fit_does_and_the_same_each_time() -> None:
    ours, first_fit = acceptance("kerf", "uniform", 1.1, 1), acceptance("first-fit", "uniform", 1.1, 1)
    assert ours.accepted_percent > first_fit.accepted_percent
    assert acceptance("kerf", "uniform", 1.1, 1) == ours


@pytest.mark.parametrize("policy", ["first-fit", "kerf"])
@pytest.mark.parametrize("order", ORDERS)
def test_moves_shorten_the_makespan_and_nothing_is_shorter_than_the_least(policy: str, order: str) -> None:
    still = makespan(policy, "small", 1, order=order, moves=False)
    moving = makespan(policy, "small", 1, order=order, moves=True)
    assert least_makespan_s("small", 1) <= moving.makespan_s < still.makespan_s
    assert still.moves == 0 < moving.moves


def test_every_mix_has_a_weight_for_each_profile() -> None:
    assert {len(weights) for weights in MIXES.values()} == {len(PROFILES)}
    assert len(mig_papers._jobs("uniform", 1)) == JOBS
