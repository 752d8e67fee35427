"""Reads what watchers of this version and of later ones send."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import structlog

from shared.contracts.base import ContractError, decode, encode
from shared.contracts.facts import FeedBatch, SnapshotPage
from shared.model.kinds import KINDS

Facts = TypeVar("Facts", FeedBatch, SnapshotPage)

log = structlog.get_logger("feed")


class _Object(msgspec.Struct, frozen=True):
    kind: str


class _Fact(msgspec.Struct, frozen=True):
    object: _Object


class _Message(msgspec.Struct, frozen=True):
    facts: tuple[_Fact, ...] = ()


class FeedReader:
    def __init__(self) -> None:
        self.unknown: set[str] = set()
        """Kinds of objects that a watcher has sent and this version does not know."""

    def read(self, payload: bytes, kind: type[Facts]) -> Facts:
        """The message without facts about unknown kinds: a watcher that is upgraded before its readers may follow more
        kinds than they know. Raises ContractError."""
        try:
            return decode(payload, kind)
        except ContractError:
            kinds = _kinds(payload)
            if KINDS.keys() >= set(kinds):
                raise
        for name in sorted(set(kinds) - KINDS.keys() - self.unknown):
            self.unknown.add(name)
            log.warning("facts_left_out", kind=name, hint="the watcher is of a later version; upgrade this service too")
        message = decode(payload, dict[str, Any])
        message["facts"] = [fact for fact, name in zip(message["facts"], kinds, strict=True) if name in KINDS]
        return decode(encode(message), kind)


def _kinds(payload: bytes) -> list[str]:
    """Of the objects that its facts are about; empty if it cannot be read even so far."""
    try:
        return [fact.object.kind for fact in decode(payload, _Message).facts]
    except ContractError:
        return []
