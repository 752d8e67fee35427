"""Queues as placement uses them: a pod's queue, what its quota forbids, and which queue is next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from services.placement.scheduling.fair.messages import on_larger_gpus, over, policy_invalid, unassigned
from shared.book.arrays import Bools
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.events import PolicyRead
from shared.contracts.explain import QueueExplanation, Reason
from shared.contracts.policy import CONFIG_MAP, CONFIG_NAMESPACE, PolicyError, read_queues
from shared.contracts.queries import QueueStanding
from shared.model.grant import ContainerGrant, Grant
from shared.model.units import WHOLE_GPU_MILLI
from shared.queues.amounts import NOTHING, Amount, ask_of, gpus_of, room_of
from shared.queues.queues import Queues, policy_text
from shared.queues.tree import UNASSIGNED, Branch, Offer, Tree


class Fair(Queues):
    """Without a policy everything here is one `is None`."""

    def __init__(self, book: Book) -> None:
        super().__init__(book)
        self.problem = ""
        """Why the present text is not in force; empty if it is."""
        self.blocked = False
        """The first text of this session cannot be read: nothing is placed, for it may contain limits."""
        self._text: str | None = None
        self._begun = False

    def read(self) -> PolicyRead | None:
        """Reads the queues from the cluster's ConfigMap. Returns what to report; None if nothing changed. If the text
        cannot be read, what this session read before stays in force."""
        text = policy_text(self.book)
        if text == self._text and self._begun:
            return None
        first, self._begun, self._text = not self._begun, True, text
        try:
            policy = None if text is None else read_queues(text)
        except PolicyError as error:
            self.problem = str(error)
            self.blocked = first or self.blocked
            return self._said()
        told = bool(self.problem) or not (first and policy is None)
        self.problem, self.blocked = "", False
        self.enact(policy)
        return self._said() if told else None

    def _said(self) -> PolicyRead:
        queues = 0 if self.tree is None else len(self.tree.policy.queues)
        return PolicyRead(
            namespace=CONFIG_NAMESPACE, name=CONFIG_MAP, accepted=not self.problem, queues=queues, problem=self.problem
        )

    # --- a pod's queue, and amounts -------------------------------------------------------------------------------

    def queue_of(self, state: PodState) -> str:
        """The queue's name; one for all where there are no queues."""
        return "" if self.usage is None else self.usage.queue_of(state).name

    def is_non_borrowing(self, state: PodState) -> bool:
        """Whether the pod may use guarantees alone."""
        return self.usage is not None and self.usage.is_non_borrowing(state)

    def least(self, states: Sequence[PodState], need: int) -> Amount:
        """What `need` of these pods request together at least."""
        if len(states) == 1:
            return self.ask(states[0])
        total = NOTHING
        for amount in sorted(self.ask(state) for state in states)[:need]:
            total = total.plus(amount)
        return total

    # --- what keeps a pod back --------------------------------------------------------------------------------

    def quota_exceeded(self, states: Sequence[PodState], need: int = 1) -> Reason | None:
        """Why the quota allows none of these pods now, with or without free capacity: all `need` of them together, or
        none. Those of each queue, and those that may not borrow, are compared with what at least of them is needed;
        `exceeded` compares them together, when they have places."""
        if self.blocked:
            return policy_invalid(self.problem)
        if self.usage is None or not states:
            return None
        if len(states) == 1:
            return self._over(states[0], self.ask(states[0]))
        alike: dict[tuple[str, bool], list[PodState]] = {}
        for state in states:
            alike.setdefault(self.usage.kind_of(state), []).append(state)
        for some in alike.values():
            needed = need - (len(states) - len(some))
            why = self._over(some[0], self.least(some, needed)) if needed > 0 else None
            if why is not None:
                return why
        return None

    def quota_exceeded_on(self, state: PodState, containers: Mapping[str, ContainerGrant]) -> Reason | None:
        """The same for a place that was found, with its actual shares of GPUs."""
        if self.usage is None:
            return None
        grant = Grant(grant_id="", term=0, containers=dict(containers))
        return self._over(state, room_of(state, self.usage.milli_of(grant)))

    def growth_exceeded(self, state: PodState, held: Grant, wanted: Grant) -> Reason | None:
        """Why the quota of a running pod's queue does not allow it these larger amounts."""
        if self.blocked:
            return policy_invalid(self.problem)
        if self.usage is None:
            return None
        now_milli, then_milli = gpus_of(held, self.usage.total_of), gpus_of(wanted, self.usage.total_of)
        if now_milli is None or then_milli is None or then_milli <= now_milli:
            return None
        return self._over(state, Amount(gpu_milli=then_milli - now_milli))

    def keeps_off_all(self, state: PodState, nodes: Sequence[str]) -> Reason | None:
        """The same of all these nodes, by the largest of their GPUs; None where they are none."""
        if self.usage is None or not nodes:
            return None
        largest_mib = max((gpu.total_mib for name in nodes for gpu in self.book.nodes[name].gpus), default=0)
        why = self._over(state, ask_of(state, largest_mib))
        return why if why is None or self._over(state, self.ask(state)) is not None else on_larger_gpus(why)

    def exceeded(self, states: Iterable[PodState]) -> Reason | None:
        """Of pods whose places are held on the book for an attempt: whether a queue exceeds its quota with them."""
        if self.usage is None:
            return None
        return next(
            (why for s in states if (why := self._over(s, NOTHING, self.ask(s))) is not None),
            None,
        )

    def rows_within(self, state: PodState, members: int = 1) -> Bools | None:
        """Nodes with GPUs that are large enough for the pod's share of one to stay within its limits, where so many
        such pods are to; None: all nodes."""
        if self.usage is None or state.request is None or len(state.request.asks) != 1:
            return None
        (ask,) = state.request.asks.values()
        queue = self.usage.queue_of(state)
        left = [
            b[0] - used[0]
            for at in queue.path()
            for b, used, _ in self.bounds(at, non_borrowing=self.usage.is_non_borrowing(state))
            if b[0] is not None
        ]
        if (
            not left
            or ask.whole
            or ask.memory_milli
            or not ask.memory_mib
            or min(left) >= ask.count * members * WHOLE_GPU_MILLI
        ):
            return None
        most_milli = min(left) // (ask.count * members)
        within: Bools = (
            self.book.arrays.gpu_total_mib.max(axis=1) * np.int64(max(0, most_milli))
            >= ask.memory_mib * WHOLE_GPU_MILLI
        )
        return within

    def _over(self, state: PodState, extra: Amount, asked: Amount | None = None) -> Reason | None:
        if self.tree is None or self.usage is None:
            return None
        if self.usage.queue_of(state) is self.tree.unassigned:
            return unassigned(state, self.tree)
        hit = self.hit(state, extra, asked)
        if hit is None:
            return None
        return over(
            hit.queue,
            hit.which,
            hit.used,
            hit.bound,
            extra,
            priority=state.pod.spec.priority if hit.guarantee else None,
            preemptible=state.life.preemptible,
        )

    # --- the next queue ----------------------------------------------------------------------------------------

    def put_offer(self, queue_name: str, offer: Offer | None) -> None:
        """The pod of this queue that would be tried next."""
        if self.tree is not None:
            self.tree.put_offer(self._branch(self.tree, queue_name), offer)

    def next(self) -> Offer | None:
        return None if self.tree is None else self.tree.next()

    def explain(self, state: PodState, waiting: Mapping[str, int]) -> QueueExplanation | None:
        """How the pod's queue stands. A queue is below its fair share if its pods wait and it has less than its
        guarantee. `waiting`: the number of waiting pods by queue."""
        if self.tree is None or self.usage is None:
            return None
        queue = self.usage.queue_of(state)
        if queue is self.tree.unassigned:
            return None
        borrows = queue.used.gpu_milli > (queue.guaranteed[0] or 0)
        others = [self._branch(self.tree, name) for name in waiting if name != queue.name] if borrows else []
        return QueueExplanation(
            name=queue.name,
            gpu_milli_used=queue.used.gpu_milli,
            gpu_milli_guaranteed=queue.guaranteed[0] or 0,
            gpu_milli_limit=queue.limit[0],
            borrows=borrows,
            owed=sum(1 for other in others if other.used.gpu_milli < (other.guaranteed[0] or 0)),
        )

    def standing(self, waiting: Mapping[str, int]) -> list[QueueStanding]:
        """Every queue, parents before their children. `waiting`: the number of waiting pods by queue."""
        if self.tree is None or self.usage is None:
            return []
        kept = self.usage.kept()
        total = dict(waiting)
        for name, count in waiting.items():
            for at in list(self._branch(self.tree, name).path())[1:]:
                total[at.name] = total.get(at.name, 0) + count
        found: list[QueueStanding] = []
        todo = [queue for queue in reversed(self.tree.root.children) if queue is not self.tree.unassigned]
        while todo:
            queue = todo.pop()
            todo += reversed(queue.children)
            reserved = kept.get(queue.name, NOTHING)
            used = queue.used.minus(reserved)
            found.append(
                QueueStanding(
                    name=queue.name,
                    parent="" if queue.parent is None else queue.parent.name,
                    weight=queue.weight,
                    priority=queue.priority,
                    gpu_milli_used=used[0],
                    gpu_milli_guaranteed=queue.guaranteed[0] or 0,
                    gpu_milli_limit=queue.limit[0],
                    cpu_milli_used=used[1],
                    cpu_milli_guaranteed=queue.guaranteed[1],
                    cpu_milli_limit=queue.limit[1],
                    memory_bytes_used=used[2],
                    memory_bytes_guaranteed=queue.guaranteed[2],
                    memory_bytes_limit=queue.limit[2],
                    waiting=total.get(queue.name, 0),
                    gpu_milli_reserved=reserved.gpu_milli,
                )
            )
        return found

    @staticmethod
    def _branch(tree: Tree, queue_name: str) -> Branch:
        """A queue that is not there is that of a namespace where pods wait."""
        return tree.unassigned if queue_name == UNASSIGNED else tree.queues.get(queue_name) or tree.find("", queue_name)
