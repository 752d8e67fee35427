"""How a leader session handles answers that are lost or late (R1): each request is answered by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.placement.leader import log_protocol as p
from shared.bus.port import LogEntry, NoResponder, NoStream, Refused, Unknown
from shared.contracts import subjects
from shared.contracts.base import ContractError, encode
from shared.contracts.log import DecisionBatch, LogMark, ReadyRecord, TermRecord

READY = ReadyRecord(term=7)


class Log:
    """A log of one process. `fail` may raise for a request, before or after it happened."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.next = 7
        self.mark: tuple[bytes | None, int] = (None, 0)
        self.asked: list[p.Request] = []
        self.before: Callable[[p.Request], None] = lambda _: None
        self.after: Callable[[p.Request], None] = lambda _: None

    def run(self, steps: p.Steps[Any]) -> Any:
        try:
            request = next(steps)
            while True:
                self.asked.append(request)
                try:
                    self.before(request)
                    answer = self.answer(request)
                    self.after(request)
                except (Refused, Unknown, NoResponder, ContractError) as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value

    def answer(self, request: p.Request) -> Any:
        match request:
            case p.AppendRecord(subject, payload, fence, after):
                newest = next((e.sequence for e in reversed(self.entries) if e.subject == subjects.LOG_TERM), 0)
                last = self.entries[-1].sequence if self.entries else 0
                if newest != fence or (after is not None and after != last):
                    raise Refused("wrong last sequence")
                return self.append(subject, payload)
            case p.ReadNewestTerm():
                return next((e for e in reversed(self.entries) if e.subject == subjects.LOG_TERM), None)
            case p.ReadNewestReady():
                return next((e for e in reversed(self.entries) if e.subject == subjects.LOG_READY), None)
            case p.ReadLog(start):
                return [e for e in self.entries if e.sequence >= start]
            case p.ReadMark():
                return self.mark
            case p.WriteMark(value, revision):
                if revision != self.mark[1]:
                    raise Refused("wrong last sequence")
                self.mark = (value, revision + 1)
                return revision + 1
            case p.DeleteLog(first_sequence):
                self.entries, self.next = [], first_sequence
                return None
            case p.Pause():
                return None
        raise AssertionError(request)

    def append(self, subject: str, payload: bytes) -> int:
        self.entries.append(LogEntry(self.next, subject, payload))
        self.next += 1
        return self.next - 1

    def loses(self, kind: type[p.Request], *, times: int = 1, happened: bool) -> None:
        """The next `times` requests of this kind go unanswered, whether they `happened` or not."""
        left = [times]

        def unanswered(request: p.Request) -> None:
            if isinstance(request, kind) and left[0]:
                left[0] -= 1
                raise Unknown("no answer")

        if happened:
            self.after = unanswered
        else:
            self.before = unanswered

    def count(self, kind: type[p.Request]) -> int:
        return sum(isinstance(request, kind) for request in self.asked)


def session(name: str = "me") -> p.LogProtocol:
    return p.LogProtocol("holder", name)


def leading(log: Log) -> p.LogProtocol:
    protocol = session()
    assert log.run(protocol.take_term()) == 7
    log.asked.clear()
    return protocol


def test_an_append_that_was_not_answered_and_happened_is_not_repeated() -> None:
    log = Log()
    protocol = leading(log)
    log.loses(p.AppendRecord, happened=True)
    assert log.run(protocol.append(READY)) == 8
    assert (len(log.entries), log.count(p.AppendRecord)) == (2, 1)


def test_an_append_that_was_not_answered_and_did_not_happen_is_repeated() -> None:
    log = Log()
    protocol = leading(log)
    log.loses(p.AppendRecord, times=2, happened=False)
    assert log.run(protocol.append(READY)) == 8
    assert (len(log.entries), log.count(p.AppendRecord)) == (2, 3)


def test_a_first_attempt_that_arrives_after_the_check_is_found_when_the_second_is_refused() -> None:
    """The second record names the one before it, which is not the first: so the log never has both."""
    log = Log()
    protocol = leading(log)
    tries = []

    def late(request: p.Request) -> None:
        if isinstance(request, p.AppendRecord):
            tries.append(request)
            if len(tries) == 1:
                raise Unknown("no answer")
            if len(tries) == 2:
                log.append(request.subject, request.payload)

    log.before = late
    assert log.run(protocol.append(READY)) == 8
    assert len(log.entries) == 2


