"""Slices of pods that are pending again: etcd was restored from a backup of before their Bindings, and their containers
run on.

Such a pod waits until the node that reports the slice has released it, so that no container runs on two nodes. A node
that has not answered yet cannot be known to have one.
"""

from __future__ import annotations

from shared.book.book import Book
from shared.book.states import PodState


class Leftovers:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._found: dict[str, dict[str, str]] = {}
        """By uid: the nodes of slices that are not the pod's own, by grant id. Also of pods that are gone: a watcher
        that lags may have yet to tell of one that came back."""

    def nodes(self, *, gone: bool) -> frozenset[str]:
        """The nodes that have such slices; those of pods that are gone only with `gone`."""
        return frozenset(
            node
            for uid, nodes in self._found.items()
            if gone or self._pending(uid) is not None
            for node in nodes.values()
        )

    def synced(self, node: str) -> list[PodState]:
        """The node has told what runs there. Returns the pending pods of which it is something."""
        pending = []
        for held in self._book.nodes[node].grants.values():
            state = self._pending(held.uid)
            if held.phase == "leaving" and (state is not None or held.uid not in self._book.pods):
                self._found.setdefault(held.uid, {})[held.grant_id] = held.node
                pending += [] if state is None else [state]
        return pending

    def attach(self, state: PodState) -> None:
        """Notes on a pending pod where it still runs."""
        state.runs_on = min(self._found.get(state.uid, {}).values(), default="")

    def over(self) -> list[PodState]:
        """What has been released is forgotten. Returns the pending pods that waited for it."""
        released = []
        for uid, nodes in list(self._found.items()):
            for grant_id in [one for one in nodes if one not in self._book.grants]:
                del nodes[grant_id]
            if not nodes:
                del self._found[uid]
                state = self._pending(uid)
                released += [] if state is None else [state]
        return released

    def _pending(self, uid: str) -> PodState | None:
        state = self._book.pods.get(uid)
        return None if state is None or state.pod.spec.node_name else state
