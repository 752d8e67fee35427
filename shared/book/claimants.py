"""Which unbound pods name a ResourceClaim. Claims change several times with each pod, those of other drivers too."""

from __future__ import annotations

from collections.abc import Iterable


class Claimants:
    def __init__(self) -> None:
        self._pods: dict[str, set[str]] = {}
        self._paths: dict[str, tuple[str, ...]] = {}

    def put(self, uid: str, paths: Iterable[str]) -> None:
        """`paths`: namespace/name of the claims that it waits with."""
        self.drop(uid)
        if paths := tuple(paths):
            self._paths[uid] = paths
        for path in paths:
            self._pods.setdefault(path, set()).add(uid)

    def drop(self, uid: str) -> None:
        for path in self._paths.pop(uid, ()):
            pods = self._pods[path]
            pods.discard(uid)
            if not pods:
                del self._pods[path]

    def of(self, path: str) -> list[str]:
        """In a fixed order."""
        return sorted(self._pods.get(path, ()))
