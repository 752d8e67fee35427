"""R5 where pods have to be touched: in parts, by turns, and without waiting for ever."""

from tests.mutants.mutant import Mutant

_RECOVERY = "services/placement/protocol/recovery.py"
_SESSION = "services/placement/leader/session.py"
_WATCHER = "services/watcher/executors/patches.py"
_TESTS = "tests/unit/services/placement/protocol/test_recovery.py::"
_OF_SESSION = "tests/unit/services/placement/leader/test_session.py::"
_CORE = "tests/unit/services/placement/test_core.py::"
_CORE_RELEASES = "tests/unit/services/placement/test_core_releases.py::"

MUTANTS = [
    Mutant(
        name="touches-all-at-once",
        what="all pods of a large cluster are touched at once, and again before they are answered",
        file=_RECOVERY,
        old="[: max(0, room)]",
        new="",
        tests=(_TESTS + "test_a_large_clusters_pods_are_touched_a_thousand_at_a_time_and_each_gets_its_turn",),
    ),
    Mutant(
        name="touches-without-turns",
        what="pods that do not move keep all others from being touched",
        file=_RECOVERY,
        old="asked = asked_of[uid] = asked_of.pop(uid)",
        new="asked = asked_of[uid]",
        tests=(_TESTS + "test_a_large_clusters_pods_are_touched_a_thousand_at_a_time_and_each_gets_its_turn",),
    ),
    Mutant(
        name="touches-never-by-status",
        what="a pod whose annotation is taken away again is touched by annotation for ever",
        file=_RECOVERY,
        old="asked.tries % 2 == 1",
        new="False",
        tests=(_TESTS + "test_the_first_touch_of_a_pod_and_every_second_one_after_it_is_by_its_status_only",),
    ),
    Mutant(
        name="touches-by-annotation-first",
        what="a webhook on pods that hangs holds up every takeover after a loss of the log",
        file=_RECOVERY,
        old="asked.tries % 2 == 1",
        new="asked.tries % 2 == 0",
        tests=(_TESTS + "test_the_first_touch_of_a_pod_and_every_second_one_after_it_is_by_its_status_only",),
    ),
    Mutant(
        name="silence-excludes-nothing",
        what="a pod that nobody refuses to touch, and that does not move, stops the cluster",
        file=_RECOVERY,
        old="now - asked.since >= after_s",
        new="False",
        tests=(_TESTS + "test_a_pod_that_no_touch_moves_is_excluded_whatever_the_answers_are",),
    ),
    Mutant(
        name="touches-that-were-not-sent-count",
        what="pods are excluded because no watcher ran for a minute",
        file=_RECOVERY,
        old="                self._touching[uid].since = now\n",
        new="                pass\n",
        tests=(_TESTS + "test_no_pod_is_excluded_while_no_watcher_runs",),
    ),
    Mutant(
        name="unsent-touches-are-not-reported",
        what="the core does not learn that no watcher runs",
        file=_SESSION,
        old="if isinstance(error, NoResponder) and touched:",
        new="if False:",
        tests=(_OF_SESSION + "test_touches_that_no_watcher_receives_are_reported_as_not_sent",),
    ),
    Mutant(
        name="hanging-webhook-is-waited-for",
        what="a pod whose annotation was not answered is not touched by its status",
        file=_WATCHER,
        old='not in ("refused", "unknown"):',
        new='not in ("refused",):',
        tests=(
            "tests/unit/services/watcher/test_executors.py::test_a_pod_is_touched_by_its_status_if_its_webhook_hangs",
        ),
    ),
    Mutant(
        name="orders-in-one-message",
        what="orders for all pods go in one message, which NATS does not take",
        file=_SESSION,
        old=("        for part in _parts(command.patches):\n            await self._send_part(part)\n"),
        new="        await self._send_part(command.patches)\n",
        tests=(_OF_SESSION + "test_orders_for_many_pods_go_in_parts_that_fit_into_messages",),
    ),
    Mutant(
        name="refused-event-excludes",
        what="a refused Event of a pod counts as a refused touch",
        file=_SESSION,
        old="for answer in reply.answers if answer.uid in touched)",
        new="for answer in reply.answers)",
        tests=(_OF_SESSION + "test_only_answers_to_touches_are_taken_for_touches",),
    ),
    Mutant(
        name="part-of-the-excluded-leads",
        what="a leader leads although only some of the excluded pods are in the log",
        file="services/placement/core.py",
        old="isinstance(record, ReadyRecord) and not record.more:",
        new="isinstance(record, ReadyRecord):",
        tests=(_TESTS + "test_a_leader_that_has_written_a_part_of_the_excluded_does_not_lead_yet",),
    ),
    Mutant(
        name="part-of-the-excluded-is-ready",
        what="a log with a part of the excluded pods counts as complete",
        file=_RECOVERY,
        old="if record.term == self._newest_term and not record.more:",
        new="if record.term == self._newest_term:",
        tests=(_TESTS + "test_very_many_excluded_pods_take_several_records_and_the_log_is_complete_with_the_last",),
    ),
    Mutant(
        name="excluded-of-a-ready-that-never-came",
        what="the excluded pods of a ready that was never complete replace those of the one before",
        file=_RECOVERY,
        old="                self._newest_term, excluded = sequence, {}\n",
        new="                self._newest_term, excluded, self._excluded_before = sequence, {}, {}\n",
        tests=(_TESTS + "test_the_excluded_of_a_ready_that_was_never_complete_do_not_replace_those_before",),
    ),
    Mutant(
        name="last-part-of-the-excluded-alone",
        what="of excluded pods in several records only the last ones are read",
        file=_RECOVERY,
        old="                excluded |= record.excluded\n",
        new="                excluded = record.excluded\n",
        tests=(_TESTS + "test_very_many_excluded_pods_take_several_records_and_the_log_is_complete_with_the_last",),
    ),
    Mutant(
        name="excluded-by-an-earlier-leader-for-ever",
        what="what an earlier leader excluded stays excluded, though a later one has placed it",
        file=_RECOVERY,
        old="                self._newest_term, excluded = sequence, {}\n",
        new="                self._newest_term = sequence\n",
        tests=(_TESTS + "test_the_excluded_of_an_earlier_ready_are_not_those_of_a_later_one",),
    ),
    Mutant(
        name="unreadable-mark-ends-every-session",
        what="a mark that cannot be read ends one session after another",
        file="services/placement/leader/log_protocol.py",
        old="    except ContractError:\n        return None\n",
        new="    except ContractError:\n        raise\n",
        tests=("tests/unit/services/placement/leader/test_log_protocol.py::test_a_mark_that_cannot_be_read_is_none",),
    ),
    Mutant(
        name="silent-log-ends-the-session",
        what="a node's word ends the session while the log does not answer",
        file=_SESSION,
        old='            self.ctx.log.warning("term_not_checked", why=reason, error=str(error))\n            return False\n',
        new="            raise\n",
        tests=(_OF_SESSION + "test_a_log_that_does_not_answer_ends_no_session",),
    ),
    Mutant(
        name="other-watchers-are-not-heard",
        what="what another watcher has met of the log does not count",
        file="shared/bus/feed.py",
        old="        self._sequence_seen = max(self._sequence_seen, batch.log_sequence_seen)\n",
        new="",
        tests=(
            "tests/unit/shared/bus/test_feed.py::"
            "test_the_log_position_counts_that_any_watcher_has_seen_not_only_the_one_that_answers",
        ),
    ),
    Mutant(
        name="any-sequence-is-believed",
        what="a pod with an absurd sequence makes a log that no server can make",
        file="services/placement/listing.py",
        old=" and grant.sequence < SEQUENCE_MOST:",
        new=":",
        tests=(_TESTS + "test_a_sequence_beyond_any_log_is_not_believed",),
    ),
    Mutant(
        name="repeated-release-loses-a-pod",
        what="a release of a grant whose pod lives frees it, and the pod waits for ever",
        file="services/placement/protocol/releases.py",
        old="out = self._ended(held, event.reason, now)",
        new="out = [self._end(held, event.reason)]",
        tests=(
            "tests/unit/services/placement/protocol/test_releases.py::test_a_release_for_a_live_pod_replaces_the_pod",
        ),
    ),
    Mutant(
        name="full-annotations-are-placed",
        what="a pod whose grant does not fit beside its annotations is bound, and never written again",
        file="services/placement/scheduling/unsupported_fields.py",
        old="if state.pod.metadata.annotations_full and",
        new="if False and",
        tests=(_CORE + "test_a_pod_waits_while_its_annotations_leave_no_space_for_a_grant",),
    ),
    Mutant(
        name="annotations-are-never-too-full",
        what="annotations that take all but the last bytes leave room for a grant",
        file="services/watcher/trimming.py",
        old="> ANNOTATIONS_MAX_BYTES - GRANT_MAX_BYTES",
        new="> ANNOTATIONS_MAX_BYTES",
        tests=(
            "tests/unit/services/watcher/test_core.py::test_whether_annotations_leave_space_for_a_grant_is_recorded",
        ),
    ),
    Mutant(
        name="hold-of-a-pod-bound-otherwise-stays-at-its-node",
        what="a node remembers a hold for ever whose pod was bound with another grant",
        file="services/placement/core.py",
        old="if hold.decision.grant is not None and hold.decision.grant.grant_id != state.grant_id:",
        new="if False:",
        tests=(_CORE_RELEASES + "test_a_hold_is_revoked_at_its_node_if_its_pod_is_bound_with_another_grant",),
    ),
    Mutant(
        name="late-beginning-hides-a-loss",
        what="whoever made the log says after a loss that nothing was acted on",
        file="shared/bus/provision.py",
        old="await _mark_new_log(js, *mark)",
        new="await _mark_new_log(js, *await Mark(js).read())",
        tests=(
            "tests/unit/shared/bus/test_log_stream.py::"
            "test_a_process_that_stalls_after_creating_the_log_does_not_claim_that_nothing_was_lost",
        ),
    ),
]
