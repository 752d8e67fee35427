"""Says without a trial whether a job might fit once others have been suspended: by free amounts alone. Pure.

Most sets of jobs that are looked at are not enough, and a trial on a copy of the book takes fifty times as long. What
this denies, a trial denies too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec

from services.preemptor.planning.fitting import has_room_on
from services.preemptor.turns.circles import TurnJob
from shared.book.book import Book
from shared.book.ledger import is_off
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.grant import sum_shares
from shared.model.suspension import SuspendAction, Suspension, left_of
from shared.scheduling.moving import takes

Rooms = Mapping[str, Mapping[str, GpuRoom]]
"""By node and uuid, the GPUs of which something is given back."""
_KEPT_MOST = 256


class _Change(msgspec.Struct, frozen=True):
    node: str
    uuid: str
    mib: int
    milli: int
    containers: int


class Freed:
    """For one round, in which the book does not change."""

    def __init__(self, book: Book, moves: Callable[[PodState], bool]) -> None:
        """`moves`: whether a suspended pod may resume on other GPUs of its node."""
        self._book, self._moves = book, moves
        self._known: dict[tuple[str, SuspendAction], list[_Change]] = {}
        self._with: dict[tuple[str, ...], Rooms] = {}
        """By action and jobs: most jobs that wait are weighed against the same ones."""

    def may_fit(
        self, waiting: TurnJob, nodes: Sequence[NodeState], victims: Sequence[TurnJob], action: SuspendAction
    ) -> bool:
        """Returns whether the job might have places on these nodes when these jobs have been suspended. With more of
        them it is never less so."""
        rooms = self._rooms(victims, action)
        if waiting.resumes:
            return all(self._may_resume(state, rooms) for state in waiting.members)
        hardest = max(waiting.members, key=lambda s: s.request.hardest.hardness if s.request else ())
        if not any(has_room_on(hardest, _gpus(node, rooms)) for node in nodes):
            return False
        return len(waiting.members) == 1 or self._may_all_fit(waiting, [r for n in nodes for r in _gpus(n, rooms)])

    def _may_all_fit(self, waiting: TurnJob, there: Sequence[GpuRoom]) -> bool:
        """Returns whether these GPUs have together what all members take at least, whichever of them they get."""
        mib = milli = 0
        asks = [ask for state in waiting.members if state.request for ask in state.request.asks.values()]
        for ask in (ask for ask in asks if not ask.profile):  # of instances a GPU has those that its driver makes
            mib += ask.count * (ask.memory_mib or self._least_mib * (1000 if ask.whole else ask.memory_milli) // 1000)
            milli += ask.count * ask.compute_milli
        return mib <= sum(max(0, room.free_mib) for room in there) and milli <= sum(
            max(0, room.free_milli) for room in there
        )

    @cached_property
    def _least_mib(self) -> int:
        """The memory of the smallest GPU."""
        return min((room.total_mib for node in self._book.nodes.values() for room in node.gpus), default=0)

    def _rooms(self, victims: Sequence[TurnJob], action: SuspendAction) -> Rooms:
        key = (action, *(job.known.key for job in victims))
        known = self._with.get(key)
        if known is not None:
            return known
        found: dict[str, dict[str, GpuRoom]] = {}
        for job in victims:
            for state in job.members:
                for change in self._changes(state.grant_id, action):
                    rooms = found.setdefault(change.node, {})
                    room = rooms.get(change.uuid)
                    if room is None:
                        room = rooms[change.uuid] = self._book.nodes[change.node].by_uuid[change.uuid].copy()
                    room.free_mib += change.mib
                    room.free_milli += change.milli
                    room.containers -= change.containers
        if len(self._with) >= _KEPT_MOST:
            self._with.clear()
        self._with[key] = found
        return found

    def _changes(self, grant_id: str, action: SuspendAction) -> list[_Change]:
        """Returns what is free on GPUs when this grant has been suspended, besides what is now."""
        known = self._known.get((grant_id, action))
        if known is not None:
            return known
        held, suspension = self._book.grants[grant_id], Suspension(action=action, plan_id="")
        left = msgspec.structs.replace(held, grant=left_of(held.given, suspension), suspension=suspension)
        found: list[_Change] = []
        for state, sign in ((held, 1), (left, -1)):
            for part in state.grant.containers.values():
                for share in part.gpus:
                    if share.node in self._book.nodes and share.uuid in self._book.nodes[share.node].by_uuid:
                        there = 0 if is_off(state, share) else sign
                        mib, milli = sign * share.memory_mib, sign * share.compute_milli
                        found.append(_Change(share.node, share.uuid, mib, milli, there))
        self._known[grant_id, action] = found
        return found

    def _may_resume(self, state: PodState, rooms: Rooms) -> bool:
        held = self._book.grants.get(state.grant_id)
        if held is None:
            return False
        taken, needs = sum_shares((held.grant,)), sum_shares((held.given,))
        if all(self._has(at, needs[at], taken.get(at, (0, 0)), rooms) for at in needs):
            return True
        node = self._book.nodes.get(state.charged)
        if node is None or not self._moves(state) or any(uuid not in node.by_uuid for _, uuid in needs):
            return False
        there = _gpus(node, rooms)
        fitting = [sum(takes(room, node.by_uuid[uuid], needs[name, uuid]) for room in there) for name, uuid in needs]
        return min(fitting) >= (len(needs) if len(set(needs.values())) == 1 else 1)

    def _has(self, at: tuple[str, str], needs: tuple[int, int], taken: tuple[int, int], rooms: Rooms) -> bool:
        """Whether its own GPU has what the pod has given up of it."""
        name, uuid = at
        node = self._book.nodes.get(name)
        room = rooms.get(name, {}).get(uuid) or (None if node is None else node.by_uuid.get(uuid))
        (mib, milli), (now_mib, now_milli) = needs, taken
        return room is not None and not (0 < mib - now_mib > room.free_mib or 0 < milli - now_milli > room.free_milli)


def _gpus(node: NodeState, rooms: Rooms) -> list[GpuRoom]:
    there = rooms.get(node.name)
    return node.gpus if there is None else [there.get(room.uuid, room) for room in node.gpus]
