from __future__ import annotations

from services.placement.scores.base import NodeScore, Rate
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.model.selectors import term_matches, untolerated


class PreferredNode(NodeScore):
    """Preferred node affinity: the sum of the weights of matching terms, of the most there could be."""

    name = "preferred-node"
    weight = 20
    reads = ("pod.spec.affinity.node_affinity",)
    reads_node = ()

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        affinity = pod.pod.spec.affinity
        terms = (
            affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
            if affinity and affinity.node_affinity
            else ()
        )
        most = sum(term.weight for term in terms)
        if not most:
            return None

        def rate(node: NodeState) -> int:
            if node.object is None:
                return 0
            return 1000 * sum(t.weight for t in terms if term_matches(t.preference, node.object)) // most

        return rate


class PreferNoSchedule(NodeScore):
    """Nodes with a PreferNoSchedule taint that the pod does not tolerate come last."""

    name = "prefer-no-schedule"
    weight = 30
    reads = ("pod.spec.tolerations",)
    reads_node = ()

    def prepare(self, pod: PodState, book: Book) -> Rate:
        tolerations = pod.pod.spec.tolerations

        def rate(node: NodeState) -> int:
            return (
                0
                if node.object is not None and untolerated(node.object.spec.taints, tolerations, ("PreferNoSchedule",))
                else 1000
            )

        return rate
