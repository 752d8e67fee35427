"""R1 and R5: the mark, which shows that a log has lost records, and how such a log is begun anew."""

from tests.mutants.mutant import Mutant

_PROTOCOL = "services/placement/leader/log_protocol.py"
_STEPS = "tests/unit/services/placement/leader/test_log_protocol.py::"
_CLIENT = "tests/unit/services/placement/leader/test_log_client.py::"
_SESSION = "tests/unit/services/placement/leader/test_session.py::"

MUTANTS = [
    Mutant(
        name="append-without-mark",
        what="a record is acted on before it is marked",
        file=_PROTOCOL,
        old="        self._last = sequence\n        yield from self._write_mark(sequence)\n        return sequence\n",
        new="        self._last = sequence\n        return sequence\n",
        tests=(_STEPS + "test_a_record_has_no_effect_if_another_session_has_overwritten_its_mark",),
    ),
    Mutant(
        name="renewal-without-mark",
        what="a renewed term is not marked",
        file=_PROTOCOL,
        old="        self.term = self._last = term\n        yield from self._write_mark(term)\n",
        new="        self.term = self._last = term\n",
        tests=(_CLIENT + "test_a_leader_renews_its_own_term",),
    ),
    Mutant(
        name="mark-without-compare-and-swap",
        what="a mark is written whatever revision the bucket has",
        file="shared/bus/mark.py",
        old="{LAST_SEQUENCE: str(revision)}",
        new="{}",
        tests=(_CLIENT + "test_a_mark_that_was_on_its_way_when_the_servers_lost_it_does_not_fit_the_next_bucket",),
    ),
    Mutant(
        name="mark-names-no-session",
        what="a mark does not say which session it is of",
        file=_PROTOCOL,
        old="LogMark(term=self.term, sequence=sequence, session=self.session)",
        new="LogMark(term=self.term, sequence=sequence)",
        tests=(_STEPS + "test_a_mark_names_the_record_its_term_and_its_session",),
    ),
    Mutant(
        name="sessions-of-a-process-are-one",
        what="the sessions of one process have one name, so that a record of one is taken for another's",
        file="services/placement/service.py",
        old='f"{self.ctx.instance}/{self._sessions}"',
        new="self.ctx.instance",
        tests=(_SESSION + "test_each_session_of_a_process_has_a_name_of_its_own",),
    ),
    Mutant(
        name="term-moves-the-mark",
        what="taking a term overwrites the mark, the evidence of what the log has to have",
        file=_PROTOCOL,
        old="        self.found_mark = None if value is None else _readable(value)\n",
        new=(
            "        self.found_mark = None if value is None else _readable(value)\n"
            "        yield from self._write_mark(self.term)\n"
        ),
        tests=(_STEPS + "test_taking_a_term_leaves_the_mark_as_it_is",),
    ),
    Mutant(
        name="moved-mark-is-overwritten",
        what="a session overwrites the mark of another after an unanswered write",
        file=_PROTOCOL,
        old='                    raise Refused(f"the log\'s mark was moved by another leader: {found!r}") from None\n',
        new="                    self._mark_revision = revision\n",
        tests=(_STEPS + "test_a_mark_that_went_unanswered_and_was_overwritten_ends_the_session",),
    ),
    Mutant(
        name="unanswered-mark-is-written",
        what="a write of the mark that was not answered is taken for done",
        file=_PROTOCOL,
        old=(
            "                if found == value:\n"
            "                    self._mark_revision = revision\n"
            "                    return\n"
        ),
        new="                self._mark_revision = revision\n                return\n",
        tests=(_STEPS + "test_a_mark_that_was_not_answered_and_did_not_happen_is_written_again",),
    ),
    Mutant(
        name="mark-on-disk",
        what="the mark survives a restart of all servers, and comes back from a backup with the log",
        file="shared/bus/provision.py",
        old='"storage": "memory",',
        new='"storage": "file",',
        tests=(_CLIENT + "test_after_a_restart_of_nats_the_session_ends_and_the_next_finds_no_mark",),
    ),
    Mutant(
        name="mark-for-a-log-that-was-there",
        what="provisioning marks a log that it has not made, though records of it may be lost",
        file="shared/bus/provision.py",
        old="            info = await js.stream_info(name)\n        except NoStream:\n",
        new=(
            "            info = await js.stream_info(name)\n"
            "            if name == subjects.STREAM_LOG:\n"
            "                await _mark_new_log(js, *await Mark(js).read())\n"
            "        except NoStream:\n"
        ),
        tests=(_CLIENT + "test_after_a_restart_of_nats_the_session_ends_and_the_next_finds_no_mark",),
    ),
    Mutant(
        name="mark-is-replaced-with-the-log",
        what="provisioning a log that was deleted forgets what had been acted on",
        file="shared/bus/provision.py",
        old="    if value is None:\n        first",
        new="    if True:\n        first",
        tests=(_CLIENT + "test_a_log_that_was_deleted_and_is_provisioned_keeps_its_mark",),
    ),
    Mutant(
        name="log-begins-at-1",
        what="a new log begins at sequence 1, so that numbers of terms come a second time",
        file="shared/bus/provision.py",
        old='        body["first_seq"] = max(int(time.time() * 1000), first_sequence)',
        new="        pass",
        tests=("tests/unit/shared/bus/test_log_stream.py::test_after_a_wipe_appends_fail_and_terms_continue_to_rise",),
    ),
    Mutant(
        name="begun-anew-too-low",
        what="a log that is begun anew does not begin above what was given before",
        file="shared/bus/provision.py",
        old="max(int(time.time() * 1000), first_sequence)",
        new="int(time.time() * 1000)",
        tests=(_CLIENT + "test_a_recreated_log_has_higher_numbers_and_refuses_leaders_of_the_old_one",),
    ),
    Mutant(
        name="log-deleted-under-a-later-leader",
        what="a session deletes a log although a newer term was taken",
        file=_PROTOCOL,
        old="        if newest is not None and newest.sequence != self.term:\n",
        new="        if False:\n",
        tests=(_CLIENT + "test_a_log_is_not_deleted_under_a_later_leader",),
    ),
    Mutant(
        name="mark-before-deletion",
        what="the mark of a log that is begun anew moves before the old log is deleted",
        file=_PROTOCOL,
        old=(
            "        yield DeleteLog(first_sequence)\n"
            "        self.term = 0\n"
            "        yield from self._write_mark(first_sequence - 1)\n"
        ),
        new=(
            "        self.term = 0\n"
            "        yield from self._write_mark(first_sequence - 1)\n"
            "        yield DeleteLog(first_sequence)\n"
        ),
        tests=(_STEPS + "test_a_recreated_log_gets_its_mark_last",),
    ),
    Mutant(
        name="begun-anew-without-mark",
        what="a log that is begun anew has no mark of its beginning",
        file=_PROTOCOL,
        old="        self.term = 0\n        yield from self._write_mark(first_sequence - 1)\n",
        new="        self.term = 0\n",
        tests=(_STEPS + "test_a_recreated_log_gets_its_mark_last",),
    ),
    Mutant(
        name="session-goes-on-without-its-log",
        what="a session that has deleted its log goes on",
        file="services/placement/leader/session.py",
        old="                    raise LogDeleted(command.reason)\n",
        new="",
        tests=(_SESSION + "test_a_session_on_a_log_that_has_lost_records_deletes_it",),
    ),
]  # fmt: skip
