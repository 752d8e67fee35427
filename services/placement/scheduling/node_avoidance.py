"""Node avoidance: after a kubelet has rejected a pod, its successors avoid that node for a while.

The kubelet checks the scheduler's decision again, and a pod that it does not admit has failed for good. Its owner
creates another at once, for which the same node is the best again: without a pause the two would produce failed pods by
the hundred (kubernetes #125579: a kubelet that has started and not yet connected to the device plugin).
"""

from __future__ import annotations

from shared.book.book import Book
from shared.book.states import PodState

AVOID_S = 300.0
_WORDS = ("UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity")
_OUT_OF = "OutOf"


class NodeAvoidance:
    def __init__(self, book: Book) -> None:
        self.book = book
        self._until: dict[tuple[str, str], float] = {}

    def ended(self, state: PodState, now: float) -> None:
        """A pod has ended; if the kubelet rejected it, its controller's pods avoid the node from now on."""
        reason, node, owner = state.pod.status.reason, state.pod.spec.node_name, state.controller_uid
        if node and owner and (reason in _WORDS or reason.startswith(_OUT_OF)):
            self._until[owner, node] = now + AVOID_S
            self._tell()

    def tick(self, now: float) -> bool:
        """True if a node can be used again by some pods."""
        over = [key for key, until in self._until.items() if until <= now]
        for key in over:
            del self._until[key]
        if over:
            self._tell()
        return bool(over)

    def _tell(self) -> None:
        self.book.avoided = {}
        for owner, node in self._until:
            self.book.avoided.setdefault(owner, set()).add(node)
