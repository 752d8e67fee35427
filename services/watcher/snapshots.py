"""Snapshots of the feed: all objects as they are after a batch, in pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shared.contracts.base import Message, encode
from shared.contracts.facts import Put
from shared.model.kinds import Object

PAGE_LIMIT_BYTES = 512 * 1024


class WirePage(Message, frozen=True):
    """A facts.SnapshotPage whose facts are encoded already."""

    epoch: str
    snapshot: str
    number: int
    page: int
    pages: int
    facts: Sequence[msgspec.Raw] = ()
    log_sequence_seen: int = 0
    error: str = ""


class _Snapshot(msgspec.Struct):
    number: int
    pages: list[list[msgspec.Raw]]
    used_at: float


class Snapshots:
    """The snapshots that are being read."""

    def __init__(self, epoch: str, *, ttl_s: float) -> None:
        self._epoch = epoch
        self._ttl_s = ttl_s
        self._held: dict[str, _Snapshot] = {}
        self._taken = 0

    def begin(self, number: int, objects: Iterable[Object], now: float) -> str:
        """Takes a snapshot of the objects after batch `number`; returns its name."""
        for name, held in self._held.items():
            if held.number == number:
                return name  # nothing has changed since: the same one serves again
        self._taken += 1
        name = f"s{self._taken}"
        pages: list[list[msgspec.Raw]] = [[]]
        size = 0
        for seen in objects:
            raw = msgspec.Raw(encode(Put(object=seen)))
            if pages[-1] and size + len(raw) + 1 > PAGE_LIMIT_BYTES - 1024:  # a kibibyte for the page's own fields
                pages.append([])
                size = 0
            pages[-1].append(raw)
            size += len(raw) + 1
        self._held[name] = _Snapshot(number=number, pages=pages, used_at=now)
        return name

    def page(self, name: str, page: int, now: float, *, log_sequence_seen: int) -> WirePage:
        """A page of a snapshot; with an error if there is none."""
        held = self._held.get(name)
        if held is None or not 0 <= page < len(held.pages):
            text = f"snapshot {name!r} has no page {page} here: it is unknown or has expired; start again"
            return WirePage(epoch=self._epoch, snapshot=name, number=0, page=page, pages=0, error=text)
        held.used_at = now
        return WirePage(
            epoch=self._epoch,
            snapshot=name,
            number=held.number,
            page=page,
            pages=len(held.pages),
            facts=held.pages[page],
            log_sequence_seen=log_sequence_seen,
        )

    def expire(self, now: float) -> None:
        """Drops snapshots that are no longer read."""
        for name in [n for n, s in self._held.items() if now - s.used_at > self._ttl_s]:
            del self._held[name]
