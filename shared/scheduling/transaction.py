"""A transaction on the book: changes are tried, and then rolled back or committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.states import GrantState
from shared.model.grant import Grant
from shared.model.suspension import Suspension, goes_to_host

T = TypeVar("T")


class Transaction:
    """Changes of `book`, each with its inverse.

    `mark` is the present position. `roll_back(mark)` undoes, newest first, all that was done since that position: free
    capacity is then what it was, to the MiB. On the book itself pods can only be given places (`hold`); on a fork they
    can also leave their nodes and be suspended, as if that had happened. Those methods raise TypeError on any other
    book, because what was observed must not be changed.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self._inverses: list[Callable[[], object]] = []
        self._lifted: dict[str, list[tuple[str, GrantState | None]]] = {}
        """By uid of lifted pods: node and grant, the last ones of a pod that was lifted twice at the end."""
        self._parked: dict[str, bool] = {}
        """By grant id of suspended pods: whether their memory counted as on the host before."""

    @property
    def mark(self) -> int:
        return len(self._inverses)

    def roll_back(self, mark: int = 0) -> None:
        while len(self._inverses) > mark:
            self._inverses.pop()()

    def commit(self) -> None:
        """Keeps all changes: none of them can be rolled back any more."""
        self._inverses.clear()

    def hold(self, uid: str, node: str, grant: Grant | None) -> None:
        """Gives a waiting pod of the book a place."""
        self.book.hold(uid, node, grant)
        self._inverses.append(partial(self.book.unhold, uid))

    def unhold(self, uid: str) -> None:
        """Takes back a place that was given by `hold`."""
        state = self.book.pods[uid]
        node, held = state.charged, self.book.grants.get(state.grant_id)
        self.book.unhold(uid)
        self._inverses.append(partial(self._hold_again, uid, node, held))

    def lift(self, uid: str) -> None:
        """Takes a pod off its node, with all that it holds."""
        self._take_off(uid)
        self._inverses.append(partial(self._return, uid))

    def put_back(self, uid: str) -> None:
        """Returns a lifted pod to its node."""
        self._return(uid)
        self._inverses.append(partial(self._take_off, uid))

    def release(self, grant_id: str) -> None:
        """Returns the grant of a pod that is not in the book any more."""
        held = self._fork.release(grant_id)
        if held is not None:
            self._inverses.append(partial(self._fork.book_leaving, held))

    def end(self, uid: str, grant_id: str) -> None:
        """Lets a pod with this grant end, or the slice that has outlived it."""
        state = self.book.pods.get(uid)
        if state is not None and state.grant_id == grant_id:
            self.lift(uid)
        else:
            self.release(grant_id)

    def suspend(self, grant_id: str, suspension: Suspension | None) -> None:
        """Leaves a pod what it keeps while it is suspended; None: gives it back all that it was granted."""
        before = self._fork.grants[grant_id]
        self._suspend(grant_id, suspension)
        self._inverses.append(partial(self._fork.restore, before))

    def move(self, grant_id: str, grant: Grant) -> None:
        """Gives a suspended pod all of its grant back on other GPUs: this is the grant as amended."""
        before = self._fork.grants[grant_id]
        self._fork.move(grant_id, grant)
        self._inverses.append(partial(self._fork.restore, before))

    def _suspend(self, grant_id: str, suspension: Suspension | None) -> None:
        # What was on the host before stays there: only a node's confirmation empties it.
        parked = self._parked.setdefault(grant_id, self._fork.grants[grant_id].parked)
        self._fork.suspend(grant_id, suspension)
        self._fork.park(grant_id, parked=parked or goes_to_host(suspension))

    def _hold_again(self, uid: str, node: str, held: GrantState | None) -> None:
        self.book.hold(uid, node, None if held is None else held.given)
        if held is not None and held.suspension is not None:
            self.book.suspend(held.grant_id, held.suspension)

    def _return(self, uid: str) -> None:
        self._fork.return_lifted(uid, *self._lifted[uid].pop())

    def _take_off(self, uid: str) -> None:
        state = self._fork.pods[uid]
        self._lifted.setdefault(uid, []).append((state.charged, self._fork.grants.get(state.grant_id)))
        self._fork.lift(uid)

    @property
    def _fork(self) -> Fork:
        if not isinstance(self.book, Fork):
            raise TypeError("pods can be lifted and suspended on a fork only: Transaction(Fork(book))")
        return self.book


class ChangeList(Generic[T]):
    """The changes that are made in a transaction now. `set` makes others in their place, and redoes only from the first
    difference on: lists of pods that are tried one after another mostly extend the one before."""

    def __init__(self, transaction: Transaction, make: Callable[[T], None]) -> None:
        """`make`: makes one change in the transaction."""
        self._transaction, self._make = transaction, make
        self._made: list[T] = []
        self._marks = [transaction.mark]
        """The transaction's position before each change, and after the last one."""

    def set(self, changes: Sequence[T]) -> None:
        common = 0
        while common < min(len(changes), len(self._made)) and changes[common] is self._made[common]:
            common += 1
        self._transaction.roll_back(self._marks[common])
        del self._made[common:], self._marks[common + 1 :]
        for change in changes[common:]:
            self._make(change)
            self._made.append(change)
            self._marks.append(self._transaction.mark)
