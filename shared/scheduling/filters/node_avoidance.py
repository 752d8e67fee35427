from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.scheduling.filters.base import Check, Filter


class AvoidedNodes(Filter):
    """Excludes nodes whose kubelet has rejected a pod of the same controller a short while ago."""

    name = "turned-away"
    scope = "cluster"

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        avoided = book.avoided.get(pod.controller_uid, set()) if book.avoided else set()
        if not avoided:
            return None

        def check(node: NodeState) -> Reason | None:
            if node.name not in avoided:
                return None
            return Reason(
                code="turned-away",
                sentence="the node's kubelet has rejected a pod of the same controller in the last five minutes",
                helps="kubectl describe the failed pod: it says what the kubelet found wrong",
            )

        return check
