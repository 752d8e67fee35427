"""Counts what each queue uses. Whatever the book books or releases is counted in the same step.

This includes trial placements of gangs and recoveries. A new Usage of the same book has the same counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import msgspec

from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.model import names
from shared.model.grant import Grant
from shared.model.request import OPPORTUNISTIC
from shared.queues.amounts import NOTHING, Amount, gpus_of, room_of, whole_gpus_of
from shared.queues.tree import Branch, Tree


class _Counted(msgspec.Struct):
    """What one pod has. Its queue is that of its first booking: a label that changes later has no effect."""

    queue: Branch
    non_borrowing: bool
    room: Amount = NOTHING
    grants: dict[str, int] = {}
    """GPU milli by grant id."""
    kept: bool = False
    """Whether it is a placeholder pod of a reservation."""

    @property
    def gpu_milli(self) -> int:
        return sum(self.grants.values())

    @property
    def amount(self) -> Amount:
        return self.room.plus(Amount(self.gpu_milli))


class Usage:
    """Counts the use of queues as a book's witness (`Ledger.witness`)."""

    def __init__(self, tree: Tree, book: Book) -> None:
        self.tree, self.book = tree, book
        self._of: dict[str, _Counted] = {}
        self.guessed: set[str] = set()
        """Ids of grants on GPUs that were not known: they count as whole GPUs until the inventory is known."""
        for node in book.nodes.values():  # includes the placeholder pods of reservations
            for state in node.pods.values():
                self.charged(state)
        for held in book.grants.values():
            self.booked(held)

    # --- bookings ---------------------------------------------------------------------------------------------

    def charged(self, state: PodState) -> None:
        """Counts CPU and memory of a pod; pods of other schedulers use nothing of the queues."""
        if state.ours:
            counted = self._counted(state.uid, state, state.pod.metadata.namespace)
            self._use(counted, room_of(state))
            counted.room, counted.kept = room_of(state), bool(state.kept_for)

    def uncharged(self, state: PodState) -> None:
        counted = self._of.get(state.uid)
        if counted is not None:
            self._use(counted, NOTHING.minus(counted.room))
            counted.room = NOTHING
            self._forget(state.uid, counted)

    def booked(self, held: GrantState) -> None:
        counted = self._counted(held.uid, self.book.pods.get(held.uid), held.namespace)
        milli = gpus_of(held.grant, self.total_of)
        if milli is None:
            self.guessed.add(held.grant_id)
        counted.grants[held.grant_id] = whole_gpus_of(held.grant) if milli is None else milli
        self._use(counted, Amount(gpu_milli=counted.grants[held.grant_id]))

    def unbooked(self, held: GrantState) -> None:
        counted = self._of.get(held.uid)
        found = None if counted is None else counted.grants.pop(held.grant_id, None)
        self.guessed.discard(held.grant_id)
        if counted is not None and found is not None:
            self._use(counted, Amount(gpu_milli=-found))
            self._forget(held.uid, counted)

    def learn(self) -> None:
        """Counts grants on GPUs that have become known since."""
        for grant_id in list(self.guessed):
            held = self.book.grants[grant_id]
            milli = gpus_of(held.grant, self.total_of)
            if milli is not None:
                counted = self._of[held.uid]
                self._use(counted, Amount(gpu_milli=milli - counted.grants[grant_id]))
                counted.grants[grant_id] = milli
                self.guessed.discard(grant_id)

    # --- queries -----------------------------------------------------------------------------------------------

    def is_non_borrowing(self, state: PodState) -> bool:
        """Whether the pod may use guarantees alone: what it borrowed could not be taken back."""
        if not state.life.preemptible:
            return True
        least = self.tree.policy.within_guarantee_from
        opportunistic = state.request is not None and state.request.tier == OPPORTUNISTIC
        return least is not None and state.pod.spec.priority >= least and not opportunistic

    def queue_of(self, state: PodState) -> Branch:
        """Returns the queue in which a pod is counted, or would be."""
        known = self._of.get(state.uid)
        return self._named_by(state) if known is None else known.queue

    def kind_of(self, state: PodState) -> tuple[str, bool]:
        """Returns all of a pod that decides on which bounds hold for it: its queue, and whether it is non-borrowing."""
        return self.queue_of(state).name, self.is_non_borrowing(state)

    def _named_by(self, state: PodState) -> Branch:
        meta = state.pod.metadata
        return self.tree.find(meta.labels.get(names.LABEL_QUEUE, ""), meta.namespace)

    def gpu_milli(self, uid: str) -> int:
        """Returns the GPU milli that a pod has."""
        counted = self._of.get(uid)
        return 0 if counted is None else counted.gpu_milli

    def milli_of(self, grant: Grant) -> int:
        """Returns the GPU milli that a grant counts for; whole GPUs where their size is not known."""
        milli = gpus_of(grant, self.total_of)
        return whole_gpus_of(grant) if milli is None else milli

    def gpu_milli_by_queue(self, uids: Iterable[str]) -> dict[str, int]:
        """Returns the GPU milli that these pods have, by queue, parents included; also of a pod that is deleted and has
        yet to release them."""
        found: dict[str, int] = {}
        for counted in [self._of[uid] for uid in uids if uid in self._of]:
            for at in counted.queue.path():
                found[at.name] = found.get(at.name, 0) + counted.gpu_milli
        return found

    def kept(self) -> dict[str, Amount]:
        """Returns what is reserved for pending pods, by queue, parents included.

        It is part of what is used, because limits apply to it too.
        """
        found: dict[str, Amount] = {}
        for counted in self._of.values():
            for at in counted.queue.path() if counted.kept else ():
                found[at.name] = found.get(at.name, NOTHING).plus(counted.amount)
        return found

    def without(self, uids: Iterable[str]) -> AbstractContextManager[None]:
        """Counts as if these pods had returned everything, within the context."""
        found = [self._of[uid] for uid in uids if uid in self._of]
        return self._as_if([(one.queue, NOTHING.minus(one.amount), one.non_borrowing) for one in found])

    def with_all(self, asked: Iterable[tuple[PodState, Amount]]) -> AbstractContextManager[None]:
        """Counts as if these pending pods had what they request, each in its queue, within the context."""
        return self._as_if([(self.queue_of(state), amount, self.is_non_borrowing(state)) for state, amount in asked])

    @contextmanager
    def _as_if(self, used: Sequence[tuple[Branch, Amount, bool]]) -> Iterator[None]:
        """Queues, what they use besides, and whether it is non-borrowing."""
        for queue, amount, non_borrowing in used:
            self.tree.use(queue, amount, non_borrowing=non_borrowing)
        try:
            yield
        finally:
            for queue, amount, non_borrowing in used:
                self.tree.use(queue, NOTHING.minus(amount), non_borrowing=non_borrowing)

    def total_of(self, node: str, uuid: str) -> int | None:
        known = self.book.nodes.get(node)
        room = None if known is None else known.by_uuid.get(uuid)
        return None if room is None else room.total_mib

    # --- inside -----------------------------------------------------------------------------------------------

    def _counted(self, uid: str, state: PodState | None, namespace: str) -> _Counted:
        known = self._of.get(uid)
        if known is None:
            # Of a slice whose pod was never seen only the namespace is known.
            named = "" if state is None else state.pod.metadata.labels.get(names.LABEL_QUEUE, "")
            queue = self.tree.find_running(named, namespace)
            known = self._of[uid] = _Counted(queue, state is not None and self.is_non_borrowing(state))
            self.tree.enter(queue)
        return known

    def _use(self, counted: _Counted, amount: Amount) -> None:
        self.tree.use(counted.queue, amount, non_borrowing=counted.non_borrowing)

    def _forget(self, uid: str, counted: _Counted) -> None:
        if not counted.grants and counted.room == NOTHING and self._of.pop(uid, None) is not None:
            self.tree.leave(counted.queue)
