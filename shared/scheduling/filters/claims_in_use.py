from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.claims import ResourceClaim
from shared.scheduling.filters.base import Check, Filter


class ClaimsInUse(Filter):
    """Excludes nodes that have yet to release the GPUs of another pod with the same ResourceClaim: until then the
    kubelet has the claim prepared for that pod, and would give its devices to the next one."""

    name = "claims-in-use"
    scope = "cluster"

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        known = book.others.get(ResourceClaim.__name__, {})
        uids = {known[path].metadata.uid: path for path in pod.claims.values() if path in known}
        if not uids:
            return None

        def check(node: NodeState) -> Reason | None:
            for held in node.grants.values():
                for part in held.grant.containers.values():
                    if part.claim in uids and held.uid != pod.uid:
                        return Reason(
                            code="claim-on-node",
                            sentence=f"the node has yet to release the GPUs of {held.namespace}/{held.name}, which had "
                            f"the same ResourceClaim {uids[part.claim]}",
                            helps="wait until no process of that pod runs",
                        )
            return None

        return check