def test_an_unanswered_append_does_not_count_as_done() -> None:
    """A newer term came in the meantime: the check finds no record of ours, and the second attempt is refused."""
    log = Log()
    protocol = leading(log)
    log.loses(p.AppendRecord, happened=False)
    log.append(subjects.LOG_TERM, encode(TermRecord(holder="other", session="other")))
    with pytest.raises(Refused):
        log.run(protocol.append(READY))
    assert [e.subject for e in log.entries] == [subjects.LOG_TERM, subjects.LOG_TERM]


def test_a_refusal_without_doubt_ends_the_session_at_once() -> None:
    log = Log()
    protocol = leading(log)
    log.append(subjects.LOG_TERM, encode(TermRecord(holder="other", session="other")))
    with pytest.raises(Refused):
        log.run(protocol.append(READY))
    assert [type(request) for request in log.asked] == [p.AppendRecord]


def test_the_log_is_read_again_until_it_shows_whether_the_append_happened() -> None:
    log = Log()
    protocol = leading(log)
    log.loses(p.AppendRecord, happened=True)
    reads = [Unknown("no answer"), ContractError("half a record")]

    def unreadable(request: p.Request) -> None:
        if isinstance(request, p.ReadLog) and reads:
            raise reads.pop()

    log.before = unreadable
    assert log.run(protocol.append(READY)) == 8
    assert log.count(p.Pause) == 2


def test_a_term_with_an_unanswered_append_is_ours_only_if_the_log_has_our_record() -> None:
    log = Log()
    log.loses(p.AppendRecord, happened=True)
    assert log.run(session().take_term()) == 7


def test_another_leaders_term_is_never_taken_for_ours() -> None:
    """The append went unanswered and did not happen, and the newest term by now is a rival's."""
    log = Log()

    def overtaken(request: p.Request) -> None:
        if isinstance(request, p.AppendRecord):
            log.append(
                subjects.LOG_TERM,
                encode(TermRecord(holder="holder", reason="elected", session="another session of this process")),
            )
            raise Unknown("no answer")

    log.before = overtaken
    with pytest.raises(Refused):
        log.run(session().take_term())


def test_a_session_that_was_overtaken_has_no_term() -> None:
    """Another session has appended its term between the read of the newest one and the append."""
    log = Log()

    def overtaken(request: p.Request) -> None:
        if isinstance(request, p.AppendRecord) and not log.entries:
            log.append(subjects.LOG_TERM, encode(TermRecord(holder="other", session="other")))

    log.before = overtaken
    protocol = session()
    with pytest.raises(Refused):
        log.run(protocol.take_term())
    assert (protocol.term, len(log.entries)) == (0, 1)


def test_another_sessions_record_is_not_taken_for_the_unanswered_one() -> None:
    log = Log()
    protocol = leading(log)
    log.loses(p.AppendRecord, happened=False)
    log.append(subjects.LOG_TERM, encode(TermRecord(holder="other", session="other")))
    log.append(subjects.LOG_READY, encode(ReadyRecord(term=8)))
    with pytest.raises(Refused):
        log.run(protocol.append(READY))
    assert log.count(p.WriteMark) == 0


def test_a_renewal_that_was_not_answered_is_not_confused_with_the_one_before() -> None:
    """Both records read the same."""
    log = Log()
    protocol = leading(log)
    log.run(protocol.renew_term())
    log.loses(p.AppendRecord, happened=False)
    with pytest.raises(Refused):
        log.run(protocol.renew_term())


def test_a_renewal_follows_this_sessions_own_last_record() -> None:
    log = Log()
    protocol = leading(log)
    log.run(protocol.append(READY))
    log.run(protocol.renew_term())
    renewal = next(
        request for request in log.asked if isinstance(request, p.AppendRecord) and request.subject == subjects.LOG_TERM
    )
    assert (renewal.fence, renewal.after) == (7, 8)


def test_a_mark_names_the_record_its_term_and_its_session() -> None:
    """Another session may be given the same term and sequence after a loss: only its name distinguishes the two."""
    log = Log()
    log.run(leading(log).append(READY))
    assert log.mark[0] == encode(LogMark(term=7, sequence=8, session="me"))


def test_a_mark_that_was_not_answered_and_happened_is_found() -> None:
    log = Log()
    protocol = leading(log)
    log.loses(p.WriteMark, happened=True)
    assert log.run(protocol.append(READY)) == 8
    log.after = lambda _: None
    assert log.run(protocol.append(ReadyRecord(term=7))) == 9, "the revision is known again"


