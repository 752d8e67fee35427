"""All or none: members are tried one after another in a transaction, which is rolled back if too few of them fit.

A member that has been tried is held like any other decision, so the next one is decided on what is left. Rolling back
restores the book to the bit, and score rows follow by the book's own list of changed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from services.placement.engine.engine import Engine, Place
from services.placement.scheduling.gangs.domains import Area, areas, shapes_of
from services.placement.scheduling.grants import Grants
from shared.book.gangs import GangState
from shared.book.states import PodState
from shared.model.grant import Grant
from shared.scheduling.transaction import Transaction


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
    need: int,
    engine: Engine,
    grants: Grants,
    *,
    transaction: Transaction,
    on_misfit: Callable[[Misfit], None] | None = None,
) -> Tried:
    """Places for `need` of these members together, held in the transaction; or none, and why. `members`: in the order
    in which they are tried. `on_misfit` is called for each attempt that came closer, while those that fitted are
    still held."""
    best: Misfit | None = None
    for area in areas(gang, shapes_of(members, engine), need, engine.book):
        for first in _first_members(members, need):
            mark = transaction.mark
            placed, misfit = _try(members[first:], need, engine, grants, area=area, transaction=transaction)
            if misfit is None:
                return Tried(placed, area.name)
            if best is None or misfit.fitted > best.fitted:
                best = misfit
                if on_misfit is not None:
                    on_misfit(misfit)
            transaction.roll_back(mark)
    return Tried([], misfit=best or Misfit(fitted=0, uid=""))


def _first_members(members: Sequence[PodState], need: int) -> Iterator[int]:
    """Where a gang needs fewer than there are, a large member may take the room of several small ones: then those are
    tried without it. Yields the index of each first member to begin with."""
    yield 0
    for index in range(1, len(members) - need + 1):
        if _size(members[index]) != _size(members[index - 1]):
            yield index


def _try(
    members: Sequence[PodState], need: int, engine: Engine, grants: Grants, *, area: Area, transaction: Transaction
) -> tuple[list[Placed], Misfit | None]:
    placed: list[Placed] = []
    hopeless: set[bytes] = set()
    misfit = ""
    for index, state in enumerate(members):
        if len(placed) == need:
            break
        if len(placed) + len(members) - index < need:
            return placed, Misfit(fitted=len(placed), uid=misfit, area=area.name)
        key = engine.key_of(state)
        place = None if key in hopeless else engine.decide(state, area.rows)
        if place is None:
            misfit = misfit or state.uid
            if engine.is_plain(state):
                hopeless.add(key)  # the book only gets fuller within a try
            continue
        grant = grants.grant(state, place)
        transaction.hold(state.uid, place.node, grant)
        placed.append(Placed(state, place, grant))
    return placed, None if len(placed) == need else Misfit(fitted=len(placed), uid=misfit, area=area.name)


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
