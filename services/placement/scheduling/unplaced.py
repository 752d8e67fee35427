"""What the scheduler notes of pods that it could not place. `explain` turns it into sentences when there is time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from shared.contracts.explain import Reason


class Unplaced:
    """The scheduler writes, `explain.pending_reasons` reads and clears."""

    def __init__(self) -> None:
        self.unexplained: OrderedDict[str, None] = OrderedDict()
        """Pods that do not fit and whose reason has to be found, by uid; the oldest note first."""
        self.explained: set[str] = set()
        """Pods whose reason was reported."""
        self.refused: dict[str, Reason] = {}
        """Pods that will not be tried as they are, since `explain` last looked."""
        self.gone_gangs: set[str] = set()
        """The keys of gangs that are gone or placed, since `explain` last looked."""
        self.changed = False
        """Something that reasons depend on has changed since `explain` last looked."""

    def note(self, uid: str) -> None:
        """The pod does not fit."""
        self.unexplained[uid] = None

    def note_behind(self, uids: Iterable[str]) -> None:
        """Pods behind a pod that does not fit are explained too, each once."""
        for uid in uids:
            if uid not in self.explained:
                self.unexplained[uid] = None

    def refuse(self, uid: str, why: Reason) -> None:
        self.refused[uid] = why

    def placed(self, uid: str) -> None:
        self.unexplained.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The pod was bound, or is gone."""
        self.unexplained.pop(uid, None)
        self.refused.pop(uid, None)
        self.explained.discard(uid)

    def forget_gang(self, key: str) -> None:
        self.gone_gangs.add(key)