def test_a_mark_that_was_not_answered_and_did_not_happen_is_written_again() -> None:
    log = Log()
    protocol = leading(log)
    log.loses(p.WriteMark, happened=False)
    assert log.run(protocol.append(READY)) == 8
    assert log.count(p.WriteMark) == 2


def test_a_record_has_no_effect_if_another_session_has_overwritten_its_mark() -> None:
    log = Log()
    protocol = leading(log)
    log.mark = (encode(LogMark(term=9, sequence=9, session="other")), log.mark[1] + 1)
    with pytest.raises(Refused):
        log.run(protocol.append(READY))


def test_a_mark_that_went_unanswered_and_was_overwritten_ends_the_session() -> None:
    log = Log()
    protocol = leading(log)

    def overwritten(request: p.Request) -> None:
        if isinstance(request, p.WriteMark) and log.count(p.WriteMark) == 1:
            log.mark = (encode(LogMark(term=9, sequence=9, session="other")), log.mark[1] + 1)
            raise Unknown("no answer")

    log.before = overwritten
    with pytest.raises(Refused, match="moved by another leader"):
        log.run(protocol.append(READY))


def test_nothing_follows_from_a_record_when_the_servers_have_lost_the_mark() -> None:
    log = Log()
    protocol = leading(log)

    def lost(request: p.Request) -> None:
        if isinstance(request, p.WriteMark):
            raise NoStream("the bucket is gone")

    log.before = lost
    with pytest.raises(NoStream):
        log.run(protocol.append(READY))


def test_taking_a_term_leaves_the_mark_as_it_is() -> None:
    """It is the evidence by which the log is trusted: a session that ends before it has used it leaves it to the
    next."""
    log = Log()
    log.mark = (encode(LogMark(term=3, sequence=6, session="before")), 4)
    protocol = session()
    log.run(protocol.take_term())
    assert protocol.found_mark is not None
    assert (protocol.found_mark.sequence, log.mark[1]) == (6, 4)


def test_a_mark_that_the_leader_before_wrote_late_ends_the_session_that_would_overwrite_it() -> None:
    """That leader had an append in flight when the term was taken, and may act on it: the next session replays it."""
    log = Log()
    protocol = leading(log)
    log.mark = (encode(LogMark(term=3, sequence=6, session="before")), 1)
    with pytest.raises(Refused):
        log.run(protocol.append(READY))


def test_a_recreated_log_gets_its_mark_last() -> None:
    """A session that dies between the two leaves an empty log without a mark, which the next one recreates again."""
    log = Log()
    protocol = leading(log)
    log.run(protocol.begin_anew(900))
    assert [type(request) for request in log.asked] == [p.ReadNewestTerm, p.DeleteLog, p.WriteMark]
    assert log.mark[0] == encode(LogMark(term=0, sequence=899, session="me"))


def test_a_mark_that_cannot_be_read_is_none() -> None:
    """Then the log is recreated. A session that failed on it would leave it to the next one, for ever."""
    log = Log()
    log.mark = (b"no json", 5)
    session = p.LogProtocol("a", "a/1")
    assert log.run(session.take_term()) == 7
    assert session.found_mark is None


@pytest.mark.parametrize("kind", [p.AppendRecord, p.WriteMark])
def test_a_session_outlives_an_election_in_which_nothing_could_be_sent(kind: type[p.Request]) -> None:
    """It would begin anew otherwise, replay and list, and every pod would wait for that too."""
    log, protocol = Log(), p.LogProtocol("one", "one/1")
    log.run(protocol.take_term())
    failures = [NoResponder("an election"), NoResponder("an election")]

    def fail(request: p.Request) -> None:
        if isinstance(request, kind) and failures:
            raise failures.pop()

    log.before = fail
    assert log.run(protocol.append(READY)) == 8
    assert [entry.subject for entry in log.entries] == [subjects.LOG_TERM, subjects.LOG_READY]
    assert log.asked.count(p.Pause()) == 2
    assert log.mark[1] == 1


@pytest.mark.parametrize("kind", [p.AppendRecord, p.WriteMark])
def test_a_session_ends_when_the_log_or_its_mark_is_gone(kind: type[p.Request]) -> None:
    log, protocol = Log(), p.LogProtocol("one", "one/1")
    log.run(protocol.take_term())

    def fail(request: p.Request) -> None:
        if isinstance(request, kind):
            raise NoStream("it was deleted")

    log.before = fail
    with pytest.raises(NoStream):
        log.run(protocol.append(READY))
    assert p.Pause() not in log.asked


