"""Where a pod or gang will fit soonest, by what is free and by the ends of other pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from services.placement.engine.engine import Engine
from services.placement.scheduling.backfill.ends import estimated_s
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.gangs.domains import may_fit
from services.placement.scheduling.gangs.placing import by_size, place_gang
from services.placement.scheduling.grants import TrialGrants
from services.placement.scheduling.trial import Trial
from shared.book.book import Book
from shared.book.gangs import GangState
from shared.book.states import GrantState, PodState
from shared.contracts.preemption import HeldPlace

MOST_AWAITED = 1024
"""The ends of so many pods at most are tried, those of the pods that are expected to end first: 0.3 ms each."""
MOST_BY_NODE = 4096
"""The same, where nodes are emptied one after the other."""


class Chosen(msgspec.Struct, frozen=True):
    """Places that a pod or the members of a gang would have when other pods have ended."""

    places: dict[str, HeldPlace]
    """By the members' uids. The capacity may still be in use."""
    awaits: tuple[str, ...]
    """The ids of the grants, on the nodes of these places, that have to end before."""


def choose(
    members: Sequence[PodState],
    gang: GangState | None,
    engine: Engine,
    *,
    fair: Fair,
    unix_s: float,
    reserve: Callable[[Trial], None],
) -> Chosen | None:
    """Returns the places that these members could have soonest, within the quotas; None if there are none.

    Pods with GPUs are taken away in the order in which they are expected to end, as few of them as will do. Pods
    without GPUs and those of other schedulers stay. `reserve`: books in the trial what is reserved for others.
    """
    ends = _ends(members, engine, unix_s)
    found = _soonest(members, gang, engine, [one.held for one in ends[:MOST_AWAITED]], fair=fair, reserve=reserve)
    if found is None and len(ends) > MOST_AWAITED:
        found = _soonest(members, gang, engine, _by_node(ends)[:MOST_BY_NODE], fair=fair, reserve=reserve)
    return found


def _soonest(
    members: Sequence[PodState],
    gang: GangState | None,
    engine: Engine,
    ends: Sequence[GrantState],
    *,
    fair: Fair,
    reserve: Callable[[Trial], None],
) -> Chosen | None:
    """Returns the places that there are when the first of these grants have ended.

    How many have to end is found by counting, which is cheap and never too low, and then by trying.
    """
    trial = Trial(engine)
    reserve(trial)
    lifted = _Lifted(trial, ends)
    few, many = -1, 0
    while not _may_fit(trial, gang, members, fair):
        if many == len(ends):
            return None
        few, many = many, min(max(1, 2 * many), len(ends))
        lifted.first(many)
    while many - few > 1:
        half = (few + many) // 2
        lifted.first(half)
        few, many = (few, half) if _may_fit(trial, gang, members, fair) else (half, many)
    lifted.first(many)
    places, more = _try(trial, gang, members, fair), 1
    while places is None and many < len(ends):
        many, more = min(many + more, len(ends)), 2 * more
        lifted.first(many)
        places = _try(trial, gang, members, fair)
    if places is None:
        return None
    nodes = {place.node for place in places.values()}
    return Chosen(places, tuple(held.grant_id for held in ends[:many] if nodes & set(held.nodes)))


def lift(trial: Trial, held: GrantState) -> None:
    """Takes a grant away in the trial, with its pod if there is one."""
    state = trial.book.pods.get(held.uid)
    if state is not None and state.grant_id == held.grant_id:
        trial.transaction.lift(held.uid)
    else:
        trial.transaction.release(held.grant_id)


class _Lifted:
    """Takes the first grants of a list away, and gives back what was taken before and is beyond them."""

    def __init__(self, trial: Trial, ends: Sequence[GrantState]) -> None:
        self._trial, self._ends = trial, ends
        self._marks = [trial.transaction.mark]
        """The transaction's position before each of them, and after the last one."""

    def first(self, count: int) -> None:
        if count < len(self._marks) - 1:
            self._trial.transaction.roll_back(self._marks[count])
            del self._marks[count + 1 :]
        for held in self._ends[len(self._marks) - 1 : count]:
            lift(self._trial, held)
            self._marks.append(self._trial.transaction.mark)


class _End(NamedTuple):
    """A grant, and in how many seconds it is expected to end."""

    seconds: float
    grant_id: str
    held: GrantState


def _by_node(ends: Sequence[_End]) -> list[GrantState]:
    """The grants node by node, in the order in which the last one of each node is expected to end. For pods that need
    most of a node: where there are very many pods, the first ends are spread over too many nodes to empty one."""
    last = {one.held.node: one.seconds for one in ends}
    return [one.held for one in sorted(ends, key=lambda one: (last[one.held.node], one.held.node, one.grant_id))]


def _ends(members: Sequence[PodState], engine: Engine, unix_s: float) -> list[_End]:
    """The grants on nodes that some member may use, in the order in which they are expected to end."""
    book = engine.book
    rows = {engine.key_of(state): engine.row(state) for state in members}
    for row in rows.values():
        row.refresh()
    may_use = np.any([row.passes for row in rows.values()], axis=0)
    found: dict[str, _End] = {}
    for node in book.nodes.values():
        if not may_use[node.row]:
            continue
        for held in node.grants.values():
            state = book.pods.get(held.uid)
            if held.phase != "reserved":
                runs = state is not None and held.phase != "leaving"
                seconds = estimated_s(state, unix_s) if runs and state is not None else 0.0
                found[held.grant_id] = _End(seconds, held.grant_id, held)
    return sorted(found.values(), key=lambda one: one[:2])


def _may_fit(trial: Trial, gang: GangState | None, members: Sequence[PodState], fair: Fair) -> bool:
    """Whether there may be places, by counting; of a pod by itself, whether there is one."""
    states = [trial.book.pods[state.uid] for state in members]
    if gang is None:
        return trial.engine.decide(states[0], fair.rows_within(states[0])) is not None
    return may_fit(gang, states, trial.engine)


def _try(trial: Trial, gang: GangState | None, members: Sequence[PodState], fair: Fair) -> dict[str, HeldPlace] | None:
    """Places as the trial stands now; the trial is as before when this returns."""
    states = [trial.book.pods[state.uid] for state in members]
    if gang is None:
        place = trial.engine.decide(states[0], fair.rows_within(states[0]))
        grant = None if place is None else TrialGrants.grant(states[0], place)
        found = {} if place is None else {states[0].uid: HeldPlace(node=place.node, grant=grant)}
        return found if found and is_within(found, trial.book, fair) else None
    mark = trial.transaction.mark
    tried = place_gang(gang, by_size(states), trial.engine, TrialGrants(), transaction=trial.transaction)
    trial.transaction.roll_back(mark)
    if tried.misfit is not None:
        return None
    found = {one.state.uid: HeldPlace(node=one.place.node, grant=one.grant) for one in tried.placed}
    return found if is_within(found, trial.book, fair) else None


def is_within(places: Mapping[str, HeldPlace], book: Book, fair: Fair) -> bool:
    """Whether the quotas would allow these places, with the parts of their GPUs that they are."""
    return not fair.exceeded_on([(book.pods[uid], one.grant) for uid, one in places.items() if one.grant is not None])
