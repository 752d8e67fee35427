"""The protocol as a small state machine, explored state by state.

Two pods want one GPU. Two leaders may be frozen at any point and wake at any later one (a step that is possible may
always be delayed). A Binding that was sent may arrive at any later time, any number of times. NATS may lose everything
once, one pod may be force-deleted, one may be edited by a user, and bound pods may be deleted gracefully.

Each rule can be switched off, which must lead to a double booking: that shows that the rule is needed.

A state is (pods, log, leaders, binds, agent, budgets, clock):

- pods: (status, version, granted): 0 deleted, 1 pending, 2 bound; `granted` is the version that its Binding named.
- log: records ("T", term) | ("D", pod, version) | ("R", term), in order.
- leaders: (phase, term, view, holds, leaving, decision, replayed, known_ready)
- binds: the set of (pod, version) that may arrive.
- agent: per pod 0 knows nothing, 1 saw it bound, 2 runs it, 3 released it for good.
- budgets: (wipes, force deletes, edits, terms)
- clock: the last term number given, which only grows (the stream's first sequence is the time).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.model.explore import explore as all_states

GONE, PENDING, BOUND = 0, 1, 2
UNKNOWN, SAW, RUNS, RETURNED = 0, 1, 2, 3
OFF, TERM, REPLAYED, LISTED, READY, LEADING = 0, 1, 2, 3, 4, 5
PODS = (0, 1)

RULES = (
    "R1-fence",
    "R2-log-first",
    "R3-preconditions",
    "R4-evidence",
    "R5-touch",
    "R5-fresh-list",
    "R5-term-numbers",
    "R5-re-adopt",
    "R6-node-returns",
    "R6-sync",
    "R6-sync-after-touch",
)

Pod = tuple[int, int, int]
Decision = tuple[int, int, int]
"""(pod, version, stage): 0 decided, 1 in the log."""


class Leader(NamedTuple):
    phase: int = OFF
    term: int = 0
    view: tuple[tuple[int, int], ...] = ()
    """(status, version) of each pod as last seen."""
    holds: tuple[tuple[int, int], ...] = ()
    leaving: tuple[int, ...] = ()
    decision: Decision | None = None
    replayed: tuple[tuple[int, int], ...] = ()
    complete: bool = False
    synced: bool = False


class State(NamedTuple):
    pods: tuple[Pod, ...]
    log: tuple[tuple[Any, ...], ...]
    leaders: tuple[Leader, ...]
    binds: frozenset[tuple[int, int]]
    agent: tuple[int, ...]
    budgets: tuple[int, int, int, int]
    clock: int


def initial(*, terms: int = 3, edits: int = 1) -> State:
    return State(
        ((PENDING, 1, 0), (PENDING, 1, 0)),
        (),
        (Leader(), Leader()),
        frozenset(),
        (UNKNOWN, UNKNOWN),
        (1, 1, edits, terms),
        10,
    )


def double_booked(state: State) -> bool:
    """P1: bound plus still running exceeds the one GPU. What was given back for good no longer counts."""
    return (
        sum(1 for p in PODS if (state.pods[p][0] == BOUND and state.agent[p] != RETURNED) or state.agent[p] == RUNS) > 1
    )


def steps(s: State, off: str = "", gate: bool = False) -> Iterator[tuple[str, State]]:
    """Every next state, with the step's name."""
    yield from _world(s, off, gate)
    if s.leaders[0] == s.leaders[1]:
        leading: tuple[Leader, ...] = s.leaders[:1]
    else:
        leading = s.leaders
    for leader in leading:
        other = s.leaders[1] if leader is s.leaders[0] else s.leaders[0]
        actor = f"the leader of {leader.term}" if leader.term else "a leader"
        for name, changed, rest in _leader(s, leader, off):
            # Which of the two it is does not matter: kept in one order, half the states are enough.
            leaders = (changed, other) if _order(changed) <= _order(other) else (other, changed)
            pods, log, _, binds, agent, budgets, clock = rest or s
            yield f"{actor} {name}", State(pods, log, leaders, binds, agent, budgets, clock)


