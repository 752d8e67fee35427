"""Kubernetes as facts: a snapshot, then numbered batches. Watcher to placement, preemptor and metrics."""

from __future__ import annotations

from shared.contracts.base import Message
from shared.model.kinds import Object


class Put(Message, tag="put", tag_field="fact", frozen=True):
    """An object as it is now. An older resourceVersion of the same uid than one already seen is to be dropped."""

    object: Object


class Gone(Message, tag="gone", tag_field="fact", frozen=True):
    """An object that no longer exists, in the last state that was seen of it.

    `certain` is False where the end was found by comparing lists: the object may have changed (been bound, even) after
    that last state and before its end.
    """

    object: Object
    certain: bool = True


Fact = Put | Gone


class FeedBatch(Message, frozen=True):
    """Facts in the order they were seen. Numbers rise by one in an epoch; a gap, or another epoch, means: take a new
    snapshot. A batch without facts is a heartbeat and has a number all the same."""

    epoch: str
    number: int
    facts: tuple[Fact, ...] = ()
    log_sequence_seen: int = 0
    """The highest sequence of KERF_LOG this watcher ever met. Higher than the stream's end means the log was lost."""


class SnapshotRequest(Message, frozen=True):
    snapshot: str = ""
    """Empty: start a snapshot; else the id of the snapshot whose page is requested."""
    page: int = 0
    fresh: bool = False
    """A new leader's request (R5): the watcher lists pods and nodes again with a consistent read before it answers, so
    that nothing which happened before the request is missing. Meaningful with an empty `snapshot` only."""


class SnapshotPage(Message, frozen=True):
    """At most 512 KiB. The whole is consistent with feed number `number`: apply batches from number + 1 on."""

    epoch: str
    snapshot: str
    number: int
    page: int
    pages: int
    facts: tuple[Fact, ...] = ()
    log_sequence_seen: int = 0
    error: str = ""
    """If not empty: this snapshot is not available (expired, not yet synced); start again after a while."""


class ReachQuery(Message, frozen=True):
    """Which watcher reaches the API server? Asked by one that does not, and before a snapshot is taken."""

    epoch: str
    """The asking watcher's; empty: a reader of the feed asks."""


class ReachAnswer(Message, frozen=True):
    """The watcher of this epoch serves, has just reached the API server, and follows pods and nodes. One that does not
    gives no answer."""

    epoch: str
