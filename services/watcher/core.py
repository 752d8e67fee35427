"""The watcher's decisions: what is a fact worth sending, and when a batch goes. Pure.

Feed numbers rise by one per batch. A snapshot is taken after everything pending was sent, so it is exactly the state
after its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from services.watcher.config import Config
from services.watcher.node_requests import NodeRequests
from services.watcher.snapshots import Snapshots, WirePage
from services.watcher.trimming import is_same, trim
from shared.contracts.base import Message, encode
from shared.contracts.facts import Fact, Gone, Put
from shared.kube.resources import REFLECTED
from shared.model import names
from shared.model.kinds import Object
from shared.model.objects import Node, Pod, version

BATCH_LIMIT_BYTES = 256 * 1024
_SEQUENCE = re.compile(r'"sequence":([0-9]{1,18})(?![0-9])')
_ORDER = list(dict.fromkeys(resource.kind for resource in REFLECTED))


class WireBatch(Message, frozen=True):
    """A facts.FeedBatch whose facts are encoded already."""

    epoch: str
    number: int
    facts: Sequence[msgspec.Raw] = ()
    log_sequence_seen: int = 0


class FirstSight(msgspec.Struct, frozen=True):
    """A pending pod of ours that was not there before: its trace begins."""

    pod: Pod


Command = WireBatch | FirstSight


class Core:
    """State: the newest object of every uid, the batch that gathers, the snapshots."""

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
        self._snapshots = Snapshots(epoch, ttl_s=self._config.snapshot_ttl_s)
        self.requests = NodeRequests()

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
        self._snapshots.expire(now)
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
            objects = (seen for kind in _ORDER for seen in self._store[kind].values())
            name = self._snapshots.begin(self.number, objects, now)
        return commands, self._snapshots.page(name, page, now, log_sequence_seen=self.log_sequence_seen)

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
        elif known is not None and is_same(known, trimmed):
            self.suppressed += 1
            return None
        return Put(object=trimmed)

    def _gone(self, fact: Gone) -> Fact | None:
        kind, meta = type(fact.object).__name__, fact.object.metadata
        if self._store[kind].pop(meta.uid, None) is None:
            return None
        self.requests.forget(meta.uid)
        if isinstance(fact.object, Node):
            self.requests.node_gone(meta.name)
        key = (kind, meta.namespace, meta.name)
        if self._names.get(key) == meta.uid:
            del self._names[key]
        return Gone(object=trim(fact.object), certain=fact.certain)

    def _look_at(self, pod: Pod, known: Object | None, commands: list[Command]) -> None:
        self.requests.pod_seen(pod)
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
        seen = self.log_sequence_seen
        commands.append(WireBatch(self.epoch, self.number, facts=self._pending, log_sequence_seen=seen))
        self._pending, self._pending_bytes = [], 0
        self._sent_at = now