def _world(s: State, off: str, gate: bool) -> Iterator[tuple[str, State]]:
    wipes, kills, edits, terms = s.budgets
    for p, version in s.binds:
        status, now, _ = s.pods[p]
        if status == PENDING and (now == version or off == "R3-preconditions"):
            yield (
                f"binding of pod {p} at {version} arrives",
                s._replace(pods=_put(s.pods, p, (BOUND, now + 1, version))),
            )
    for p in PODS:
        status, version, granted = s.pods[p]
        if status == BOUND and s.agent[p] == UNKNOWN:
            yield f"kubelet sees pod {p} bound", s._replace(agent=_put(s.agent, p, SAW))
        if s.agent[p] == SAW and not (gate and RUNS in s.agent):
            yield f"pod {p} starts", s._replace(agent=_put(s.agent, p, RUNS))
        if s.agent[p] == RUNS:
            # Its end is seen by the agent; a graceful deletion waits for it, a force deletion did not.
            after = s._replace(agent=_put(s.agent, p, RETURNED))
            yield f"pod {p} stops", after
        if status == BOUND and s.agent[p] == RETURNED:
            yield f"pod {p} is deleted", s._replace(pods=_put(s.pods, p, (GONE, version + 1, granted)))
        if status != GONE and kills:
            yield (
                f"pod {p} is force-deleted",
                s._replace(
                    pods=_put(s.pods, p, (GONE, version + 1, granted)), budgets=(wipes, kills - 1, edits, terms)
                ),
            )
        if status == PENDING and edits:
            yield (
                f"a user edits pod {p}",
                s._replace(
                    pods=_put(s.pods, p, (status, version + 1, granted)), budgets=(wipes, kills, edits - 1, terms)
                ),
            )
    if wipes and s.log:
        clock = 10 if off == "R5-term-numbers" else s.clock
        yield "NATS loses everything", s._replace(log=(), budgets=(wipes - 1, kills, edits, terms), clock=clock)


def _leader(s: State, me: Leader, off: str) -> Iterator[tuple[str, Leader, State | None]]:
    fenced = off == "R1-fence" or _last_term(s.log) == me.term
    if me.phase == OFF:
        if s.budgets[3]:
            term = s.clock + 1
            rest = s._replace(log=(*s.log, ("T", term)), clock=term, budgets=(*s.budgets[:3], s.budgets[3] - 1))
            yield f"takes term {term}", Leader(phase=TERM, term=term), rest
        return
    if me.phase == TERM:
        records = _before(s.log, me.term)
        decisions = tuple(sorted({(r[1], r[2]) for r in records if r[0] == "D"})) if off != "R5-re-adopt" else ()
        yield (
            "replays the log",
            me._replace(phase=REPLAYED, replayed=decisions, complete=any(r[0] == "R" for r in records)),
            None,
        )
    elif me.phase == REPLAYED:
        yield from _list(s, me, off)
    elif me.phase == LISTED:
        yield from _recover(s, me, off, fenced)
    elif me.phase == READY:
        yield from _sync(s, me, off, LEADING)
    elif me.phase == LEADING:
        yield from _lead(s, me, off, fenced)
    if me.phase >= LISTED:
        yield from _see(s, me, off)


def _order(leader: Leader) -> tuple[Any, ...]:
    return leader if leader.decision else (*leader[:5], (-1, -1, -1), *leader[6:])


def _list(s: State, me: Leader, off: str) -> Iterator[tuple[str, Leader, State | None]]:
    stale = off == "R5-fresh-list"
    view = tuple((PENDING, 1) if stale else s.pods[p][:2] for p in PODS)
    holds = tuple((p, v) for p, v in me.replayed if view[p] == (PENDING, v))
    yield "lists", me._replace(phase=LISTED, view=view, holds=holds, replayed=()), None


def _sync(s: State, me: Leader, off: str, phase: int) -> Iterator[tuple[str, Leader, State | None]]:
    """The agent answers with what runs; what neither runs nor is known to this leader is never handed over."""
    if off == "R6-sync" or me.synced:
        yield "goes on without a sync", me._replace(phase=phase, synced=True), None
        return
    known = [p for p in PODS if me.view[p][0] == BOUND or any(h[0] == p for h in me.holds)]
    leaving = {p for p in PODS if s.agent[p] == RUNS and p not in known}
    agent = tuple(RETURNED if s.agent[p] == SAW and p not in known else s.agent[p] for p in PODS)
    yield (
        "syncs the node",
        me._replace(phase=phase, synced=True, leaving=tuple(sorted({*me.leaving, *leaving}))),
        s._replace(agent=agent),
    )


