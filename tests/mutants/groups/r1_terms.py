"""R1: one leader at a time writes into the log, and knows all of it."""

from tests.mutants.mutant import Mutant

_PROTOCOL = "services/placement/leader/log_protocol.py"
_STEPS = "tests/unit/services/placement/leader/test_log_protocol.py::"
_CLIENT = "tests/unit/services/placement/leader/test_log_client.py::"
_BEGUN = "tests/unit/services/placement/test_core_sessions.py::"
_SESSION = "tests/unit/services/placement/leader/test_session.py::"
_CORE = "tests/unit/services/placement/test_core.py::"
_CORE_SESSIONS = "tests/unit/services/placement/test_core_sessions.py::"

MUTANTS = [
    Mutant(
        name="append-without-fence",
        what="an append does not name the newest term that the leader knows",
        file="shared/bus/log_stream.py",
        old=(
'            _FENCE_SEQUENCE: str(fence_sequence),\n'
'            _FENCE_SUBJECT: fence_subject,\n'
),
        new='',
        tests=("tests/unit/shared/bus/test_log_stream.py::test_a_stale_leader_is_refused_and_leaves_nothing_in_the_log",),
    ),
    Mutant(
        name="append-without-chain-header",
        what="the server is not told which record must be the last one before an append",
        file="shared/bus/log_stream.py",
        old="        if last_sequence is not None:",
        new="        if False:",
        tests=(_CLIENT + "test_a_leader_is_refused_at_its_next_append_if_its_records_were_lost",),
    ),
    Mutant(
        name="client-drops-the-chain",
        what="the log client asks for an append without the record before it",
        file="services/placement/leader/log_client.py",
        old='                    subject, payload, fence_subject=subjects.LOG_TERM, fence_sequence=fence, last_sequence=after\n',
        new='                    subject, payload, fence_subject=subjects.LOG_TERM, fence_sequence=fence, last_sequence=None\n',
        tests=(_CLIENT + "test_a_leader_is_refused_at_its_next_append_if_its_records_were_lost",),
    ),
    Mutant(
        name="append-names-no-last-record",
        what="a record is appended behind any other, not only behind the session's own last one",
        file=_PROTOCOL,
        old="yield AppendRecord(subject, payload, self.term, self._last)",
        new="yield AppendRecord(subject, payload, self.term, None)",
        tests=(_STEPS + "test_a_first_attempt_that_arrives_after_the_check_is_found_when_the_second_is_refused",),
    ),
    Mutant(
        name="term-without-compare-and-swap",
        what="a session that was not quick enough takes its term all the same",
        file=_PROTOCOL,
        old=(

'        self.term = self._last = yield from self._append_term(\n'
'            "elected", fence=newest.sequence if newest else 0, after=None\n'
'        )\n'

        ),
        new=(

'        try:\n'
'            self.term = self._last = yield from self._append_term(\n'
'                "elected", fence=newest.sequence if newest else 0, after=None\n'
'            )\n'
'        except Refused:\n'
'            return (yield from self.take_term())\n'

        ),
        tests=(_STEPS + "test_a_session_that_was_overtaken_has_no_term",),
    ),
    Mutant(
        name="unanswered-term-is-ours",
        what="after an unanswered append of a term the newest term is taken for the session's own without a look at it",
        file=_PROTOCOL,
        old="if newest is None or newest.payload != payload or newest.sequence <= fence:",
        new="if newest is None:",
        tests=(_STEPS + "test_another_leaders_term_is_never_taken_for_ours",),
    ),
    Mutant(
        name="unanswered-renewal-is-the-one-before",
        what="an unanswered renewal is taken for done because the renewal before it reads the same",
        file=_PROTOCOL,
        old=" or newest.payload != payload or newest.sequence <= fence:",
        new=" or newest.payload != payload:",
        tests=(_STEPS + "test_a_renewal_that_was_not_answered_is_not_confused_with_the_one_before",),
    ),
    Mutant(
        name="unanswered-append-is-done",
        what="an append that was not answered is taken for done",
        file=_PROTOCOL,
        old="                if found is not None:\n                    sequence = found\n                    break\n",
        new=(
            "                if doubtful:\n"
            "                    sequence = found or self._last + 1\n"
            "                    break\n"
        ),
        tests=(_STEPS + "test_an_unanswered_append_does_not_count_as_done",),
    ),
    Mutant(
        name="unanswered-append-is-not-read-back",
        what="after an unanswered append the log is not read; it is only tried again",
        file=_PROTOCOL,
        old="found = (yield from self._find(subject, payload)) if doubtful else None",
        new="found = None",
        tests=(_STEPS + "test_an_append_that_was_not_answered_and_happened_is_not_repeated",),
    ),
    Mutant(
        name="doubt-is-forgotten",
        what="a refused second try ends the session although the unanswered first one did arrive",
        file=_PROTOCOL,
        old="did arrive.\n                doubtful = doubtful or isinstance(error, Unknown)",
        new="did arrive.\n                doubtful = isinstance(error, Unknown)",
        tests=(_STEPS + "test_a_first_attempt_that_arrives_after_the_check_is_found_when_the_second_is_refused",),
    ),
    Mutant(
        name="any-record-is-ours",
        what="another session's record is taken for the unanswered one",
        file=_PROTOCOL,
        old="if entry.subject == subject and entry.payload == payload",
        new="if entry.subject == subject",
        tests=(_STEPS + "test_another_sessions_record_is_not_taken_for_the_unanswered_one",),
    ),
    Mutant(
        name="unreadable-log-has-nothing",
        what="a log that cannot be read counts as one without the unanswered record",
        file=_PROTOCOL,
        old="            except (Unknown, ContractError):\n                yield Pause()\n                continue\n",
        new="            except (Unknown, ContractError):\n                return None\n",
        tests=(_STEPS + "test_the_log_is_read_again_until_it_shows_whether_the_append_happened",),
    ),
    Mutant(
        name="renewal-without-own-last-record",
        what="a renewal does not ask that nothing was appended since the session's own last record",
        file=_PROTOCOL,
        old="fence=self.term, after=self._last)",
        new="fence=self.term, after=None)",
        tests=(_STEPS + "test_a_renewal_follows_this_sessions_own_last_record",),
    ),
    Mutant(
        name="renewal-over-a-successor",
        what="a renewal is fenced by whatever term is the newest now",
        file=_PROTOCOL,
        old='        term = yield from self._append_term("renewed", fence=self.term, after=self._last)\n',
        new=(
            "        newest = yield ReadNewestTerm()\n"
            '        term = yield from self._append_term("renewed", fence=newest.sequence, after=None)\n'
        ),
        tests=(_CLIENT + "test_a_superseded_leader_cannot_renew",),
    ),
    Mutant(
        name="term-from-a-successor",
        what="a leader that was frozen takes a term from its successor before it looks at the lease",
        file="services/placement/service.py",
        old="if other := await self._leadership.taken_by():",
        new="if other := self._leadership.leading and None:",
        tests=("tests/unit/services/placement/test_service.py::test_a_term_is_not_taken_from_a_successor",),
    ),
    Mutant(
        name="a-lost-log-is-learnt-late",
        what="a takeover goes on on a log that the servers have lost, until it writes",
        file="services/placement/service.py",
        old="        ctx.bus.on_reconnect(self._reconnected)\n",
        new="",
        tests=(
            "tests/unit/services/placement/test_service.py::"
            "test_a_takeover_whose_log_is_lost_begins_anew_as_soon_as_it_is_connected_again",
        ),
    ),
    Mutant(
        name="replay-not-from-the-beginning",
        what="the replay begins near the end of the log",
        file=_PROTOCOL,
        old="yield ReadLog(self._needed_from(newest))",
        new="yield ReadLog(max(1, self.term - 2))",
        tests=(_CLIENT + "test_a_successor_replays_terms_and_records_and_finds_the_mark",),
    ),
    Mutant(
        name="replay-with-records-of-no-leader",
        what="an answer of the server that was led into the log is taken for a record of a leader",
        file="shared/bus/log_stream.py",
        old="    return _FENCE_SEQUENCE not in headers or _READ_FROM in headers\n",
        new="    return False\n",
        tests=("tests/contract/test_nats_permissions.py::"
               "test_an_answer_that_is_led_into_the_log_ends_no_session_for_good",),
    ),
    Mutant(
        name="ready-of-no-leader",
        what="a new leader believes a `ready` that no leader has appended",
        file=_PROTOCOL,
        old="newest is None or newest.foreign or",
        new="newest is None or",
        tests=(_STEPS + "test_records_that_no_leader_has_appended_are_passed_over",),
    ),
    Mutant(
        name="answers-to-any-subject",
        what="an answer goes to whatever subject its asker names, with the rights of the service that answers",
        file="shared/contracts/subjects.py",
        old="    return reply.startswith((",
        new="    return False and reply.startswith((",
        tests=("tests/contract/test_nats_permissions.py::"
               "test_an_answer_that_is_led_into_the_log_ends_no_session_for_good",),
    ),
    Mutant(
        name="replay-without-the-marked-record",
        what="the replay begins behind the record that the mark names, which then counts as lost",
        file=_PROTOCOL,
        old="min(ready.term, self.found_mark.sequence)",
        new="ready.term",
        tests=(_STEPS + "test_a_marked_record_before_the_newest_ready_is_read_too",),
    ),
    Mutant(
        name="replay-from-half-a-ready",
        what="the replay begins at a term of which only a part of its ready is in the log",
        file=_PROTOCOL,
        old="1 if ready.more else max(",
        new="max(",
        tests=(_STEPS + "test_the_whole_log_is_read_where_its_newest_ready_has_more_parts_to_come",),
    ),
    Mutant(
        name="term-without-end",
        what="a term has any number of decisions, and a successor reads all of them",
        file="services/placement/leader/session.py",
        old=" or self._decisions >= self.ctx.config.renew_term_decisions\n",
        new="\n",
        tests=(_SESSION + "test_a_leader_renews_its_term_after_so_many_decisions",),
    ),
    Mutant(
        name="reasons-before-answers",
        what="a new session explains pods while its nodes have yet to answer",
        file="services/placement/core.py",
        old="            if not self._hearing.delays_reasons(now):\n",
        new="            if True:\n",
        tests=(_BEGUN + "test_no_reasons_are_given_before_the_nodes_have_answered_a_new_session",),
    ),
    Mutant(
        name="reasons-kept-back-for-good",
        what="a node that never answers keeps every reason back",
        file="services/placement/protocol/hearing.py",
        old="return now < self._began + FIRST_ANSWERS_S and not self._are_heard(None)",
        new="return not self._are_heard(None)",
        tests=(_BEGUN + "test_a_node_that_never_answers_keeps_no_reason_back_for_good",),
    ),
    Mutant(
        name="silent-nodes-hold-the-others-up",
        what="syncs that are repeated come before those that were never sent",
        file="services/placement/protocol/nodes.py",
        old="due = sorted((at, node) for node, at in self._sync_sent.items() if now - at >= RESEND_S)",
        new="due = [(at, node) for node, at in reversed(self._sync_sent.items()) if now - at >= RESEND_S]",
        tests=("tests/unit/services/placement/protocol/test_nodes.py::"
               "test_a_node_that_does_not_answer_its_sync_keeps_no_other_waiting",),
    ),
    Mutant(
        name="replay-of-the-own-term",
        what="the replay has the session's own term, by which no earlier ready counts",
        file=_PROTOCOL,
        old="if e.sequence < self.term and e.subject in _KIND_OF",
        new="if e.subject in _KIND_OF",
        tests=(_CLIENT + "test_a_successor_replays_terms_and_records_and_finds_the_mark",),
    ),
    Mutant(
        name="two-appends-in-flight",
        what="the journal hands out a second append before the first is answered",
        file="services/placement/protocol/write_batcher.py",
        old="        if self.in_flight is not None:\n            return []\n        if self.owed:",
        new="        if self.owed:",
        tests=(_CORE + "test_one_append_is_in_flight_at_a_time_while_the_next_batch_gathers",),
    ),
    Mutant(
        name="renewal-while-an-append-is-under-way",
        what="the term is renewed while an append is under way",
        file="services/placement/core.py",
        old='return self.phase == "leading" and self.batcher.in_flight is None',
        new='return self.phase == "leading"',
        tests=(_CORE_SESSIONS + "test_no_term_is_renewed_while_an_append_is_under_way",),
    ),
    Mutant(
        name="renewal-before-leading",
        what="the term is renewed by a session that has not written its ready yet",
        file="services/placement/core.py",
        old='return self.phase == "leading" and self.batcher.in_flight is None',
        new="return self.batcher.in_flight is None",
        tests=(_CORE_SESSIONS + "test_no_term_is_renewed_before_the_session_leads",),
    ),
    Mutant(
        name="leader-never-renews",
        what="a leader never renews its term, so that open holds age out of the log",
        file="services/placement/leader/session.py",
        old="if not due or not self.core.may_renew:",
        new="if True:",
        tests=(_SESSION + "test_a_leader_renews_its_term_when_it_is_due",),
    ),
    Mutant(
        name="renewal-without-the-core",
        what="the core does not hear of the renewed term, and writes its holds and ready under the old one",
        file="services/placement/leader/session.py",
        old="        await self._carry_out(self.core.handle(m.TermRenewed(term), time.monotonic()))\n",
        new="",
        tests=(_SESSION + "test_a_leader_renews_its_term_when_it_is_due",),
    ),
    Mutant(
        name="refused-append-does-not-end-the-session",
        what="a session whose append is refused goes on",
        file="services/placement/leader/session.py",
        old="if not task.cancelled() and task.exception() is not None and not self._failure.done():",
        new="if False:",
        tests=(_SESSION + "test_a_session_ends_when_its_append_is_refused",),
    ),
    Mutant(
        name="newer-term-is-not-seen-when-asked",
        what="a session that is told to look at the log goes on although the log has a newer term",
        file="services/placement/leader/session.py",
        old="if newest is None or decode(newest.payload, TermRecord).session != self.log_client.session:",
        new="if newest is None:",
        tests=(_SESSION + "test_a_session_ends_by_a_reported_newer_term_only_if_the_log_has_one",),
    ),
    Mutant(
        name="a-nodes-word-ends-the-session",
        what="a node that speaks of a higher term ends the session, whatever the log has",
        file="services/placement/leader/session.py",
        old="if newest is None or decode(newest.payload, TermRecord).session != self.log_client.session:",
        new="if True:",
        tests=(_SESSION + "test_a_session_ends_by_a_reported_newer_term_only_if_the_log_has_one",),
    ),
    Mutant(
        name="log-is-asked-at-every-word-of-a-node",
        what="each word of a node on a higher term asks the log, as often as it comes",
        file="services/placement/protocol/nodes.py",
        old="        if now - self._term_checked_at < CHECK_TERM_S:\n            return []\n",
        new="",
        tests=(_CORE_SESSIONS + "test_a_node_that_follows_a_newer_term_makes_the_leader_check_the_log",),
    ),
]  # fmt: skip