def test_an_unanswered_append_that_an_election_follows_is_looked_up_and_not_written_twice() -> None:
    log, protocol = Log(), p.LogProtocol("one", "one/1")
    log.run(protocol.take_term())
    unanswered, elections = [Unknown("no answer")], [NoResponder("an election")]

    def lost(request: p.Request) -> None:
        if isinstance(request, p.AppendRecord) and unanswered:
            raise unanswered.pop()

    def fail(request: p.Request) -> None:
        if isinstance(request, p.ReadLog) and elections:
            raise elections.pop()

    log.after, log.before = lost, fail
    assert log.run(protocol.append(READY)) == 8
    assert len(log.entries) == 2


# --- what a successor reads ------------------------------------------------------------------------------------------


def replayed(log: Log) -> tuple[int, list[int]]:
    """Where a new session began to read, and the sequences that it got."""
    protocol = session("successor")
    log.run(protocol.take_term())
    records = log.run(protocol.replay())
    start = next(request.start for request in reversed(log.asked) if isinstance(request, p.ReadLog))
    return start, [sequence for sequence, _ in records]


def led(log: Log, *, name: str = "me") -> p.LogProtocol:
    """A session that has written its `ready` and a record after it."""
    protocol = session(name)
    term = log.run(protocol.take_term())
    log.run(protocol.append(DecisionBatch(term=term, decisions=())))  # what was open before, again
    log.run(protocol.append(ReadyRecord(term=term)))
    log.run(protocol.append(DecisionBatch(term=term, decisions=())))
    return protocol


def test_a_successor_reads_from_the_term_on_that_wrote_the_newest_ready() -> None:
    log = Log()
    led(log)
    second = led(log, name="second")
    assert replayed(log) == (second.term, [second.term + i for i in range(4)])


def test_a_term_without_ready_of_its_own_is_read_behind_the_one_that_has_it() -> None:
    """Its record shows the successor that the log may be incomplete."""
    log = Log()
    first = led(log)
    unready = log.run(session("unready").take_term())
    assert replayed(log) == (first.term, [*range(first.term, unready + 1)])


def test_a_renewed_term_shortens_what_a_successor_reads() -> None:
    log = Log()
    protocol = led(log)
    term = log.run(protocol.renew_term())
    log.run(protocol.append(ReadyRecord(term=term)))
    assert replayed(log) == (term, [term, term + 1])


def test_a_marked_record_before_the_newest_ready_is_read_too() -> None:
    """Its session died between the record and its mark: whether the log has what was acted on shows by the older
    mark."""
    log = Log()
    first = led(log)
    marked, revision = log.mark
    second = led(log, name="second")
    log.mark = (marked, revision)
    assert replayed(log)[0] == first.term + 3 < second.term


def test_the_whole_log_is_read_where_its_newest_ready_has_more_parts_to_come() -> None:
    log = Log()
    protocol = led(log)
    term = log.run(protocol.renew_term())
    log.run(protocol.append(ReadyRecord(term=term, more=True)))
    assert replayed(log)[0] == 1


def test_the_whole_log_is_read_where_there_is_no_mark_or_no_ready() -> None:
    log = Log()
    log.run(session().take_term())
    assert replayed(log)[0] == 1
    led(log)
    log.mark = (None, 99)
    assert replayed(log)[0] == 1


def test_the_ready_of_a_later_session_does_not_hide_what_was_before() -> None:
    log = Log()
    first = led(log)
    late = session("late")
    log.run(late.take_term())
    led(log, name="later")
    assert [sequence for sequence, _ in log.run(late.replay())] == [first.term + i for i in range(4)]


def test_records_that_no_leader_has_appended_are_passed_over() -> None:
    """Also where one is the newest on the subject of `ready`: then the whole log is read."""
    log = Log()
    first = leading(log)
    log.run(first.append(ReadyRecord(term=first.term)))
    kept = log.run(first.append(DecisionBatch(term=first.term, decisions=())))
    for subject in (subjects.LOG_DECISIONS, subjects.LOG_READY):
        log.entries.append(LogEntry(log.next, subject, b'{"type":"stream_info"}', foreign=True))
        log.next += 1
    following = session("next")
    log.run(following.take_term())
    assert [sequence for sequence, record in log.run(following.replay()) if isinstance(record, DecisionBatch)] == [kept]