def _recover(s: State, me: Leader, off: str, fenced: bool) -> Iterator[tuple[str, Leader, State | None]]:
    if off == "R6-sync-after-touch" and not me.synced:
        yield from _sync(s, me, off, LISTED)
        return
    untouched = [p for p in PODS if me.view[p][0] == PENDING and p not in _touched(me)]
    if not me.complete and off != "R5-touch" and untouched:
        for p in untouched:
            status, version, granted = s.pods[p]
            moved = (status, version + 1, granted) if status != GONE else s.pods[p]
            # The answer of the PATCH is seen immediately: it has the version and status after the PATCH.
            view = _put(me.view, p, moved[:2])
            holds = tuple(h for h in me.holds if h[0] != p)
            yield (
                f"touches pod {p}",
                me._replace(view=view, holds=holds, replayed=(*me.replayed, (p, -1))),
                s._replace(pods=_put(s.pods, p, moved)),
            )
        return
    if fenced:
        yield "writes ready", me._replace(phase=READY, replayed=()), s._replace(log=(*s.log, ("R", me.term)))
    else:
        yield "is refused", Leader(), None


def _touched(me: Leader) -> list[int]:
    return [p for p, v in me.replayed if v == -1]


def _lead(s: State, me: Leader, off: str, fenced: bool) -> Iterator[tuple[str, Leader, State | None]]:
    if me.decision is None:
        taken = bool(me.holds or me.leaving) or any(v[0] == BOUND for v in me.view)
        for p in PODS:
            if me.view[p][0] == PENDING and not taken:
                version = me.view[p][1]
                yield f"decides pod {p}", me._replace(decision=(p, version, 0), holds=((p, version),)), None
        if off == "R4-evidence" and me.holds:
            yield "gives up waiting for its Binding", me._replace(holds=()), None
        return
    p, version, stage = me.decision
    if stage == 0 and off == "R2-log-first":
        sent = s._replace(binds=s.binds | {(p, version)})
        yield f"sends the binding of pod {p} before the log has it", me._replace(decision=(p, version, 2)), sent
    elif stage in (0, 2):
        if fenced:
            after = me._replace(decision=(p, version, 1) if stage == 0 else None)
            yield f"logs pod {p}", after, s._replace(log=(*s.log, ("D", p, version)))
        else:
            yield "is refused", Leader(), None
    else:
        yield f"sends the binding of pod {p}", me._replace(decision=None), s._replace(binds=s.binds | {(p, version)})


def _see(s: State, me: Leader, off: str) -> Iterator[tuple[str, Leader, State | None]]:
    """The feed, at any later time, with what happened in between left out (the worst it may do)."""
    for p in PODS:
        now = s.pods[p][:2]
        if me.view[p] == now:
            continue
        held = any(h[0] == p for h in me.holds)
        was_bound = me.view[p][0] == BOUND
        holds = tuple(h for h in me.holds if h[0] != p) if held else me.holds
        leaving = me.leaving
        if now[0] == GONE and (held or was_bound) and off != "R6-node-returns" and s.agent[p] != RETURNED:
            leaving = tuple(sorted({*leaving, p}))
        view = _put(me.view, p, now)
        changed = Leader(me.phase, me.term, view, holds, leaving, me.decision, me.replayed, me.complete, me.synced)
        yield f"sees pod {p}", changed, None
    for p in me.leaving:
        if s.agent[p] == RETURNED:
            yield f"hears that pod {p} is given back", me._replace(leaving=tuple(x for x in me.leaving if x != p)), None
        elif s.agent[p] in (UNKNOWN, SAW):
            rest = s._replace(agent=_put(s.agent, p, RETURNED))
            yield f"has pod {p} given back unused", me._replace(leaving=tuple(x for x in me.leaving if x != p)), rest


def _before(log: tuple[tuple[Any, ...], ...], term: int) -> tuple[tuple[Any, ...], ...]:
    """The records before a term's own; all of them where that record is lost."""
    for index, record in enumerate(log):
        if record == ("T", term):
            return log[:index]
    return log


def _last_term(log: tuple[tuple[Any, ...], ...]) -> int:
    return next((r[1] for r in reversed(log) if r[0] == "T"), 0)


def _put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*items[:index], value, *items[index + 1 :])


class Result(NamedTuple):
    states: int
    story: list[str]
    """The shortest way to a double booking; empty where there is none."""


def overrun(state: State) -> bool:
    """More runs on the device than it has."""
    return state.agent.count(RUNS) > 1


def explore(
    start: State,
    off: str = "",
    *,
    bad: Callable[[State], bool] = double_booked,
    gate: bool = False,
    limit: int = 50_000_000,
) -> Result:
    """Breadth first, so that a counterexample is a shortest one. `gate` adds R7, the agent's own look at the device."""
    return Result(*all_states(start, lambda state: steps(state, off, gate), bad, limit=limit))
