"""The quantum scheduler: tables of decisions, and shares in simulated time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.node_agent.strategies.quantum_scheduler import Contender, Decision, QuantumPolicy, QuantumScheduler
from services.node_agent.strategies.slices import Key

MS = 1_000_000
POLICY = QuantumPolicy(quantum_ns=50 * MS, idle_for_ns=20 * MS)
HIGH, LOW = (1, 5), (0, 0)


def key(name: str) -> Key:
    return (name, "c")


def one(name: str, rank: tuple[int, int] = LOW, *, busy: bool = True, used_ms: int = 0) -> Contender:
    return Contender(key=key(name), rank=rank, busy=busy, used_ns=used_ms * MS)


def owner_and_waiting(turn: Decision) -> tuple[str | None, set[str]]:
    return (None if turn.owner is None else turn.owner[0], {name for name, _ in turn.waiting})


def decide(scheduler: QuantumScheduler, at_ms: int, *seen: Contender) -> tuple[str | None, set[str]]:
    return owner_and_waiting(scheduler.step(at_ms * MS, seen))


def test_if_no_slice_wants_the_gpu_every_slice_may_begin() -> None:
    assert decide(QuantumScheduler(POLICY), 0, one("a", busy=False), one("b", HIGH, busy=False)) == (None, set())


def test_the_lower_rank_waits_until_the_higher_has_been_idle_for_long_enough() -> None:
    scheduler = QuantumScheduler(POLICY)
    low = one("low")
    assert decide(scheduler, 0, low, one("high", HIGH)) == ("high", {"low"})
    assert decide(scheduler, 15, low, one("high", HIGH, busy=False)) == ("high", {"low"}), "a gap between two kernels"
    assert decide(scheduler, 30, low, one("high", HIGH, busy=False)) == ("low", set())


def test_the_higher_rank_is_never_delayed_and_takes_the_gpu_at_once() -> None:
    scheduler = QuantumScheduler(POLICY)
    decide(scheduler, 0, one("low"), one("high", HIGH, busy=False))
    assert decide(scheduler, 5, one("low"), one("high", HIGH)) == ("high", {"low"})


def test_slices_of_equal_rank_take_quanta_in_rotation() -> None:
    scheduler, owners = QuantumScheduler(POLICY), []
    run: str | None = None
    for at in range(0, 300, 10):
        run, waiting = decide(scheduler, at, *(one(name, used_ms=10 if name == run else 0) for name in "abc"))
        assert waiting == set("abc") - {run}
        owners.append(run)
    assert [owners[i] for i in range(0, 30, 5)] == ["a", "b", "c", "a", "b", "c"]
    assert all(len(set(owners[i : i + 5])) == 1 for i in range(0, 30, 5))


def test_a_slice_that_goes_idle_gives_up_its_quantum() -> None:
    scheduler = QuantumScheduler(POLICY)
    assert decide(scheduler, 0, one("a"), one("b")) == ("a", {"b"})
    decide(scheduler, 5, one("a", busy=False), one("b"))
    assert decide(scheduler, 25, one("a", busy=False), one("b")) == ("b", set())


def test_a_minimum_share_is_a_quantum_from_time_to_time_even_if_others_are_busy() -> None:
    policy = msgspec.structs.replace(POLICY, least_milli=100)
    scheduler, low_ms, run = QuantumScheduler(policy), 0, None
    for at in range(0, 10_000, 5):
        run, _ = decide(
            scheduler,
            at,
            one("low", used_ms=5 if run == "low" else 0),
            one("high", HIGH, used_ms=5 if run == "high" else 0),
        )
        low_ms += 5 if run == "low" else 0
    assert 900 <= low_ms <= 1050


def test_without_a_minimum_share_the_lower_rank_runs_only_in_the_gaps() -> None:
    scheduler = QuantumScheduler(POLICY)
    assert {decide(scheduler, at, one("low"), one("high", HIGH))[0] for at in range(0, 5000, 5)} == {"high"}


def test_the_sum_of_minimum_shares_is_at_most_half_of_the_time() -> None:
    policy = msgspec.structs.replace(POLICY, least_milli=400)
    scheduler, high_ms, run = QuantumScheduler(policy), 0, None
    lows = [f"low{i}" for i in range(5)]
    for at in range(0, 20_000, 5):
        seen = [one(name, used_ms=5 if run == name else 0) for name in lows]
        run, _ = decide(scheduler, at, *seen, one("high", HIGH, used_ms=5 if run == "high" else 0))
        high_ms += 5 if run == "high" else 0
    assert high_ms >= 9_500


def test_an_agent_that_was_frozen_grants_no_long_run() -> None:
    policy = msgspec.structs.replace(POLICY, least_milli=200)
    scheduler = QuantumScheduler(policy)
    decide(scheduler, 0, one("low"), one("high", HIGH))
    run: str | None = "high"
    low_ms = 0
    for at in range(60_000, 60_400, 5):
        run, _ = decide(scheduler, at, one("low", used_ms=5 if run == "low" else 0), one("high", HIGH))
        low_ms += 5 if run == "low" else 0
    assert low_ms <= 3 * 50 + 80 * 5 * 200 // 1000


class Workload:
    """Contenders whose work comes in stretches, on a GPU that all running contenders share evenly."""

    def __init__(self, plans: list[list[tuple[int, int]]]) -> None:
        self.plans = plans

    def busy(self, index: int, at_ms: int) -> bool:
        return any(start <= at_ms < end for start, end in self.plans[index])


@settings(max_examples=60)
@given(
    ranks=st.lists(st.sampled_from([(0, 0), (1, 0), (1, 7)]), min_size=2, max_size=5),
    stretches=st.lists(
        st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1500)), max_size=3), min_size=5, max_size=5
    ),
    least=st.sampled_from([0, 50, 150]),
    step=st.sampled_from([2, 5, 9]),
)
def test_in_simulated_time_only_the_owner_runs_and_every_minimum_share_is_met(
    ranks: list[tuple[int, int]], stretches: list[list[tuple[int, int]]], least: int, step: int
) -> None:
    """The first contender is always busy: it must get its minimum share in any two seconds."""
    end_ms, policy = 4000, msgspec.structs.replace(POLICY, least_milli=least)
    plans = [[(start, start + length) for start, length in stretches[i]] for i in range(len(ranks))]
    plans[0] = [(0, end_ms)]
    workload, scheduler = Workload(plans), QuantumScheduler(policy)
    waiting: set[str] = set()
    was_busy = [False] * len(ranks)
    got: list[int] = []
    for at in range(0, end_ms, step):
        running = [i for i in range(len(ranks)) if str(i) not in waiting and workload.busy(i, at)]
        used = {i: step / len(running) for i in running}
        got.append(round(used.get(0, 0) * MS))
        seen = []
        for i, rank in enumerate(ranks):
            was_busy[i] = was_busy[i] if str(i) in waiting else workload.busy(i, at)
            seen.append(Contender(key=key(str(i)), rank=rank, busy=was_busy[i], used_ns=round(used.get(i, 0) * MS)))
        owner, waiting = decide(scheduler, at, *seen)
        busy = {str(i) for i in range(len(ranks)) if was_busy[i]}
        assert busy - {owner} <= waiting, "a busy contender that is not the owner waits"
        assert owner not in waiting
        highest = max((ranks[int(name)] for name in busy), default=None)
        assert {name for name in waiting if name not in busy and ranks[int(name)] >= max(ranks)} == set()
        if highest is not None:
            assert owner is not None
        if least == 0 and highest is not None:
            assert owner is not None
            assert ranks[int(owner)] >= highest
    promised = min(least, 500 // (len(ranks) - 1)) * 2000 // 1000
    looks = 2000 // step
    for first in range(0, len(got) - looks, 7):
        assert sum(got[first : first + looks]) // MS >= promised - 2 * 50 - 2 * step


def test_slices_that_are_gone_are_forgotten() -> None:
    scheduler = QuantumScheduler(POLICY)
    decide(scheduler, 0, one("a"), one("b"))
    assert decide(scheduler, 60, one("b")) == ("b", set())
    assert decide(scheduler, 70) == (None, set())


@pytest.mark.parametrize("least", [0, 100])
def test_a_clock_that_goes_backwards_does_no_harm(least: int) -> None:
    scheduler = QuantumScheduler(msgspec.structs.replace(POLICY, least_milli=least))
    decide(scheduler, 100, one("a"), one("b", HIGH))
    assert decide(scheduler, 50, one("a"), one("b", HIGH)) == ("b", {"a"})
