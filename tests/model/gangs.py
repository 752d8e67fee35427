"""Gangs as a small state machine, explored state by state.

Two gangs of two pods each want a few GPUs, one GPU per pod. Pods are created in any order, and one may be edited, so
that a Binding under way has no effect. A leader decides, logs, sends; it may crash at any point, and its successor
replays. A Binding that was sent may arrive at any later time. Stale views, frozen leaders and wipes are modelled in
`protocol.py`; here views are fresh, and there is one leader at a time.

Each rule can be switched off, which must lead to a bad state: that shows that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.model.explore import explore as all_states

ABSENT, PENDING, BOUND = 0, 1, 2
GANGS = ((0, 1), (2, 3))
MINIMUM = 2

RULES = ("gather", "all-at-once", "one-record", "no-waiting-once-begun", "re-adopt")

Made = tuple[int, int]
"""(pod, version) of a decision."""


class State(NamedTuple):
    pods: tuple[tuple[int, int], ...]
    """(status, version)"""
    log: tuple[frozenset[Made], ...]
    leading: bool
    holds: frozenset[Made]
    decided: tuple[frozenset[Made], ...]
    """Records that are still to be logged, one after the other."""
    binds: frozenset[Made]
    gpus: int
    crashes: int
    edits: int


def initial(*, gpus: int, crashes: int = 1, edits: int = 1) -> State:
    return State(((ABSENT, 1),) * 4, (), True, frozenset(), (), frozenset(), gpus, crashes, edits)


def steps(s: State, off: str = "") -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    for p, (status, version) in enumerate(s.pods):
        if status == ABSENT:
            yield f"pod {p} is created", s._replace(pods=_put(s.pods, p, (PENDING, version)))
        if status == PENDING and s.edits:
            yield f"a user edits pod {p}", s._replace(pods=_put(s.pods, p, (PENDING, version + 1)), edits=s.edits - 1)
    for p, version in s.binds:
        if s.pods[p] == (PENDING, version):
            yield f"the binding of pod {p} arrives", s._replace(pods=_put(s.pods, p, (BOUND, version)))
    if s.leading:
        yield from _leader(s, off)
        if s.crashes:
            yield "the leader crashes", s._replace(leading=False, holds=frozenset(), decided=(), crashes=s.crashes - 1)
    else:
        again = (
            frozenset(d for record in s.log for d in record if s.pods[d[0]] == (PENDING, d[1]))
            if off != "re-adopt"
            else frozenset()
        )
        yield "a successor takes over", s._replace(leading=True, holds=again)


def _leader(s: State, off: str) -> Iterator[tuple[str, State]]:
    void = frozenset(d for d in s.holds if s.pods[d[0]] != (PENDING, d[1]))
    if void:
        yield "sees how its pods stand now", s._replace(holds=s.holds - void)
    if s.decided:
        first, *rest = s.decided
        yield f"logs {sorted(first)}", s._replace(log=(*s.log, first), decided=tuple(rest))
    logged = frozenset(d for record in s.log for d in record)
    for d in (s.holds & logged) - s.binds:
        yield f"sends the binding of pod {d[0]}", s._replace(binds=s.binds | {d})
    for gang in GANGS:
        chosen = _choose(s, gang, off)
        if chosen:
            records = tuple(frozenset((d,)) for d in sorted(chosen)) if off == "one-record" else (chosen,)
            yield f"decides {sorted(chosen)}", s._replace(holds=s.holds | chosen, decided=(*s.decided, *records))


def _choose(s: State, gang: tuple[int, ...], off: str) -> frozenset[Made]:
    """The members that are decided together, if any: `GangState.need` in shared/book/gangs.py."""
    held = {d[0] for d in s.holds}
    placed = [p for p in gang if s.pods[p][0] == BOUND or p in held]
    waiting = [p for p in gang if s.pods[p][0] == PENDING and p not in held]
    lacks = max(1, MINIMUM - len(placed))
    need = lacks
    if placed or off == "gather":
        need = min(lacks, len(waiting))
    if off == "no-waiting-once-begun":
        need = MINIMUM
    if off == "all-at-once":
        need = 1 if placed or len(waiting) >= MINIMUM else MINIMUM
    free = s.gpus - len(s.holds) - sum(1 for p, (status, _) in enumerate(s.pods) if status == BOUND and p not in held)
    if not 0 < need <= min(len(waiting), free):
        return frozenset()
    return frozenset((p, s.pods[p][1]) for p in waiting[:need])


def incomplete(s: State) -> bool:
    """The log has a member of a gang that was never decided as a whole."""
    for gang in GANGS:
        first = next((record for record in s.log if any(d[0] in gang for d in record)), None)
        if first is not None and sum(1 for d in first if d[0] in gang) < MINIMUM:
            return True
    return False


def decided_twice(s: State) -> bool:
    """One pod at one version is in two records: two places for one Binding."""
    made = [d for record in s.log for d in record]
    return len(made) != len(set(made))


def overfull(s: State) -> bool:
    """More pods are bound than there are GPUs."""
    return sum(1 for status, _ in s.pods if status == BOUND) > s.gpus


def deadlock(s: State, off: str) -> bool:
    """Nothing more can happen, and gangs hold halves while none is whole."""
    return _at_rest(s, off) and any(_has(s, g) == 1 for g in GANGS) and not any(_has(s, g) >= MINIMUM for g in GANGS)


def idle_half(s: State, off: str) -> bool:
    """Nothing more can happen, a gang has a half, its other pod waits, and there is a GPU for it."""
    return _at_rest(s, off) and any(_has(s, g) == 1 for g in GANGS) and sum(_has(s, g) for g in GANGS) < s.gpus


def bad(s: State, off: str) -> bool:
    return incomplete(s) or decided_twice(s) or overfull(s) or deadlock(s, off) or idle_half(s, off)


def _has(s: State, gang: tuple[int, ...]) -> int:
    return sum(1 for p in gang if s.pods[p][0] == BOUND)


def _at_rest(s: State, off: str) -> bool:
    """No step is possible: a crash or an edit need not happen."""
    return s.leading and next(steps(s._replace(crashes=0, edits=0), off), None) is None


def explore(start: State, off: str = "", is_bad: Callable[[State, str], bool] = bad) -> tuple[int, list[str]]:
    return all_states(start, lambda state: steps(state, off), lambda state: is_bad(state, off))


def _put(items: tuple[tuple[int, int], ...], index: int, value: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return (*items[:index], value, *items[index + 1 :])
