"""Asks a watcher for a whole snapshot, fresh from the API server, and for another one's when that one fails."""

from __future__ import annotations

import asyncio

import structlog

from shared.bus.feed_reader import FeedReader
from shared.bus.port import Bus, BusError, NotConnected
from shared.bus.tasks import end
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.facts import ReachAnswer, ReachQuery, SnapshotPage, SnapshotRequest

ANSWER_S = 2.0
"""How long a watcher that works takes to say that it is there."""
PAGE_TIMEOUT_S = 20.0
LOOK_S = 1.0
"""How often it is asked, while a page is awaited, whether its watcher still works."""
WORKS_S = 4.0
"""How long it has to answer that: it asks the API server first, for up to 3 s."""
NO_SNAPSHOT = "none"
"""Watchers' snapshots have other names."""

log = structlog.get_logger("feed")


class SnapshotReader:
    def __init__(self, bus: Bus, reader: FeedReader) -> None:
        self._bus, self._reader = bus, reader

    async def take(self) -> list[SnapshotPage]:
        """Raises BusError or ContractError without all pages."""
        epoch = await self._answering()
        first = await self._page(epoch, SnapshotRequest(fresh=True))
        pages = [first]
        for number in range(1, first.pages):
            pages.append(await self._page(epoch, SnapshotRequest(snapshot=first.snapshot, page=number)))
        return pages

    async def _answering(self) -> str:
        """The epoch of a watcher that has just reached the API server; where none has, of one that answers. Another one
        would keep the question for a fresh snapshot until the page's time is over: it hangs, NATS has not given it up
        yet, or it waits for the API server."""
        try:
            reply = await self._bus.request(subjects.QUERY_REACH, encode(ReachQuery(epoch="")), timeout_s=ANSWER_S)
            return decode(reply, ReachAnswer).epoch
        except NotConnected:
            raise
        except (BusError, ContractError) as error:
            log.debug("no_watcher_reaches", error=str(error))
        return (await self._request(subjects.QUERY_SNAPSHOT, SnapshotRequest(snapshot=NO_SNAPSHOT), ANSWER_S)).epoch

    async def _page(self, epoch: str, request: SnapshotRequest) -> SnapshotPage:
        """Raises BusError without a page, and as soon as another watcher works and this one does not."""
        asking = asyncio.create_task(self._request(subjects.snapshot_of(epoch), request, PAGE_TIMEOUT_S))
        looking = asyncio.create_task(self._instead(epoch))
        try:
            await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise BusError(
                    f"watcher {epoch} no longer works while its snapshot is awaited; {looking.result()} does"
                )
            page = asking.result()
        finally:
            await end(asking, looking)
        if page.error:
            raise BusError(f"the watcher has no snapshot: {page.error}")
        return page

    async def _instead(self, epoch: str) -> str:
        """Returns the epoch of a watcher that has just reached the API server, as soon as this one has not."""

        def works(answers: list[bytes]) -> bool:
            return epoch in _epochs(answers)

        while True:
            await asyncio.sleep(LOOK_S)
            try:
                query = encode(ReachQuery(epoch=""))
                working = _epochs(await self._bus.survey(subjects.QUERY_REACH, query, within_s=WORKS_S, enough=works))
            except BusError as error:
                log.debug("no_watcher_asked", error=str(error))
                continue
            if working and epoch not in working:
                return working[0]

    async def _request(self, subject: str, request: SnapshotRequest, timeout_s: float) -> SnapshotPage:
        return self._reader.read(await self._bus.request(subject, encode(request), timeout_s=timeout_s), SnapshotPage)


def _epochs(answers: list[bytes]) -> list[str]:
    """Those of the watchers that gave these answers, without answers that cannot be read."""
    found: list[str] = []
    for answer in answers:
        try:
            found.append(decode(answer, ReachAnswer).epoch)
        except ContractError as error:
            log.warning("reach_answer_malformed", error=str(error))
    return found
