from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.claims import claim_of
from shared.scheduling.filters.base import Check, Filter

_HELPS = (
    "set dra on the node agent (KERF_NODE_AGENT_DRA=true), Kubernetes 1.34 or later; or ask by kerf.dev/gpu resources"
)


class DeviceClaims(Filter):
    """Excludes nodes whose agent does not serve ResourceClaims, for pods that have them."""

    name = "device-claims"
    scope = "node"
    reads = ("request",)
    reads_node = ("inventory.dra",)

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        if pod.request is None or not any(map(claim_of, pod.request.asks)):
            return None

        def check(node: NodeState) -> Reason | None:
            if node.inventory is None or node.inventory.dra:
                return None
            return Reason(code="no-dra", sentence="the node's agent serves no ResourceClaims", helps=_HELPS)

        return check
