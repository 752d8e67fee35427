"""The queues of a book: their tree and their use.

Without a policy there is neither, and all pods are in one queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.policy import CONFIG_MAP, CONFIG_NAMESPACE, QUEUES_KEY, QueuePolicy
from shared.model.grant import Grant
from shared.model.objects import ConfigMap
from shared.model.units import WHOLE_GPU_MILLI
from shared.queues.amounts import NOTHING, Amount, ask_of, room_of
from shared.queues.tree import Bound, Branch, Tree, first_over
from shared.queues.usage import Usage


def policy_text(book: Book) -> str | None:
    """Returns queues.yaml from the cluster's ConfigMap; None if there is none."""
    found: ConfigMap | None = book.others.get("ConfigMap", {}).get(f"{CONFIG_NAMESPACE}/{CONFIG_MAP}")
    return None if found is None else found.data.get(QUEUES_KEY)


class Hit(NamedTuple):
    """A bound that would be exceeded."""

    queue: Branch
    which: int
    """The index of the amount: GPU, CPU or memory."""
    used: Amount
    bound: int
    guarantee: bool
    """True for the guarantee, which bounds non-borrowing pods; otherwise it is the limit."""


class Queues:
    def __init__(self, book: Book) -> None:
        self.book = book
        self.tree: Tree | None = None
        self.usage: Usage | None = None
        self.largest_mib = 0
        """The memory of the largest GPU: a pod's part of a GPU is estimated by it before the pod is placed."""
        self._stamp = -1

    def enact(self, policy: QueuePolicy | None) -> None:
        """Puts a policy in force and counts what the book holds; None: no queues."""
        self.tree = None if policy is None else Tree(policy)
        self.usage = None if self.tree is None else Usage(self.tree, self.book)
        self.book.witness = self.usage
        self._stamp = -1
        self.look_around()

    def look_around(self) -> None:
        """Updates capacities if nodes or inventories have changed, and drops queues that are not needed any more."""
        if self.tree is None or self.usage is None:
            return
        self.tree.drop_unused()
        if self._stamp == self.book.stamp:
            return
        self._stamp = self.book.stamp
        arrays = self.book.arrays
        self.largest_mib = int(arrays.gpu_total_mib.max(initial=0))
        self.tree.set_capacity(
            Amount(
                int(arrays.there.sum()) * WHOLE_GPU_MILLI, int(arrays.cpu_total.sum()), int(arrays.memory_total.sum())
            )
        )
        self.usage.learn()

    def hit(self, state: PodState, extra: Amount, asked: Amount | None = None) -> Hit | None:
        """Returns the first bound of a pod's queue or its ancestors that `extra` would exceed.

        None if there is none.

        `asked`: what the pod requests, if `extra` is on the book already.
        """
        if self.usage is None:
            return None
        non_borrowing = self.usage.is_non_borrowing(state)
        for at in self.usage.queue_of(state).path():
            for bound, used, guarantee in self.bounds(at, non_borrowing=non_borrowing):
                index = first_over(used, extra, bound, extra if asked is None else asked)
                if index is not None:
                    return Hit(at, index, used, bound[index] or 0, guarantee)
        return None

    def exceeded_by(self, asked: Sequence[tuple[PodState, Amount]], gone: Iterable[str] = ()) -> str:
        """Returns which quota these pods would exceed together if they had these amounts too, and those of `gone`, by
        uid, nothing; empty if none. Each counts in its own queue, and by whether it may borrow: a gang's members may
        differ in both."""
        if self.usage is None:
            return ""
        alike: dict[tuple[str, bool], tuple[PodState, Amount]] = {}
        for state, amount in asked:
            kind = self.usage.kind_of(state)
            first, together = alike.get(kind, (state, NOTHING))
            alike[kind] = (first, together.plus(amount))
        with self.usage.without(gone), self.usage.with_all(alike.values()):
            for state, amount in alike.values():
                hit = self.hit(state, NOTHING, amount)
                if hit is not None:
                    return f"{state.key} would exceed the quota of queue {hit.queue.name}"
        return ""

    def exceeded_on(self, placed: Sequence[tuple[PodState, Grant]], gone: Iterable[str] = ()) -> str:
        """Returns the same for the GPUs that were found: of a small one a slice takes a larger part."""
        usage = self.usage
        if usage is None:
            return ""
        return self.exceeded_by([(state, room_of(state, usage.milli_of(grant))) for state, grant in placed], gone)

    @staticmethod
    def bounds(at: Branch, *, non_borrowing: bool) -> list[tuple[Bound, Amount, bool]]:
        """Returns each bound of a queue, what counts against it, and whether it is the guarantee."""
        return (
            [(at.limit, at.used, False), (at.own, at.non_borrowing, True)]
            if non_borrowing
            else [(at.limit, at.used, False)]
        )

    def wanted(self) -> dict[str, int]:
        """Returns the GPU milli that pending pods request beyond what is reserved, which counts as used; by queue.
        Negative where a place is reserved for a pod that still runs elsewhere."""
        if self.usage is None:
            return {}
        found = {name: -amount.gpu_milli for name, amount in self.usage.kept().items()}
        for state in self.book.pods.values():
            if state.wants_place and not state.charged and state.request is not None and not state.refusal:
                name = self.usage.queue_of(state).name
                found[name] = found.get(name, 0) + self.ask(state).gpu_milli
        return found

    def ask(self, state: PodState) -> Amount:
        """Returns what a pending pod takes at least."""
        return ask_of(state, self.largest_mib)
