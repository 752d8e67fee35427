"""Pods that resume on other GPUs of their node than those that they gave up.

A place is booked on the new GPUs; then the move is logged; then one patch, for one version of the pod, amends its grant
and ends its suspension. What was booked ends by evidence alone: the pod is seen at another version. Until then the node
is told nothing of it, and the grant stays what it was. On its own GPUs the pod has had nothing since its node confirmed
the checkpoint, so others may have them.

A new leader takes over the moves in the log. Without a complete log nothing of a node is given while a pod that may
move is at the version at which this leader met it; that it is, is written into the log. `tests/model/moves.py` shows
that all of this is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from services.placement import messages as m
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.largest_rooms import LargestRooms
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import Recovery
from services.placement.protocol.write_batcher import WriteBatcher
from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.states import GrantState, PodState
from shared.contracts.commands import SuspendPod
from shared.contracts.log import Amendment, DecisionBatch
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model.grant import encode_grant, sum_shares
from shared.model.moves import is_move, on_gpus
from shared.scheduling.moving import Amount, is_movable, other_gpus, why_not_there

REPEAT_S = 5.0
Places = dict[str, dict[str, str]]
"""By uid of the pods that move: the new GPU by the one that they had."""


class Move(msgspec.Struct):
    """A place on other GPUs, kept for a pod that resumes there."""

    amendment: Amendment
    placeholder: PodState
    gpus: Mapping[str, str]
    patch: SuspendPod | None
    """None: it was ordered by an earlier leader, and is not ordered again."""
    logged: bool = False
    void: bool = False
    """It cannot be written any more; the place is kept for a plan, which orders it anew."""
    sent_at: float = float("-inf")


class Moves:
    def __init__(self, book: Book, nodes: Nodes, batcher: WriteBatcher, capacity_changes: CapacityChanges) -> None:
        self._book, self._nodes, self._batcher, self._capacity_changes = book, nodes, batcher, capacity_changes
        self._largest = LargestRooms(book)
        self._open: dict[str, Move] = {}
        """By uid."""
        self.feared: dict[str, str] = {}
        """By uid of pods that a move of an earlier leader may still reach that the log does not have: their version."""
        self.cannot_move: dict[str, str] = {}
        """By id of grants whose programs come back to their own GPUs alone, by their nodes' rehearsals: why."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._open

    def is_void(self, uid: str) -> bool:
        return self._open[uid].void

    # --- a new leader -----------------------------------------------------------------------------------------

    def adopt(self, suspended: Iterable[PodState], recovery: Recovery) -> None:
        """Takes over what earlier leaders may have ordered."""
        for state in suspended:
            held = self._book.grants.get(state.grant_id)
            if held is None or not held.given.any_gpu:
                continue
            found = recovery.amended(state) if recovery.ready else None
            if found is not None and is_move(held.given, found.grant):
                gpus = _onto(held, found)
                self._open[state.uid] = Move(found, self._reserve(state, held, found), gpus, None, logged=True)
            elif not recovery.ready or recovery.was_excluded(state):
                self.feared[state.uid] = state.pod.metadata.resource_version
                self._nodes.barred[held.node] = (
                    f"an order of an earlier leader may still move {state.key} to any of its GPUs, until that pod is "
                    "seen at another version"
                )

    def records(self) -> list[Amendment]:
        """What a new term has to write again."""
        return [move.amendment for move in self._open.values() if move.logged and not move.void]

    # --- where to ---------------------------------------------------------------------------------------------

    def places(self, unit: Sequence[PodState]) -> Places | None:
        """Returns the GPUs of those of these suspended pods that have to move, so that all fit; None if they do not.

        Those whose own GPUs have room stay there.
        """
        if any(self._largest.deny(self._book.grants[state.grant_id]) for state in unit):
            return None
        found: Places = {}
        taken: dict[tuple[str, str], Amount] = {}
        for state in sorted(unit, key=self._may_move):
            held, node = self._book.grants[state.grant_id], self._book.nodes[state.charged]
            if self._fits_on_its_own(held, taken):
                _take(taken, held, {})
                continue
            gpus = other_gpus(state, held, node, taken) if self._may_move(state) else None
            if gpus is None:
                return None
            found[state.uid] = gpus
            _take(taken, held, gpus)
        return found

    def why_not(self, state: PodState, gpus: Mapping[str, str]) -> str:
        """Returns why a plan may not have a suspended pod resume on these GPUs; empty if it may."""
        held, node = self._book.grants[state.grant_id], self._book.nodes[state.charged]
        if why := self.cannot_move.get(held.grant_id):
            return f"{state.key} comes back to its own GPUs alone, by its node's rehearsal: {why}"
        return why_not_there(state, held, node, gpus)

    def _may_move(self, state: PodState) -> bool:
        held = self._book.grants[state.grant_id]
        return is_movable(held) and held.grant_id not in self.cannot_move and state.charged == held.node

    def _fits_on_its_own(self, held: GrantState, taken: Mapping[tuple[str, str], Amount]) -> bool:
        has = sum_shares((held.grant,))
        for (name, uuid), (mib, milli) in sum_shares((held.given,)).items():
            room = self._book.nodes[name].by_uuid.get(uuid) if name in self._book.nodes else None
            now_mib, now_milli = has.get((name, uuid), (0, 0))
            more_mib, more_milli = taken.get((name, uuid), (0, 0))
            if room is None or 0 < mib - now_mib > room.free_mib - more_mib:
                return False
            if 0 < milli - now_milli > room.free_milli - more_milli:
                return False
        return True

    # --- to move ----------------------------------------------------------------------------------------------

    def begin(self, state: PodState, gpus: Mapping[str, str], patch: SuspendPod) -> None:
        """Books the place, and has the move logged; then `patch` is sent with the amended grant."""
        held = self._book.grants[state.grant_id]
        amendment = _amendment(state, held, gpus)
        placeholder = self._reserve(state, held, amendment)
        self._open[state.uid] = Move(amendment, placeholder, gpus, _with_grant(patch, amendment))
        self._batcher.amendments.append(amendment)

    def renew(self, state: PodState, patch: SuspendPod) -> None:
        """Orders a void move anew, at the pod's present version."""
        move = self._open[state.uid]
        amendment = _amendment(state, self._book.grants[state.grant_id], move.gpus)
        patch = _with_grant(patch, amendment)
        self._open[state.uid] = Move(amendment, move.placeholder, move.gpus, patch)
        self._batcher.amendments.append(amendment)

    def logged(self, record: DecisionBatch, now: float) -> list[m.Command]:
        """These moves are durable: they may be ordered (R2)."""
        orders = []
        for amendment in record.amendments:
            move = self._open.get(amendment.uid)
            if move is not None and move.amendment is amendment and not move.logged:
                move.logged, move.sent_at = True, now
                orders += [] if move.patch is None or move.void else [move.patch]
        return [m.SendPatches(tuple(orders))] if orders else []

    def landed(self, state: PodState, held: GrantState) -> bool:
        """Handles a grant that was seen amended; returns whether it was for a move, whose place it has now."""
        move = self._open.get(state.uid)
        if move is None or held.given.containers != move.amendment.grant.containers:
            return False
        self._end(state.uid)
        return True

    def seen(self, state: PodState, kept: Collection[str]) -> bool:
        """Handles a pod that may be at another version; returns whether its move is void. `kept`: by uid, pods whose
        place a plan keeps."""
        version = state.pod.metadata.resource_version
        if self.feared.get(state.uid, version) != version:
            self._dread_no_more(state.uid)
        move = self._open.get(state.uid)
        if move is None or move.amendment.resource_version == version:
            return False
        move.void = True
        if state.uid not in kept:
            self._end(state.uid)
        return True

    def tick(self, kept: Collection[str], now: float) -> list[m.Command]:
        """Repeats what is not written yet, and forgets pods that are gone."""
        book = self._book
        self.cannot_move = {i: why for i, why in self.cannot_move.items() if i in book.grants}
        for uid in [uid for uid in self.feared if uid not in book.pods]:
            self._dread_no_more(uid)
        orders = []
        for uid, move in list(self._open.items()):
            state = book.pods.get(uid)
            held = None if state is None else book.grants.get(state.grant_id)
            if held is None or held.phase != "bound" or (move.void and uid not in kept):
                self._end(uid)
            elif move.patch is not None and move.logged and not move.void and now - move.sent_at >= REPEAT_S:
                move.sent_at = now
                orders.append(move.patch)
        return [m.SendPatches(tuple(orders))] if orders else []

    # --- what nodes say ---------------------------------------------------------------------------------------

    def rehearsed(self, grant_id: str, why: str) -> None:
        self.cannot_move.pop(grant_id, None)
        if why:
            self.cannot_move[grant_id] = why

    def synced(self, answer: NodeSyncAnswer) -> None:
        for grant_id in self._book.nodes[answer.node].grants:
            self.rehearsed(grant_id, answer.cannot_move.get(grant_id, ""))

    def _reserve(self, state: PodState, held: GrantState, amendment: Amendment) -> PodState:
        """It has its CPU and memory, and nothing on a GPU: the place is all of its grant."""
        placeholder = state.placeholder(f"moving/{state.uid}")
        placeholder.demand = Demand()
        self._book.reserve(placeholder, held.node, msgspec.structs.replace(amendment.grant, grant_id=placeholder.uid))
        return placeholder

    def _end(self, uid: str) -> None:
        self._book.unreserve(self._open.pop(uid).placeholder)
        self._capacity_changes.note()

    def _dread_no_more(self, uid: str) -> None:
        del self.feared[uid]
        still = {self._book.pods[left].charged for left in self.feared if left in self._book.pods}
        for node in [node for node in self._nodes.barred if node not in still]:
            why, known = self._nodes.barred.pop(node), self._book.nodes.get(node)
            if known is not None and known.agent_trouble == why:
                self._book.set_agent_trouble(node, "")
        self._capacity_changes.note()


