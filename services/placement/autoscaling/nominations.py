"""Nominates the node of each pod for which a plan makes room, and takes the nomination back when there is no plan.

Karpenter and Cluster Autoscaler start no node for a pod with `status.nominatedNodeName` (karpenter pkg/utils/pod,
IsProvisionable).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from shared.book.book import Book
from shared.contracts.commands import NominateNode

AGAIN_S = 5.0
"""How long a nomination that was written may take to be seen."""
LOOK_S = 5.0
"""How often all waiting pods are looked at, for nominations of an earlier leader."""


class Nominations:
    def __init__(
        self,
        book: Book,
        planned: Callable[[], Mapping[str, str]],
        waiting: Callable[[], Iterable[str]],
        held: Container[str],
    ) -> None:
        """`planned`: the node by pod, of every pod for which a plan makes room. `waiting`: all that wait, by uid.
        `held`: pods with a Binding under way, by uid. A write moves their version, and the Binding would fail."""
        self._book, self._planned, self._waiting, self._held = book, planned, waiting, held
        self._asked: dict[str, float] = {}
        self._look_at = 0.0

    def due(self, now: float) -> list[NominateNode]:
        planned = self._planned()
        uids: Iterable[str] = {*planned, *self._asked}
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            uids = {*uids, *self._waiting()}
        out: list[NominateNode] = []
        for uid in uids:
            state, node = self._book.pods.get(uid), planned.get(uid, "")
            if state is None or not state.wants_place or state.pod.status.nominated_node_name == node:
                self._asked.pop(uid, None)
                continue
            if uid in self._held or now - self._asked.get(uid, float("-inf")) < AGAIN_S:
                continue
            self._asked[uid] = now
            meta = state.pod.metadata
            out.append(
                NominateNode(
                    uid=uid,
                    namespace=meta.namespace,
                    name=meta.name,
                    node=node,
                    resource_version=meta.resource_version,
                )
            )
        return out
