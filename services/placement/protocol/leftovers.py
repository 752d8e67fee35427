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

    @property
    def keep_some(self) -> bool:
        """Whether a pending pod waits."""
        return any(uid in self._book.pods and not self._book.pods[uid].pod.spec.node_name for uid in self._found)

    def synced(self, node: str) -> list[PodState]:
        """The node has told what runs there. Returns the pending pods of which it is something."""
        known = self._book.nodes.get(node)
        if known is None:
            return []
        found = []
        for held in known.grants.values():
            state = self._book.pods.get(held.uid)
            if held.phase != "leaving" or (state is not None and state.pod.spec.node_name):
                continue
            self._found.setdefault(held.uid, {})[held.grant_id] = held.node
            if state is not None:
                found.append(state)
        return found

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
                state = self._book.pods.get(uid)
                if state is not None and not state.pod.spec.node_name:
                    released.append(state)
        return released
