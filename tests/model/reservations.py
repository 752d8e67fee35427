"""Preemption as a small state machine, explored state by state.

One GPU. A pod of lower priority (the victim) runs on it, a pod of higher priority (the heir) waits for its place, and a
third that fits as well (the rival) waits beside it. The preemptor asks for a reservation; a leader keeps the place,
logs that, and answers; only then the victim is evicted, and its node releases the GPU at any later time. A leader may
crash at any point, and its successor replays the log; the heir may be deleted, and the deadline may pass. Views are
fresh, and there is one leader at a time: the rest is modelled in `protocol.py`.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

RUNS, EVICTED, RETURNED = 0, 1, 2
WAITS, BOUND, GONE = 0, 1, 2
NONE, KEPT, LOGGED, TAKEN = 0, 1, 2, 3

RULES = (
    "log-first",
    "kept-for-it-alone",
    "re-adopt",
    "over-after-decisions",
    "freed-by-the-node",
    "deadline-in-the-log",
)


class State(NamedTuple):
    victim: int = RUNS
    heir: int = WAITS
    rival: int = WAITS
    log: tuple[str, ...] = ()
    """reserved, over, heir (its decision), in order."""
    leading: bool = True
    kept: int = NONE
    """What the leader knows of the reservation. TAKEN: the heir's decision is made, and not in the log yet."""
    holds: frozenset[str] = frozenset()
    """Decisions in the log whose Binding has not arrived."""
    told: bool = False
    """The preemptor has placement's answer."""
    given_up: bool = False
    """The deadline passed, or the heir was deleted: an eviction without a beneficiary that has an explanation."""
    crashes: int = 1
    deletions: int = 1
    deadlines: int = 1


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    if s.victim == RUNS and (s.told or (off == "log-first" and s.kept == KEPT)):
        yield "the victim is evicted", s._replace(victim=EVICTED)
    if s.victim == EVICTED:
        yield "the node gives the GPU back", s._replace(victim=RETURNED)
    if "heir" in s.holds and s.heir == WAITS:
        yield "the heir's Binding arrives", s._replace(heir=BOUND, holds=s.holds - {"heir"})
    if "rival" in s.holds:
        yield "the rival's Binding arrives", s._replace(rival=BOUND, holds=s.holds - {"rival"})
    if s.heir == WAITS and s.deletions:
        yield "the heir is deleted", s._replace(heir=GONE, holds=s.holds - {"heir"}, deletions=0, given_up=True)
    if s.leading:
        yield from _leader(s, off)
        if s.crashes:
            yield "the leader crashes", s._replace(leading=False, kept=NONE, crashes=s.crashes - 1)
    else:
        # Open holds are re-adopted by rule R5, which protocol.py shows; here only what becomes of the reservation.
        open_ = (
            "reserved" in s.log
            and "over" not in s.log
            and "heir" not in s.log
            and s.heir == WAITS
            and off != "re-adopt"
        )
        yield "another leader replays the log", s._replace(leading=True, kept=LOGGED if open_ else NONE)


def _leader(s: State, off: str) -> Iterator[tuple[str, State]]:
    free = s.victim == RETURNED or (off == "freed-by-the-node" and s.victim == EVICTED)
    taken = s.heir == BOUND or s.rival == BOUND or bool(s.holds) or s.kept == TAKEN
    if s.kept == NONE and s.heir == WAITS and s.victim == RUNS and not s.told and "heir" not in s.log:
        yield "the place is kept", s._replace(kept=KEPT)
    if s.kept == KEPT:
        yield "it is logged, and the preemptor told", s._replace(kept=LOGGED, log=(*s.log, "reserved"), told=True)
    if s.kept == LOGGED and free and not taken and s.heir == WAITS:
        log = (*s.log, "over") if off == "over-after-decisions" else s.log
        yield "the heir is decided", s._replace(kept=TAKEN, log=log)
    if s.kept == TAKEN:
        yield (
            "its decision is logged, then that it is over",
            s._replace(
                kept=NONE, log=(*s.log, "heir", "over"), holds=s.holds | {"heir"} if s.heir == WAITS else s.holds
            ),
        )
    if s.kept in (KEPT, LOGGED) and s.heir == GONE:
        yield "the reservation is no longer needed", s._replace(kept=NONE, log=(*s.log, "over"))
    if s.kept == LOGGED and s.deadlines:
        log = s.log if off == "deadline-in-the-log" else (*s.log, "over")
        yield "the deadline passes", s._replace(kept=NONE, log=log, deadlines=0, given_up=True)
    kept = s.kept in (KEPT, LOGGED) and off != "kept-for-it-alone"
    if free and not kept and not taken and s.rival == WAITS:
        yield "the rival is decided and logged", s._replace(holds=s.holds | {"rival"})


def double_booked(s: State) -> bool:
    """More on the GPU than one: what runs or has not been given back, and what is bound."""
    return (s.victim != RETURNED) + (s.heir == BOUND) + (s.rival == BOUND) > 1


def loss_without_gain(s: State) -> bool:
    """The victim was evicted, another pod has its place, and there is no explanation for it."""
    return s.victim != RUNS and s.heir == WAITS and (s.rival == BOUND or "rival" in s.holds) and not s.given_up


def come_back(s: State) -> bool:
    """A reservation that was given up is kept again by a successor: its deadline has passed, and others wait for
    ever."""
    return s.kept == LOGGED and s.given_up and not s.deadlines and s.heir == WAITS


def stuck(s: State, off: str) -> bool:
    """No further step is possible, the victim has ended, and the heir still waits although the GPU is free."""
    at_rest = s.leading and next(steps(s._replace(crashes=0, deletions=0, deadlines=0), off), None) is None
    return at_rest and s.victim == RETURNED and s.heir == WAITS and s.rival == WAITS


def bad(s: State, off: str) -> bool:
    return double_booked(s) or loss_without_gain(s) or come_back(s) or stuck(s, off)


def explore(start: State, off: str = "") -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), lambda state: bad(state, off))
