"""All or none: members are tried one after another in a transaction, which is rolled back if too few of them fit.

A member that has been tried is held like any other decision, so the next one is decided on what is left. Rolling back
restores the book to the bit, and score rows follow by the book's own list of changed rows.

A gang with subgroups is tried from the whole to its parts: in each area that may hold the whole, its subgroups are
tried one after another, each in the areas that may hold it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from services.placement.engine.engine import Engine, Place
from services.placement.scheduling.gangs.domains import (
    EVERYWHERE,
    Area,
    Levels,
    Wanted,
    areas,
    members_by_leaf,
    rows_of,
    shapes_of,
)
from services.placement.scheduling.grants import Grants
from shared.book.arrays import Bools, both
from shared.book.gangs import GangState
from shared.book.states import PodState
from shared.book.subgroups import covers
from shared.model.grant import Grant
from shared.model.subgroup import Subgroup
from shared.scheduling.transaction import Transaction

Within = Callable[[PodState, int], Bools | None]


class Placed(msgspec.Struct, frozen=True):
    """A member with its place. It is held on the book."""

    state: PodState
    place: Place
    grant: Grant | None


class Misfit(msgspec.Struct, frozen=True):
    """How far the best try came: `fitted` members, and the first one that found no place beside them."""

    fitted: int
    uid: str
    area: str = ""


class Tried(msgspec.Struct, frozen=True):
    """What came of trying: places, and the area they were kept to; or why there are none."""

    placed: list[Placed]
    area: str = ""
    misfit: Misfit | None = None


def place_gang(
    gang: GangState,
    members: Sequence[PodState],
    engine: Engine,
    grants: Grants,
    *,
    transaction: Transaction,
    on_misfit: Callable[[Misfit], None] | None = None,
    within: Within | None = None,
) -> Tried:
    """Places for as many of these members as must be placed together, held in the transaction; or none, and why.

    `members`: in the order in which they are tried. `within`: the nodes on which so many pods like this one stay within
    the limits of its queue; None: all of them. `on_misfit` is called for each attempt that came closer, while
    those that fitted are still held.
    """
    by_leaf = members_by_leaf(gang, members)
    there = {leaf: len(states) for leaf, states in by_leaf.items()}
    attempt = _Attempt(
        gang, by_leaf, engine, grants, transaction=transaction, on_misfit=on_misfit, within=within or _everywhere
    )
    for step in gang.steps(there):
        if covers(there, step):
            area = attempt.place(gang.tree, step)
            if area is not None:
                return Tried(attempt.placed, area.name)
    return Tried([], misfit=attempt.best or Misfit(fitted=0, uid=""))


class _Attempt:
    """The places that were found so far, and the best of the tries that failed."""

    def __init__(
        self,
        gang: GangState,
        by_leaf: Mapping[str, Sequence[PodState]],
        engine: Engine,
        grants: Grants,
        *,
        transaction: Transaction,
        on_misfit: Callable[[Misfit], None] | None,
        within: Within,
    ) -> None:
        self._gang, self._by_leaf, self._engine, self._grants = gang, by_leaf, engine, grants
        self._transaction, self._on_misfit, self._within = transaction, on_misfit, within
        self._levels = Levels(engine.book)
        self.placed: list[Placed] = []
        self.best: Misfit | None = None

    def place(self, subgroup: Subgroup, step: Mapping[str, int], outer: Area = EVERYWHERE) -> Area | None:
        """Places the subgroup's members of the step. Returns the area that has them; None if they fit nowhere, and
        then nothing has changed."""
        inside = {leaf.name for leaf in subgroup.leaves()} | ({""} if not subgroup.name else set())
        wanted = [
            Wanted(shapes_of(self._by_leaf[leaf], self._engine), need) for leaf, need in step.items() if leaf in inside
        ]
        book = self._engine.book
        for area in areas(subgroup, wanted, rows_of(self._gang, subgroup, book), self._levels, outer):
            if self._place_within(subgroup, step, area):
                return area
        return None

    def _place_within(self, subgroup: Subgroup, step: Mapping[str, int], area: Area) -> bool:
        """Below the subgroup, its largest members come first: the small ones find room beside them. If that fails,
        those that need one domain for all of their members come first: others fit beside them anywhere."""
        if not subgroup.subgroups:
            return self._place_leaf(self._by_leaf[subgroup.name], step[subgroup.name], area)
        involved = [s for s in subgroup.subgroups if any(step.get(leaf.name) for leaf in s.leaves())]
        by_size = sorted(involved, key=lambda s: self._largest(s, step), reverse=True)
        narrow_first = sorted(by_size, key=lambda s: not _needs_domain(s))
        orders = [by_size] if narrow_first == by_size else [by_size, narrow_first]
        return any(self._place_in_order(subgroup, order, step, area) for order in orders)

    def _place_in_order(
        self, subgroup: Subgroup, order: Sequence[Subgroup], step: Mapping[str, int], area: Area
    ) -> bool:
        mark, before = self._transaction.mark, len(self.placed)
        fits = all(self.place(below, step, area) is not None for below in order)
        if fits and not subgroup.name and step.get(""):
            fits = self._place_leaf(self._by_leaf[""], step[""], area)
        if not fits:
            self._transaction.roll_back(mark)
            del self.placed[before:]
        return fits

    def _largest(self, subgroup: Subgroup, step: Mapping[str, int]) -> tuple[int, int, int]:
        """The size of its largest member, of the leaves that the step has."""
        leaves = (leaf.name for leaf in subgroup.leaves() if step.get(leaf.name))
        return max(_size(state) for leaf in leaves for state in self._by_leaf[leaf])

    def _place_leaf(self, members: Sequence[PodState], need: int, area: Area) -> bool:
        for first in _first_members(members, need):
            mark = self._transaction.mark
            placed, misfit = self._try(members[first:], need, area)
            if misfit is None:
                self.placed += placed
                return True
            if self.best is None or misfit.fitted > self.best.fitted:
                self.best = misfit
                if self._on_misfit is not None:
                    self._on_misfit(misfit)
            self._transaction.roll_back(mark)
        return False

    def _try(self, members: Sequence[PodState], need: int, area: Area) -> tuple[list[Placed], Misfit | None]:
        placed: list[Placed] = []
        hopeless: set[bytes] = set()
        misfit = ""
        for index, state in enumerate(members):
            if len(placed) == need:
                break
            if len(placed) + len(members) - index < need:
                break
            key = self._engine.key_of(state)
            place = None if key in hopeless else self._decide(state, area.rows, need - len(placed))
            if place is None:
                misfit = misfit or state.uid
                if self._engine.is_plain(state):
                    hopeless.add(key)  # the book only gets fuller within a try
                continue
            grant = self._grants.grant(state, place)
            self._transaction.hold(state.uid, place.node, grant)
            placed.append(Placed(state, place, grant))
        if len(placed) == need:
            return placed, None
        return placed, Misfit(fitted=len(self.placed) + len(placed), uid=misfit, area=area.name)

    def _decide(self, state: PodState, rows: Bools | None, members: int) -> Place | None:
        """A place on a GPU that leaves the other members their part of the queue's limit, else on any within it."""
        for count in (members, 1) if members > 1 else (1,):
            within = self._within(state, count)
            place = self._engine.decide(state, both(rows, within))
            if place is not None or within is None:
                return place
        return None


def _everywhere(_state: PodState, _members: int) -> None:
    return None


def _needs_domain(subgroup: Subgroup) -> bool:
    return bool(subgroup.required) or any(map(_needs_domain, subgroup.subgroups))


def _first_members(members: Sequence[PodState], need: int) -> Iterator[int]:
    """Where a gang needs fewer than there are, a large member may take the room of several small ones: then those are
    tried without it. Yields the index of each first member to begin with."""
    yield 0
    for index in range(1, len(members) - need + 1):
        if _size(members[index]) != _size(members[index - 1]):
            yield index


def by_size(members: Sequence[PodState]) -> list[PodState]:
    """The largest first, for the small ones find room beside them; among equals the order in which they came."""
    return sorted(members, key=_size, reverse=True)


def _size(state: PodState) -> tuple[int, int, int]:
    asks = () if state.request is None else tuple(state.request.asks.values())
    return (
        sum(a.count * a.compute_milli for a in asks),
        sum(a.count * a.memory_mib for a in asks),
        state.demand.cpu_milli,
    )
