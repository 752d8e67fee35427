"""A filter: a pod with the annotation example.com/rack goes to nodes with that label alone."""

from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.scheduling.filters.base import Check, Filter

RACK = "example.com/rack"


class Rack(Filter):
    name = "rack"
    scope = "node"
    reads = (f"pod.metadata.annotations[{RACK}]",)
    reads_node = ()  # labels are known already: nodes with equal labels are checked once

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        wanted = pod.pod.metadata.annotations.get(RACK)
        if wanted is None:
            return None

        def check(node: NodeState) -> Reason | None:
            rack = "" if node.object is None else node.object.metadata.labels.get(RACK, "")
            if rack == wanted:
                return None
            return Reason(
                code="example-rack",
                sentence=f"the pod wants rack {wanted}, the node is in rack {rack or 'unknown'}",
                helps=f"drop the annotation {RACK}, or label a node {RACK}={wanted}",
            )

        return check
