"""What the pods of an equivalence group request, and whether their queue's quota allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.placement.scheduling.fair.fair import Fair
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.contracts.explain import Reason
from shared.queues.amounts import Amount


class GroupRequests:
    def __init__(self, book: Book, gangs: Gangs, fair: Fair) -> None:
        self._book, self._gangs, self._fair = book, gangs, fair

    def least(self, uid: str) -> Amount:
        """What the first pod of a group requests at least, or as many of its gang as are placed together."""
        gang = self._gangs.of(uid)
        if gang is None:
            return self._fair.least((self._book.pods[uid],), 1)
        return self._fair.least([self._book.pods[u] for u in gang.waiting], gang.need)

    def quota_exceeded(self, uid: str, group_with: Callable[[str], Sequence[str]]) -> Reason | None:
        """Why the queue's quota keeps this pod's group waiting; None if it does not. `group_with`: the pods of a pod's
        group. It is called for gangs alone: the pods of one shape may be thousands."""
        gang = self._gangs.of(uid)
        if gang is None:
            return self._fair.quota_exceeded((self._book.pods[uid],))
        return self._fair.quota_exceeded([self._book.pods[u] for u in group_with(uid)], gang.need)
