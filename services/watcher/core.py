"""The watcher's decisions: what is a fact worth sending, when a batch goes, what a snapshot holds. Pure.

Feed numbers rise by one per batch. A snapshot is taken after everything pending was sent, so it is exactly the state
after its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from services.watcher.config import Config
from shared.contracts.base import Message, encode
from shared.contracts.facts import Fact, Gone, Put
from shared.kube.resources import REFLECTED
from shared.model import names
from shared.model.claims import ResourceClaim
from shared.model.kinds import Object
from shared.model.kube_object import ANNOTATIONS_MAX_BYTES, Meta, annotations_bytes
from shared.model.objects import Node, Pod, version

PAGE_LIMIT_BYTES = 512 * 1024
BATCH_LIMIT_BYTES = 256 * 1024
"""Of one object, keys and values (Kubernetes)."""
GRANT_MAX_BYTES = 16 * 1024
"""For the grant and what else Kerf writes."""
ANNOTATION_LIMIT = 4096
_SEQUENCE = re.compile(r'"sequence":(\d+)')
_ORDER = list(dict.fromkeys(resource.kind for resource in REFLECTED))


class WireBatch(Message, frozen=True):
    """A facts.FeedBatch whose facts are encoded already."""

    epoch: str
    number: int
    facts: Sequence[msgspec.Raw] = ()
    log_sequence_seen: int = 0


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


class FirstSight(msgspec.Struct, frozen=True):
    """A pending pod of ours that was not there before: its trace begins."""

    pod: Pod


Command = WireBatch | FirstSight


class _Snapshot(msgspec.Struct):
    number: int
    pages: list[list[msgspec.Raw]]
    used_at: float


class Core:
    """State: the newest object of every uid, the batch that gathers, the snapshots that are being read."""

    def __init__(self, epoch: str, config: Config | None = None) -> None:
        self.epoch = epoch
        self._config = config or Config()
        self.number = 0
        self.log_sequence_seen = 0
        self.suppressed = 0
        """Facts without news for a scheduler, such as heartbeats of nodes."""
        self._store: dict[str, dict[str, Object]] = {kind: {} for kind in _ORDER}
        self._names: dict[tuple[str, str, str], str] = {}
        self._pending: list[msgspec.Raw] = []
        self._pending_bytes = 0
        self._sent_at = float("-inf")
        self._snapshots: dict[str, _Snapshot] = {}
        self._taken = 0

    # --- looking ----------------------------------------------------------------------------------------------------

    def find(self, kind: str, name: str, namespace: str = "") -> Any:
        """The newest object of that name, or None."""
        return self._store[kind].get(self._names.get((kind, namespace, name), ""))

    def count(self, kind: str) -> int:
        return len(self._store[kind])

    @property
    def due(self) -> float:
        """When `tick` has something to do: the gathering batch, else the next heartbeat."""
        return self._sent_at + (self._config.batch_ms / 1000 if self._pending else self._config.heartbeat_s)

    # --- inputs -----------------------------------------------------------------------------------------------------

    def facts(self, facts: Iterable[Fact], now: float) -> list[Command]:
        """Takes in what the source saw. `now` is monotonic seconds."""
        commands: list[Command] = []
        for fact in facts:
            kept = self._put(fact.object, commands) if isinstance(fact, Put) else self._gone(fact)
            if kept is None:
                continue
            raw = msgspec.Raw(encode(kept))
            if self._pending and self._pending_bytes + len(raw) > BATCH_LIMIT_BYTES:
                self._flush(commands, now)
            self._pending.append(raw)
            self._pending_bytes += len(raw)
            if len(self._pending) >= self._config.batch_facts:
                self._flush(commands, now)
        # Idle: a single fact is sent at once. Under load the batch gathers until it is full or old.
        if self._pending and now - self._sent_at >= self._config.batch_ms / 1000:
            self._flush(commands, now)
        return commands

    def tick(self, now: float) -> list[Command]:
        """Sends what is due: a batch that has waited, or a heartbeat; drops snapshots that are no longer read."""
        commands: list[Command] = []
        if now >= self.due:
            self._flush(commands, now)
        for name in [n for n, s in self._snapshots.items() if now - s.used_at > self._config.snapshot_ttl_s]:
            del self._snapshots[name]
        return commands

    def saw_sequence(self, sequence: int) -> None:
        """A sequence of KERF_LOG was met, in an order or in a grant."""
        self.log_sequence_seen = max(self.log_sequence_seen, sequence)

    def snapshot(self, name: str, page: int, now: float) -> tuple[list[Command], WirePage]:
        """A page of snapshot `name`; an empty name begins one. The commands go out before the page."""
        commands: list[Command] = []
        if not name:
            if self._pending:
                self._flush(commands, now)
            name = self._begin(now)
        held = self._snapshots.get(name)
        if held is None or not 0 <= page < len(held.pages):
            text = f"snapshot {name!r} has no page {page} here: it is unknown or has expired; start again"
            return commands, WirePage(epoch=self.epoch, snapshot=name, number=0, page=page, pages=0, error=text)
        held.used_at = now
        answer = WirePage(
            epoch=self.epoch,
            snapshot=name,
            number=held.number,
            page=page,
            pages=len(held.pages),
            facts=held.pages[page],
            log_sequence_seen=self.log_sequence_seen,
        )
        return commands, answer

    # --- inside -----------------------------------------------------------------------------------------------------

    def _put(self, seen: Object, commands: list[Command]) -> Fact | None:
        kind = type(seen).__name__
        known = self._store[kind].get(seen.metadata.uid)
        if known is not None and version(known.metadata) >= version(seen.metadata):
            return None
        trimmed = trim(seen)
        self._store[kind][seen.metadata.uid] = trimmed
        self._names[kind, seen.metadata.namespace, seen.metadata.name] = seen.metadata.uid
        if isinstance(trimmed, Pod):
            self._look_at(trimmed, known, commands)
        elif known is not None and _same(known, trimmed):
            self.suppressed += 1
            return None
        return Put(object=trimmed)

    def _gone(self, fact: Gone) -> Fact | None:
        kind, meta = type(fact.object).__name__, fact.object.metadata
        if self._store[kind].pop(meta.uid, None) is None:
            return None
        key = (kind, meta.namespace, meta.name)
        if self._names.get(key) == meta.uid:
            del self._names[key]
        return Gone(object=trim(fact.object), certain=fact.certain)

    def _look_at(self, pod: Pod, known: Object | None, commands: list[Command]) -> None:
        if known is None and not pod.spec.node_name and pod.spec.scheduler_name == names.SCHEDULER_NAME:
            commands.append(FirstSight(pod))
        if names.ANNOTATION_GRANT in pod.metadata.annotations and (
            known is None or names.ANNOTATION_GRANT not in known.metadata.annotations
        ):
            # A log that has lost records still shows by the grants on pods, whichever process bound them.
            found = _SEQUENCE.search(pod.metadata.annotations[names.ANNOTATION_GRANT])
            if found:
                self.saw_sequence(int(found[1]))

    def _flush(self, commands: list[Command], now: float) -> None:
        self.number += 1
        commands.append(
            WireBatch(
                epoch=self.epoch, number=self.number, facts=self._pending, log_sequence_seen=self.log_sequence_seen
            )
        )
        self._pending, self._pending_bytes = [], 0
        self._sent_at = now

    def _begin(self, now: float) -> str:
        for name, held in self._snapshots.items():
            if held.number == self.number:
                return name  # nothing has changed since: the same one serves again
        self._taken += 1
        name = f"s{self._taken}"
        pages: list[list[msgspec.Raw]] = [[]]
        size = 0
        for kind in _ORDER:
            for seen in self._store[kind].values():
                raw = msgspec.Raw(encode(Put(object=seen)))
                if pages[-1] and size + len(raw) + 1 > PAGE_LIMIT_BYTES - 1024:  # a kibibyte for the page's own fields
                    pages.append([])
                    size = 0
                pages[-1].append(raw)
                size += len(raw) + 1
        self._snapshots[name] = _Snapshot(number=self.number, pages=pages, used_at=now)
        return name


def trim(seen: Object) -> Object:
    """Drops annotations that no scheduler reads: kubectl's own, and long ones of other software. Notes whether all of
    them leave room for a grant: a Binding adds it even beyond the limit, and then every later write to the pod
    fails."""
    notes = seen.metadata.annotations
    full = annotations_bytes(notes) > ANNOTATIONS_MAX_BYTES - GRANT_MAX_BYTES
    kept = {
        k: v
        for k, v in notes.items()
        if k.startswith(names.PREFIX)
        or (len(v) <= ANNOTATION_LIMIT and k != "kubectl.kubernetes.io/last-applied-configuration")
    }
    if len(kept) == len(notes) and not full:
        return seen
    return msgspec.structs.replace(
        seen, metadata=msgspec.structs.replace(seen.metadata, annotations=kept, annotations_full=full)
    )


def _same(known: Object, seen: Object) -> bool:
    """Equal but for the version, and for a node the sentences and reasons of its conditions, which name times and
    figures."""
    return _bare(known) == _bare(seen)


def _bare(seen: Object) -> Object:
    if isinstance(seen, ResourceClaim):
        return seen  # an allocation is written at a version: placement must know the newest
    bare = msgspec.structs.replace(seen, metadata=_unversioned(seen.metadata))
    if not isinstance(bare, Node):
        return bare
    conditions = tuple(msgspec.structs.replace(c, reason="", message="") for c in bare.status.conditions)
    return msgspec.structs.replace(bare, status=msgspec.structs.replace(bare.status, conditions=conditions))


def _unversioned(meta: Meta) -> Meta:
    return msgspec.structs.replace(meta, resource_version="")
