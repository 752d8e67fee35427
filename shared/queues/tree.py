"""The tree of queues: what each may use, what it uses, and which one is next.

At every level that child is next whose key is smallest, with what its first waiting pod or gang takes already counted:

1. children that stay within their guarantee: higher priority first, then the smaller part used of the guarantee;
2. children that borrow: higher priority first, then the smaller surplus (dominant share of the cluster above the
   guarantee) per weight;
3. children of weight 0 that borrow: the smaller surplus first.

Ties go to the smaller pod, then to the older one; names never decide. A change of one queue costs one heap entry at
each level above it. Stale entries stay in the heap until they reach its top (each child has a stamp).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from shared.contracts.policy import Amounts, QueueDefaults, QueuePolicy, QueueRule
from shared.queues.amounts import NOTHING, Amount

UNASSIGNED = "?"
"""The name for pods whose queue does not exist or is not open to them. It is no queue, and no pod is served from it."""

Bound = tuple[int | None, int | None, int | None]
Key = tuple[Any, ...]


class Offer(NamedTuple):
    """The first pending pod or gang of a queue that may be tried. `order`: priority and age, unique."""

    order: tuple[Any, ...]
    uid: str
    amount: Amount


class Branch:
    """A node of the tree.

    `used` is what its subtree has, `non_borrowing` the part that non-borrowing pods have.
    """

    def __init__(self, name: str, rule: QueueDefaults, parent: Branch | None) -> None:
        self.name, self.parent = name, parent
        self.weight, self.priority, self.turns = rule.weight, rule.priority, rule.turns
        self.reserve_after_s = rule.reserve_after_s
        self.namespaces = rule.namespaces if isinstance(rule, QueueRule) else ()
        self.limit: Bound = rule.limit.vector()
        self.guaranteed: Bound = rule.guaranteed.vector()
        self.children: list[Branch] = []
        self.used = self.non_borrowing = NOTHING
        self.offer: Offer | None = None
        self.pods = 0
        """How many pods are counted in it."""
        self.stamp = 0
        self.heap: list[tuple[Key, int, Branch]] = []
        if parent is not None:
            parent.children.append(self)

    def path(self) -> Iterator[Branch]:
        """Yields the queue and its ancestors, without the root, which is no queue."""
        at: Branch | None = self
        while at is not None and at.parent is not None:
            yield at
            at = at.parent

    def key(self, capacity: Amount) -> Key:
        """Returns the sort key among its siblings, with its offer already counted as used."""
        return (math.inf,) if self.offer is None else self.key_with(self.offer, capacity)

    def key_with(self, offer: Offer, capacity: Amount) -> Key:
        """Returns the sort key that it would have with this offer."""
        after = self.used.plus(offer.amount)
        guaranteed = self.guaranteed
        within = after[0] <= (guaranteed[0] or 0) and all(
            bound is None or amount <= bound for amount, bound in zip(after[1:], guaranteed[1:], strict=True)
        )
        if within:
            part = max(amount / bound if bound else 0.0 for amount, bound in zip(after, guaranteed, strict=True))
            return (0, -self.priority, part, offer.amount.gpu_milli, offer.order)
        surplus = max(
            (amount - (bound or 0)) / of if of and (bound is not None or index == 0) else 0.0
            for index, (amount, bound, of) in enumerate(zip(after, guaranteed, capacity, strict=True))
        )
        if self.weight > 0:
            return (1, -self.priority, surplus / self.weight, offer.amount.gpu_milli, offer.order)
        return (2, -self.priority, surplus, offer.amount.gpu_milli, offer.order)

    @property
    def own(self) -> Bound:
        """Its guarantee as a bound: no GPUs where none is set, and unlimited CPU and memory where none is set."""
        return (self.guaranteed[0] or 0, *self.guaranteed[1:])


def first_over(used: Amount, extra: Amount, bound: Bound, asked: Amount) -> int | None:
    """Returns the index of the first amount that would exceed its bound; None if none does.

    Only requested amounts count: a pod that requests none of an exceeded resource is not blocked by it.
    """
    for index, most in enumerate(bound):
        if most is not None and asked[index] and used[index] + extra[index] > most:
            return index
    return None


class Tree:
    """All queues. A namespace that no queue is named after gets its own, created when it is first seen."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.reserves = any(rule.reserve_after_s for rule in (*policy.queues, policy.default))
        """Whether some queue has capacity reserved for its first pod or gang by its own rule."""
        self.capacity = Amount(1, 1, 1)
        self.root = Branch("", QueueDefaults(), None)
        self.unassigned = Branch(UNASSIGNED, QueueDefaults(limit=Amounts(gpus=0)), self.root)
        self.queues: dict[str, Branch] = {}
        self._beside: dict[str, Branch] = {}
        """By queue that has children: what has run in it since before it had."""
        self._automatic: set[str] = set()
        """Those of namespaces that no queue is named after. Their names are not the policy's to give away."""
        self._perhaps_unused: set[str] = set()
        """Queues that were made, or lost a pod or their offer, since `drop_unused`."""
        self._dirty: dict[str, Branch] = {}
        waiting = {rule.name: rule for rule in policy.queues}
        for rule in policy.queues:
            self._make(rule, waiting)
        for queue in self.root.children:
            _guarantee_of_children(queue)

    def _make(self, rule: QueueRule, rules: dict[str, QueueRule]) -> Branch:
        if rule.name not in self.queues:
            parent = self._make(rules[rule.parent], rules) if rule.parent else self.root
            self.queues[rule.name] = Branch(rule.name, rule, parent)
        return self.queues[rule.name]

    # --- queues -----------------------------------------------------------------------------------------------

    def find(self, named: str, namespace: str) -> Branch:
        """Returns the queue of a pod with this label (empty: none) in this namespace.

        `unassigned` if it has none. The queue of a namespace, which no rule names, is that namespace's alone.
        """
        queue = self.queues.get(named or namespace)
        if queue is None or queue.name in self._automatic:
            return self._of_namespace(namespace) if named in ("", namespace) else self.unassigned
        if queue.children or (queue.namespaces and namespace not in queue.namespaces):
            return self.unassigned
        return queue

    def find_running(self, named: str, namespace: str) -> Branch:
        """Returns the same for a pod that has a place. Where its queue has children by now it counts beside them:
        against the queue's limit, and under its guarantee."""
        queue = self.queues.get(named or namespace)
        if queue is None or not queue.children or (queue.namespaces and namespace not in queue.namespaces):
            return self.find(named, namespace)
        if queue.name not in self._beside:
            self._beside[queue.name] = Branch(f"{queue.name} (itself)", QueueDefaults(), queue)
        return self._beside[queue.name]

    def named(self, name: str) -> Branch | None:
        """The queue of this name in the policy."""
        return None if name in self._automatic else self.queues.get(name)

    def _of_namespace(self, namespace: str) -> Branch:
        if namespace not in self.queues:
            self.queues[namespace] = Branch(namespace, self.policy.default, self.root)
            self._automatic.add(namespace)
            self._perhaps_unused.add(namespace)
        return self.queues[namespace]

    def drop_unused(self) -> None:
        """Drops queues of namespaces that have neither pods nor an offer; they are made again when they are needed. Not
        to be called while a queue that `find` returned is in use."""
        found = [self.queues[name] for name in self._perhaps_unused & self._automatic]
        self._perhaps_unused.clear()
        unused = {queue.name for queue in found if not queue.pods and queue.offer is None}
        if unused:
            self._automatic -= unused
            self.root.children = [queue for queue in self.root.children if queue.name not in unused]
        for name in unused:
            del self.queues[name]

    # --- use ---------------------------------------------------------------------------------------------------

    def enter(self, queue: Branch) -> None:
        """A pod is counted in this queue from now on."""
        queue.pods += 1

    def leave(self, queue: Branch) -> None:
        queue.pods -= 1
        self._perhaps_unused.add(queue.name)

    def use(self, queue: Branch, amount: Amount, *, non_borrowing: bool) -> None:
        """Adds an amount to a queue's use; a negative amount is returned."""
        for at in queue.path():
            at.used = at.used.plus(amount)
            if non_borrowing:
                at.non_borrowing = at.non_borrowing.plus(amount)
        self._dirty[queue.name] = queue

    # --- next queue -------------------------------------------------------------------------------------------

    def set_capacity(self, capacity: Amount) -> None:
        """Sets the cluster's capacity, by which surpluses of different resources are compared."""
        capacity = Amount(*(max(1, amount) for amount in capacity))
        if capacity != self.capacity:
            self.capacity = capacity
            self._dirty |= {queue.name: queue for queue in self.queues.values() if queue.offer is not None}

    def put_offer(self, queue: Branch, offer: Offer | None) -> None:
        """Sets what this queue would try next; None if it has no pod to try."""
        queue.offer = offer
        if offer is None:
            self._perhaps_unused.add(queue.name)
        self._dirty[queue.name] = queue

    def next(self) -> Offer | None:
        """Returns the next offer over all queues."""
        for queue in self._dirty.values():
            self._bubble(queue)
        self._dirty = {}
        return self.root.offer

    def precedes(self, queue: Branch, offer: Offer, other: Branch, others: Offer) -> bool:
        """Whether this queue's offer would be tried before that of the other queue, if there were only these two.

        Both are queues of pods, which have no children.
        """
        for mine, theirs in zip(reversed(list(queue.path())), reversed(list(other.path())), strict=False):
            if mine is not theirs:
                return mine.key_with(offer, self.capacity) < theirs.key_with(others, self.capacity)
        return offer.order < others.order

    def _bubble(self, queue: Branch) -> None:
        at = queue
        while at.parent is not None:
            at.stamp += 1
            heap = at.parent.heap
            if at.offer is not None:
                heapq.heappush(heap, (at.key(self.capacity), at.stamp, at))
            while heap and (heap[0][1] != heap[0][2].stamp or heap[0][2].offer is None):
                heapq.heappop(heap)
            if len(heap) > 2 * len(at.parent.children) + 64:
                at.parent.heap = heap = [entry for entry in heap if entry[1] == entry[2].stamp]
                heapq.heapify(heap)
            at.parent.offer = heap[0][2].offer if heap else None
            at = at.parent


def _guarantee_of_children(queue: Branch) -> None:
    """Gives a parent without a guarantee the sum of its children's guarantees."""
    for child in queue.children:
        _guarantee_of_children(child)
    if queue.children:
        named = queue.guaranteed
        sums = [[b for c in queue.children if (b := c.guaranteed[index]) is not None] for index in range(3)]
        gpus, cpu, memory = (
            own if own is not None else sum(of) if of else None for own, of in zip(named, sums, strict=True)
        )
        queue.guaranteed = (gpus, cpu, memory)
