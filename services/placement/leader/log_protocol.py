"""How a leader session uses KERF_LOG, step by step, without I/O (rules R1 and R5 of docs/protocol.md).

Each method of `LogProtocol` is a generator: it yields a request, is sent the answer, and returns its result. A failed
request is thrown into it as Refused, Unknown, NoStream or NoResponder, with the meaning that these have in
shared/bus/port.py.
`log_client` runs the requests on NATS; `tests/sim` runs the same code on a simulated log.

Three things keep a stale leader, or a leader on a damaged log, from appending:
- the fence: an append is accepted only while the newest term is this session's own;
- the chain: an append is accepted only if the record before it is the last one that this session knows of;
- the mark: after each append the session writes the record's sequence to a key that lives in the memory of the NATS
  servers, by compare-and-swap. Nothing is done on the strength of a record before its mark is written. A log that lacks
  the marked record has lost acknowledged records; so may have a log whose mark is gone, for then all NATS servers have
  been restarted.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from shared.bus.port import LogEntry, NoResponder, NoStream, Refused, Unknown
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.log import DecisionBatch, LogMark, ReadyRecord, TermRecord

Record = DecisionBatch | ReadyRecord
Replayed = tuple[tuple[int, TermRecord | Record], ...]
"""(sequence, record), in order."""

SUBJECT_OF: dict[type[Any], str] = {
    TermRecord: subjects.LOG_TERM,
    DecisionBatch: subjects.LOG_DECISIONS,
    ReadyRecord: subjects.LOG_READY,
}
_KIND_OF = {subject: kind for kind, subject in SUBJECT_OF.items()}


class Request(msgspec.Struct, frozen=True):
    """Answered as the class says, or by a thrown Refused, Unknown, NoStream or NoResponder."""


class AppendRecord(Request, frozen=True):
    """Append, provided that the newest term has the sequence `fence` (0: there is none) and that the log's last record
    has the sequence `after` (None: any). Answer: the record's sequence."""

    subject: str
    payload: bytes
    fence: int
    after: int | None = None


class ReadNewestTerm(Request, frozen=True):
    """Answer: the newest LogEntry on the subject of terms, or None."""


class ReadNewestReady(Request, frozen=True):
    """Answer: the newest LogEntry on the subject of `ready` records, or None."""


class ReadLog(Request, frozen=True):
    """Answer: a list of all LogEntry from `start` to the end that the log has now."""

    start: int


class ReadMark(Request, frozen=True):
    """Answer: (value or None, revision). The revision of a mark that was lost, or never written, was never given
    before."""


class WriteMark(Request, frozen=True):
    """Compare-and-swap. Answer: the new revision."""

    value: bytes
    revision: int


class Pause(Request, frozen=True):
    """Wait a moment before the next try. Answer: None."""


class DeleteLog(Request, frozen=True):
    """Delete the whole stream, and provision it anew with a first sequence of at least `first_sequence`. Answer:
    None."""

    first_sequence: int


T = TypeVar("T")
Steps = Generator[Request, Any, T]


