"""Follows the watcher's snapshot and feed without a gap: list and watch, on the bus.

`Follower` has the rules (pure); `Feed` runs them: it takes a snapshot, applies the batches that follow it, and takes
another on a gap, on silence, or on request. Consumers see whole snapshots and facts in order, never half of either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shared.bus.feed_reader import FeedReader
from shared.bus.parts import joined
from shared.bus.port import Bus, BusError, Incoming, NoResponder, NotConnected
from shared.bus.snapshot_reader import NO_SNAPSHOT, SnapshotReader
from shared.contracts import subjects
from shared.contracts.base import ContractError, encode
from shared.contracts.facts import Fact, FeedBatch, SnapshotRequest

SILENCE_S = 5.0
"""Watchers send a batch every second. One that is silent for so long is replaced by another."""
PROBE_S = 0.25
"""How often a watcher that has been silent for so long is asked whether it is there."""
PROBES = 2
"""So often in a row must nothing listen: a watcher that connects anew listens again within a moment."""
_BUFFER_MOST = 50_000

log = structlog.get_logger("feed")


class Gap(Exception):
    """A batch is missing: only a new snapshot helps."""


class Follower:
    """Decides which batches to apply. Follows the epoch of its snapshot; keeps batches while it waits for a
    snapshot."""

    def __init__(self) -> None:
        self.epoch = ""
        self.number = 0
        self._kept: list[FeedBatch] = []

    def forget(self) -> None:
        """A new snapshot is being taken: keep the batches from now on."""
        self.epoch, self._kept = "", []

    def batch(self, batch: FeedBatch) -> tuple[Fact, ...]:
        """The facts to apply now. Raises Gap."""
        if not self.epoch:
            self._kept.append(batch)
            if len(self._kept) > _BUFFER_MOST:
                self._kept = self._kept[-_BUFFER_MOST // 2 :]  # a hole shows as a gap after the snapshot
            return ()
        if batch.epoch != self.epoch or batch.number <= self.number:
            return ()
        if batch.number != self.number + 1:
            raise Gap(f"batch {batch.number} of epoch {batch.epoch} came after {self.number}")
        self.number = batch.number
        return batch.facts

    def snapshot(self, epoch: str, number: int) -> list[Fact]:
        """The snapshot is complete: returns the facts of the batches that came meanwhile. Raises Gap."""
        self.epoch, self.number = epoch, number
        kept, self._kept = self._kept, []
        return [fact for batch in kept for fact in self.batch(batch)]


OnSnapshot = Callable[[tuple[Fact, ...], int], Awaitable[None]]
"""(facts, log_sequence_seen)"""
OnFacts = Callable[[tuple[Fact, ...]], Awaitable[None]]


class Feed:
    def __init__(self, bus: Bus, on_snapshot: OnSnapshot, on_facts: OnFacts) -> None:
        self._bus = bus
        self._on_snapshot = on_snapshot
        self._on_facts = on_facts
        self._follower = Follower()
        self._wanted = asyncio.Event()
        self._heard = 0.0
        self._missed = 0
        """Probes in a row that nothing listened to."""
        self._sequence_seen = 0
        """The highest log sequence that any watcher has named."""
        self._reader = FeedReader()
        self._snapshots = SnapshotReader(bus, self._reader)
        self.snapshots = 0
        self.gaps = 0

    @property
    def number(self) -> int:
        """The newest batch that was applied."""
        return self._follower.number

    def want_snapshot(self) -> None:
        """Requests a snapshot. The present epoch is no longer followed."""
        self._follower.forget()
        self._wanted.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        subscription = await self._bus.subscribe(subjects.FEED_ALL, joined(self._received))
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    async with asyncio.timeout(PROBE_S):  # wait_for can lose a cancellation
                        await self._wanted.wait()
                except TimeoutError:
                    silent_s = loop.time() - self._heard
                    if self._follower.epoch and silent_s > SILENCE_S:
                        log.warning("feed_silent", epoch=self._follower.epoch, seconds=SILENCE_S)
                        self.want_snapshot()
                    elif self._follower.epoch and silent_s > PROBE_S and await self._gone(self._follower.epoch):
                        log.info("feed_gone", epoch=self._follower.epoch, seconds=round(silent_s, 2))
                        self.want_snapshot()
                    continue
                self._wanted.clear()
                await self._take()
        finally:
            await subscription.stop()

    async def _gone(self, epoch: str) -> bool:
        """Whether the watcher's process has ended, or lost its connection: nothing listens on its own subject.

        It is asked for a page of no snapshot, which costs it nothing. One that is there and does not answer, or is not
        heard, is left to SILENCE_S.
        """
        try:
            request = encode(SnapshotRequest(snapshot=NO_SNAPSHOT))
            await self._bus.request(subjects.snapshot_of(epoch), request, timeout_s=PROBE_S)
        except NotConnected:
            return False
        except NoResponder:
            self._missed += 1
            return self._missed >= PROBES
        except BusError as error:
            log.debug("feed_probe_unanswered", epoch=epoch, error=str(error))
        self._missed = 0
        return False

    async def _received(self, incoming: Incoming) -> None:
        batch = self._reader.read(incoming.payload, FeedBatch)
        self._sequence_seen = max(self._sequence_seen, batch.log_sequence_seen)
        if batch.epoch == self._follower.epoch:
            self._heard = asyncio.get_running_loop().time()
            self._missed = 0
        try:
            facts = self._follower.batch(batch)
        except Gap as gap:
            self.gaps += 1
            log.warning("feed_gap", gap=str(gap))
            self.want_snapshot()
            return
        if facts:
            await self._on_facts(facts)

    async def _take(self) -> None:
        try:
            pages = await self._snapshots.take()
        except (BusError, ContractError) as error:
            log.warning("snapshot_failed", error=str(error))
            await asyncio.sleep(0.5)
            self.want_snapshot()
            return
        if self._wanted.is_set():
            return  # asked for another one meanwhile
        facts = tuple(fact for page in pages for fact in page.facts)
        self._heard = asyncio.get_running_loop().time()
        self.snapshots += 1
        self._sequence_seen = max(self._sequence_seen, *(page.log_sequence_seen for page in pages))
        await self._on_snapshot(facts, self._sequence_seen)
        try:
            following = self._follower.snapshot(pages[0].epoch, pages[0].number)
        except Gap as gap:
            log.warning("feed_gap", gap=str(gap))
            self.want_snapshot()
            return
        log.info("feed_followed", epoch=pages[0].epoch, number=pages[0].number, facts=len(facts))
        if following:
            await self._on_facts(tuple(following))
