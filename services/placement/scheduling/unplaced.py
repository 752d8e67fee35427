"""What the scheduler notes of pods that it could not place. `explain` turns it into sentences when there is time."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

from shared.contracts.explain import Reason


class Unplaced:
    """The scheduler writes, `explain.pending_reasons` reads and clears."""

    def __init__(self, priority_of: Callable[[str], int]) -> None:
        """`priority_of` a pod, by its uid."""
        self._priority_of = priority_of
        self._unexplained: OrderedDict[str, int] = OrderedDict()
        """Pods that do not fit and whose reason has to be found, by uid, with their priority; the oldest note first."""
        self._by_priority: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        """The same pods."""
        self._important_next = True
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
        if uid not in self._unexplained:
            priority = self._unexplained[uid] = self._priority_of(uid)
            self._by_priority[priority][uid] = None

    def note_behind(self, uids: Iterable[str]) -> None:
        """Pods behind a pod that does not fit are explained too, each once."""
        for uid in uids:
            if uid not in self.explained:
                self.note(uid)

    def is_unexplained(self, uid: str) -> bool:
        return uid in self._unexplained

    def next_unexplained(self) -> str | None:
        """Takes out the most important pod and the oldest note in turns: nothing is preempted for a pod before its
        reason is found, and every pod is told one."""
        if not self._unexplained:
            return None
        of = self._by_priority[max(self._by_priority)] if self._important_next else self._unexplained
        self._important_next = not self._important_next
        uid = next(iter(of))
        self.placed(uid)
        return uid

    def refuse(self, uid: str, why: Reason) -> None:
        self.refused[uid] = why

    def placed(self, uid: str) -> None:
        """Its reason need not be found any more."""
        priority = self._unexplained.pop(uid, None)
        if priority is None:
            return
        of = self._by_priority[priority]
        del of[uid]
        if not of:
            del self._by_priority[priority]

    def forget(self, uid: str) -> None:
        """The pod was bound, or is gone."""
        self.placed(uid)
        self.refused.pop(uid, None)
        self.explained.discard(uid)

    def forget_gang(self, key: str) -> None:
        self.gone_gangs.add(key)