class LogProtocol:
    """One leader session's use of the log. `session` is unique among all sessions of all processes."""

    def __init__(self, holder: str, session: str) -> None:
        self.holder = holder
        self.session = session
        self.term = 0
        self.found_mark: LogMark | None = None
        """The mark when the session took its term; None if there was none."""
        self._last = 0
        self._mark_revision = 0

    # --- terms ------------------------------------------------------------------------------------------------

    def take_term(self) -> Steps[int]:
        """Begins the session; returns its term, which is the sequence of its record. Raises Refused when another was
        quicker."""
        newest: LogEntry | None = yield ReadNewestTerm()
        self.term = self._last = yield from self._append_term(
            "elected", fence=newest.sequence if newest else 0, after=None
        )
        # The mark stays as it is until this session appends a record: it is the evidence by which the log is trusted or
        # deleted,
        # and the next session needs it if this session ends before.
        value, self._mark_revision = yield ReadMark()
        self.found_mark = None if value is None else _readable(value)
        return self.term

    def renew_term(self) -> Steps[int]:
        """Takes another term for the same session. Raises Refused unless the newest term in the log is this session's
        own and nothing was appended since its last record: only then does it still know all of the log."""
        term = yield from self._append_term("renewed", fence=self.term, after=self._last)
        self.term = self._last = term
        yield from self._write_mark(term)
        return term

    def _append_term(self, reason: str, *, fence: int, after: int | None) -> Steps[int]:
        payload = encode(TermRecord(holder=self.holder, reason=reason, session=self.session))
        try:
            sequence: int = yield AppendRecord(subjects.LOG_TERM, payload, fence, after)
        except Unknown:
            # It may have been written, or may yet be. A term that is not used does no harm.
            newest: LogEntry | None = yield ReadNewestTerm()
            if newest is None or newest.payload != payload or newest.sequence <= fence:
                raise Refused(
                    "the append of the term was not answered, and the log's newest term is not this session's"
                ) from None
            sequence = newest.sequence
        return sequence

    # --- records ----------------------------------------------------------------------------------------------

    def replay(self) -> Steps[Replayed]:
        """The records before this term that a new leader needs: those from the term on that last wrote all of its
        `ready`, for that term wrote again what was open before it; and the marked one, wherever it is. Raises
        ContractError for one of a leader that cannot be read: none may be missing."""
        newest: LogEntry | None = yield ReadNewestReady()
        entries: list[LogEntry] = yield ReadLog(self._needed_from(newest))
        return tuple(
            (e.sequence, decode(e.payload, _KIND_OF[e.subject]))
            for e in entries
            if e.sequence < self.term and e.subject in _KIND_OF and not e.foreign
        )

    def _needed_from(self, newest: LogEntry | None) -> int:
        """Reading more than is needed is safe. So the whole log is read where its newest `ready` has other parts to
        come, is a later session's or no leader's, or stands in a log without a mark."""
        if newest is None or newest.foreign or newest.sequence > self.term or self.found_mark is None:
            return 1
        ready = decode(newest.payload, ReadyRecord)
        return 1 if ready.more else max(1, min(ready.term, self.found_mark.sequence))

    def append(self, record: Record) -> Steps[int]:
        """Appends and marks. When this returns, the record may be acted on. Raises Refused when the session is over."""
        subject, payload = SUBJECT_OF[type(record)], encode(record)
        doubtful = False
        while True:
            try:
                sequence: int = yield AppendRecord(subject, payload, self.term, self._last)
                break
            except NoResponder as error:
                yield from _waited_for(error)
            except (Unknown, Refused) as error:
                # After an unanswered try, a refusal may only mean that the first try did arrive.
                doubtful = doubtful or isinstance(error, Unknown)
                found = (yield from self._find(subject, payload)) if doubtful else None
                if found is not None:
                    sequence = found
                    break
                if isinstance(error, Refused):
                    raise
        self._last = sequence
        yield from self._write_mark(sequence)
        return sequence

    def _find(self, subject: str, payload: bytes) -> Steps[int | None]:
        """The sequence under which an unanswered append is in the log; None if it is not."""
        while True:
            try:
                entries: list[LogEntry] = yield ReadLog(self._last + 1)
            except NoResponder as error:
                yield from _waited_for(error)
                continue
            except (Unknown, ContractError):
                yield Pause()
                continue
            return next(
                (entry.sequence for entry in entries if entry.subject == subject and entry.payload == payload), None
            )

    # --- the mark ---------------------------------------------------------------------------------------------

    def _write_mark(self, sequence: int) -> Steps[None]:
        """Raises Refused when another session has written it, NoStream when the servers have lost it."""
        value = encode(LogMark(term=self.term, sequence=sequence, session=self.session))
        doubtful = False
        while True:
            try:
                self._mark_revision = yield WriteMark(value, self._mark_revision)
                return
            except NoResponder as error:
                yield from _waited_for(error)
            except (Unknown, Refused) as error:
                doubtful = doubtful or isinstance(error, Unknown)
                if not doubtful:
                    raise
                found, revision = yield from self._read_mark()
                if found == value:
                    self._mark_revision = revision
                    return
                if revision != self._mark_revision:
                    raise Refused(f"the log's mark was moved by another leader: {found!r}") from None

    def _read_mark(self) -> Steps[tuple[bytes | None, int]]:
        while True:
            try:
                found: tuple[bytes | None, int] = yield ReadMark()
                return found
            except NoResponder as error:
                yield from _waited_for(error)
            except Unknown:
                yield Pause()

    # --- a log that has lost records --------------------------------------------------------------------------

    def begin_anew(self, first_sequence: int) -> Steps[None]:
        """Deletes a log that has lost acknowledged records, so that its next sequences, and with them terms, are higher
        than any before: at least `first_sequence`. The session is over afterwards. Raises Refused when the log has
        another leader by now; even if that one takes it between check and deletion, a deleted log gives no GPU
        twice. The mark moves last: until then every session finds what this one has found."""
        newest: LogEntry | None = yield ReadNewestTerm()
        if newest is not None and newest.sequence != self.term:
            raise Refused(f"term {newest.sequence} was taken meanwhile")
        yield DeleteLog(first_sequence)
        self.term = 0
        yield from self._write_mark(first_sequence - 1)


def _waited_for(error: NoResponder) -> Steps[None]:
    """Pauses after a request that reached no server, and so did nothing: there is no connection, or an election. Raises
    NoStream: what is gone does not come back."""
    if isinstance(error, NoStream):
        raise error
    yield Pause()


def _readable(value: bytes) -> LogMark | None:
    """An unreadable mark counts as none: the log is begun anew."""
    try:
        return decode(value, LogMark)
    except ContractError:
        return None