def _amendment(state: PodState, held: GrantState, gpus: Mapping[str, str]) -> Amendment:
    meta = state.pod.metadata
    return Amendment(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        grant=on_gpus(held.given, gpus),
    )


def _with_grant(patch: SuspendPod, amendment: Amendment) -> SuspendPod:
    return msgspec.structs.replace(patch, grant=encode_grant(amendment.grant))


def _onto(held: GrantState, found: Amendment) -> dict[str, str]:
    before = [share.uuid for part in held.given.containers.values() for share in part.gpus]
    after = [share.uuid for name in held.given.containers for share in found.grant.containers[name].gpus]
    return dict(zip(before, after, strict=True))


def _take(taken: dict[tuple[str, str], Amount], held: GrantState, gpus: Mapping[str, str]) -> None:
    """Notes what a pod takes beyond what it has, on these GPUs or its own."""
    has = sum_shares((held.grant,))
    for (name, uuid), (mib, milli) in sum_shares((held.given,)).items():
        kept_mib, kept_milli = has.get((name, uuid), (0, 0))
        before_mib, before_milli = taken.get((name, gpus.get(uuid, uuid)), (0, 0))
        taken[name, gpus.get(uuid, uuid)] = (before_mib + mib - kept_mib, before_milli + milli - kept_milli)
