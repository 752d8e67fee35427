"""R5: from a term to the lead. Which logs are trusted, which pods are touched, and who is excluded."""

from tests.mutants.mutant import Mutant

_TAKEOVER = "services/placement/protocol/recovery.py"
_CORE = "services/placement/core.py"
_TESTS = "tests/unit/services/placement/protocol/test_recovery.py::"
_SESSIONS = "tests/unit/services/placement/test_core_sessions.py::"
_LOST = (_TESTS + "test_a_log_that_has_lost_records_is_deleted_and_begins_higher_than_any_before",)
_UNTOUCHABLE = (_TESTS + "test_a_pod_that_cannot_be_touched_blocks_no_other_pod",)
_CLOSED = (
    "tests/unit/shared/bus/test_connection.py"
    "::test_what_is_published_to_a_closed_transport_of_uvloop_goes_out_on_the_next_connection"
)
_VOID = (_TESTS + "test_an_old_binding_gives_an_excluded_pod_no_gpu",)

_SESSIONS = "tests/unit/services/placement/test_core_sessions.py::"

MUTANTS = [
    # --- is the log whole -----------------------------------------------------------------------------------------
    Mutant(
        name="met-sequences-are-ignored",
        what="a log is trusted although a sequence as high as the session's term was met",
        file=_TAKEOVER,
        old="        if sequence_seen >= (since := self._elected_since or term):\n",
        new="        if (since := 0):\n",
        tests=_LOST,
    ),
    Mutant(
        name="met-sequence-equal-to-the-term",
        what="a log is trusted although the very number of the session's term was met before",
        file=_TAKEOVER,
        old="if sequence_seen >= (since := self._elected_since or term):",
        new="if sequence_seen > (since := self._elected_since or term):",
        tests=_LOST,
    ),
    Mutant(
        name="mark-above-the-term-is-no-loss",
        what="a log is trusted although a record as high as the session's term has been acted on, by its mark",
        file=_TAKEOVER,
        old="        if self.mark is not None and self.mark.sequence >= term:\n",
        new="        if False:\n",
        tests=_LOST,
    ),
    Mutant(
        name="missing-mark-is-no-loss",
        what="a log whose mark is gone is trusted",
        file=_TAKEOVER,
        old=(
'            return (\n'
'                "the NATS servers do not remember which record was the last: all of them were restarted, or the "\n'
'                "store is restored"\n'
),
        new=(
'            return "" and (\n'
'                "the NATS servers do not remember which record was the last: all of them were restarted, "\n'
'                "or the store is restored"\n'
),
        tests=(_TESTS + "test_an_empty_log_without_a_mark_may_have_lost_everything",),
    ),
    Mutant(
        name="marked-record-is-not-looked-for",
        what="a log is trusted that lacks the marked record",
        file=_TAKEOVER,
        old="        if self.mark.term and not self._has(self.mark):\n",
        new="        if False:\n",
        tests=_LOST,
    ),
    Mutant(
        name="begun-anew-again-and-again",
        what="a log that was just begun anew is deleted again, for its mark names no record",
        file=_TAKEOVER,
        old="        if self.mark.term and not self._has(self.mark):\n",
        new="        if not self._has(self.mark):\n",
        tests=(_TESTS + "test_a_log_that_was_just_recreated_is_not_deleted_again",),
    ),
    Mutant(
        name="any-record-is-the-marked-one",
        what="whatever record has the marked sequence is taken for the marked one",
        file=_TAKEOVER,
        old='        return term == mark.term and session in ("", mark.session)\n',
        new="        return mark.sequence in self._records\n",
        tests=(_TESTS + "test_a_record_that_got_the_marked_ones_sequence_after_a_loss_is_not_that_record",),
    ),
    Mutant(
        name="foreign-mark-is-the-own-one",
        what="the record of another session is taken for the marked one, as its term has the same number",
        file=_TAKEOVER,
        old='        return term == mark.term and session in ("", mark.session)\n',
        new="        return term == mark.term\n",
        tests=(_TESTS + "test_a_record_that_got_the_marked_ones_sequence_after_a_loss_is_not_that_record",),
    ),
    Mutant(
        name="grants-on-pods-are-not-asked",
        what="the sequences of grants that stand on pods do not count",
        file="services/placement/listing.py",
        old="if grant is not None and grant.sequence < SEQUENCE_MOST:",
        new="if False:",
        tests=(_TESTS + "test_a_pod_that_was_bound_by_a_record_that_the_log_lacks_shows_the_loss",),
    ),
    Mutant(
        name="watchers-sequence-is-not-asked",
        what="the sequence that the watcher has met does not count",
        file="services/placement/listing.py",
        old="self.log_sequence_seen, self.whole = max(self.log_sequence_seen, event.log_sequence_seen), True",
        new="self.whole = True",
        tests=_LOST,
    ),
    Mutant(
        name="watcher-forgets-orders",
        what="the watcher does not remember the sequence of an order to bind",
        file="services/watcher/executors/bindings.py",
        old="        self._core.saw_sequence(max(batch.sequence, batch.term))\n",
        new="",
        tests=("tests/unit/services/watcher/test_executors.py::test_no_more_binds_are_in_flight_than_allowed",),
    ),
    Mutant(
        name="lost-log-is-kept",
        what="a session leads on a log that has lost records",
        file="services/placement/takeover.py",
        old="        if lost:\n",
        new="        if False:\n",
        tests=_LOST,
    ),
    Mutant(
        name="begins-at-the-highest-known",
        what="a log that is begun anew begins at a number that was given already",
        file=_TAKEOVER,
        old="self.mark.sequence if self.mark is not None else 0) + 1\n",
        new="self.mark.sequence if self.mark is not None else 0)\n",
        tests=_LOST,
    ),
    Mutant(
        name="begins-above-the-term-only",
        what="a log that is begun anew begins below what a watcher has met",
        file=_TAKEOVER,
        old="return max(term, sequence_seen, self.mark.sequence if self.mark is not None else 0) + 1",
        new="return max(term, self.mark.sequence if self.mark is not None else 0) + 1",
        tests=_LOST,
    ),
    Mutant(
        name="begins-below-the-mark",
        what="a log that is begun anew begins below the marked record",
        file=_TAKEOVER,
        old="return max(term, sequence_seen, self.mark.sequence if self.mark is not None else 0) + 1",
        new="return max(term, sequence_seen) + 1",
        tests=_LOST,
    ),
    # --- touching -------------------------------------------------------------------------------------------------
    Mutant(
        name="nobody-is-touched",
        what="pending pods are not touched although the log may lack decisions",
        file="services/placement/takeover.py",
        old="        if self.recovery.ready:\n",
        new="        if True:\n",
        tests=(_SESSIONS + "test_without_a_complete_log_every_pending_pod_is_touched_before_anything_is_decided",),
    ),
    Mutant(
        name="seen-below-the-newest-term",
        what="what pods have seen is compared with the session's own term, which dead takeovers have made higher",
        file=_TAKEOVER,
        old="if sequence_seen >= (since := self._elected_since or term):",
        new="if sequence_seen >= (since := term):",
        tests=(_TESTS + "test_what_pods_have_seen_shows_a_loss_however_many_takeovers_have_ended_early_since",),
    ),
    Mutant(
        name="a-renewal-counts-as-a-takeover",
        what="orders of a renewed term that has no ready yet count as those of a log that was lost",
        file=_TAKEOVER,
        old='                if record.reason != "renewed":\n',
        new="                if True:\n",
        tests=(_TESTS + "test_a_renewed_term_has_sent_orders_before_its_ready",),
    ),
    Mutant(
        name="a-takeover-before-the-ready-counts",
        what="a takeover that ended early before the last complete ready makes later orders look lost",
        file=_TAKEOVER,
        old="self.ready, self._excluded_before, self._elected_since = True, excluded, 0",
        new="self.ready, self._excluded_before = True, excluded",
        tests=(_TESTS + "test_what_was_seen_before_a_complete_ready_shows_no_loss",),
    ),
    Mutant(
        name="a-dead-takeover-hides-the-ready",
        what="a leader that ended before its ready makes the next one touch every pending pod",
        file=_TAKEOVER,
        old="                self._newest_term, excluded = sequence, {}\n",
        new="                self._newest_term, excluded, self.ready = sequence, {}, False\n",
        tests=(_TESTS + "test_a_leader_that_died_before_its_ready_has_decided_nothing",),
    ),
    Mutant(
        name="foreign-ready-counts",
        what="a ready that names another term than the newest makes the log complete",
        file=_TAKEOVER,
        old="                if record.term == self._newest_term and not record.more:\n",
        new="                if not record.more:\n",
        tests=(_TESTS + "test_a_ready_that_names_another_term_than_the_newest_does_not_count",),
    ),
    Mutant(
        name="decides-while-touching",
        what="pods are decided while others are still to be touched",
        file=_CORE,
        old=(
            '        if self.phase != "leading":\n'
            "            return\n"
            "        if self._hearing.delays_all(now):"
        ),
        new=(
            '        if self.phase not in ("leading", "touching"):\n'
            "            return\n"
            "        if self._hearing.delays_all(now):"
        ),
        tests=(_TESTS + "test_no_pod_is_decided_while_others_are_still_to_be_touched",),
    ),
    Mutant(
        name="touched-at-once",
        what="pods count as touched as soon as the touch is ordered",
        file=_TAKEOVER,
        old="        return not self._touching\n",
        new="        return True\n",
        tests=(_SESSIONS + "test_without_a_complete_log_every_pending_pod_is_touched_before_anything_is_decided",),
    ),
    Mutant(
        name="touched-at-the-same-version",
        what="a pod that is seen at the version it had counts as touched",
        file=_TAKEOVER,
        old="if state.uid in asked and asked[state.uid].version != state.pod.metadata.resource_version:",
        new="if state.uid in asked:",
        tests=(_TESTS + "test_a_pod_seen_at_the_version_it_had_has_not_moved",),
    ),
    Mutant(
        name="touch-is-said-once",
        what="a touch that got lost is not said again",
        file=_TAKEOVER,
        old="late, excluded = _due(self._touching, now), _due(self._excluded, now)",
        new="late, excluded = list[str](), _due(self._excluded, now)",
        tests=(_SESSIONS + "test_a_touch_is_repeated_until_the_pod_is_seen_to_have_moved",),
    ),
    Mutant(
        name="touch-is-not-under-its-version",
        what="two touches of a pod write the same token, so that the second changes nothing",
        file=_TAKEOVER,
        old='token=f"{term}-{meta.resource_version}"',
        new='token="touched"',
        tests=(_TESTS + "test_a_touch_of_a_later_term_or_version_writes_something_else",),
    ),
    # --- taking over a complete log -------------------------------------------------------------------------------
    Mutant(
        name="repeated-append-hides-a-younger-decision",
        what="of a pod the decision that stands last in the log counts, whatever version it is of",
        file=_TAKEOVER,
        old="                self._replayed[decision.uid, decision.resource_version] = (sequence, decision)\n",
        new=(
            "                self._replayed = {k: v for k, v in self._replayed.items() if k[0] != decision.uid}\n"
            "                self._replayed[decision.uid, decision.resource_version] = (sequence, decision)\n"
        ),
        tests=(_SESSIONS + "test_an_append_that_was_repeated_behind_a_younger_decision_does_not_hide_it",),
    ),
    Mutant(
        name="decision-at-another-version-is-adopted",
        what="a logged decision is re-adopted though its pod has moved on",
        file=_TAKEOVER,
        old="        return self._replayed.get((state.uid, state.pod.metadata.resource_version))\n",
        new="        return next((found for (uid, _), found in self._replayed.items() if uid == state.uid), None)\n",
        tests=(_SESSIONS + "test_a_logged_decision_is_not_re_adopted_if_the_pods_version_has_changed",),
    ),
    Mutant(
        name="decisions-are-not-adopted",
        what="a new leader knows nothing of what the log says is on its way",
        file="services/placement/takeover.py",
        old='        self._book.hold(state.uid, decision.node, decision.grant)\n',
        new='        return\n',
        tests=(
            _SESSIONS
            + "test_decisions_of_a_complete_log_are_re_adopted_and_resent_if_the_pods_version_is_unchanged",
        ),
    ),
    Mutant(
        name="open-holds-are-not-logged-again",
        what="open holds are not written again by a new term",
        file="services/placement/takeover.py",
        old='        self._owe(self._holds.values(), self.recovery.to_hear)\n',
        new='        self._owe([], self.recovery.to_hear)\n',
        tests=(_SESSIONS + "test_open_holds_are_logged_again_under_the_new_term_before_ready",),
    ),
    Mutant(
        name="renewal-does-not-log-open-holds",
        what="open holds are not written again by a renewed term, and age away",
        file="services/placement/takeover.py",
        old='[hold for hold in self._holds.values() if hold.sequence]',
        new='[]',
        tests=(_SESSIONS + "test_a_renewed_term_logs_open_holds_and_ready_again",),
    ),
    Mutant(
        name="ready-before-open-holds",
        what="ready is written before the open holds that it speaks of",
        file="services/placement/protocol/write_batcher.py",
        old="            return [self.append(self.owed.pop(0))]\n",
        new="            return [self.append(self.owed.pop())]\n",
        tests=(_SESSIONS + "test_open_holds_are_logged_again_under_the_new_term_before_ready",),
    ),
    # --- pods that cannot be touched ------------------------------------------------------------------------------
    Mutant(
        name="excluded-at-the-first-refusal",
        what="one refused touch excludes a pod",
        file=_TAKEOVER,
        old="EXCLUDE_AFTER_REFUSALS = 3\n",
        new="EXCLUDE_AFTER_REFUSALS = 1\n",
        tests=(_TESTS + "test_one_refusal_excludes_no_pod",),
    ),
    Mutant(
        name="excluded-by-uncertain-answers",
        what="answers that are no refusal exclude a pod",
        file="services/placement/takeover.py",
        old='        if answer.outcome != "refused" or not self.recovery.refused(answer.uid):\n',
        new="        if not self.recovery.refused(answer.uid):\n",
        tests=(_TESTS + "test_other_outcomes_exclude_no_pod",),
    ),
    Mutant(
        name="never-excluded",
        what="a pod that cannot be touched holds up the takeover for ever",
        file=_TAKEOVER,
        old="        asked.refusals += 1\n",
        new="",
        tests=_UNTOUCHABLE,
    ),
    Mutant(
        name="excluded-pod-is-placed",
        what="an excluded pod is placed at the version at which a Binding of the past may still succeed",
        file="services/placement/takeover.py",
        old="        state.excluded = why\n",
        new="",
        tests=_UNTOUCHABLE,
    ),
    Mutant(
        name="excluded-pod-hears-nothing",
        what="an excluded pod is not told so by an Event",
        file="services/placement/takeover.py",
        old='        out = self._binding.excluded(state)\n',
        new='        out: list[m.Command] = []\n',
        tests=(_TESTS + "test_an_excluded_pod_gets_a_reason_and_kerf_why_states_it",),
    ),
    Mutant(
        name="excluded-for-ever",
        what="a pod stays excluded when it has moved",
        file="shared/book/book.py",
        old='            state.excluded = ""  # at this version',
        new="            pass  # at this version",
        tests=(_TESTS + "test_an_excluded_pod_is_touched_again_ever_more_rarely_and_placed_when_it_has_moved",),
    ),
    Mutant(
        name="excluded-pod-is-not-touched-again",
        what="an excluded pod is never touched again",
        file=_TAKEOVER,
        old="((self._touching, late), (self._excluded, excluded))",
        new="((self._touching, late),)",
        tests=(_TESTS + "test_an_excluded_pod_is_touched_again_ever_more_rarely_and_placed_when_it_has_moved",),
    ),
    Mutant(
        name="deleted-pod-stays-excluded",
        what="an excluded pod that is gone is still touched",
        file=_TAKEOVER,
        old="        self._touching.pop(uid, None)\n        self._excluded.pop(uid, None)\n",
        new="        self._touching.pop(uid, None)\n",
        tests=(_TESTS + "test_an_excluded_pod_that_is_deleted_is_forgotten",),
    ),
    Mutant(
        name="ready-does-not-name-the-excluded",
        what="a ready does not say who is excluded, so that the next leader places them",
        file="services/placement/protocol/hearing.py",
        old="        self._logged = to_hear\n",
        new="        self._logged, excluded = to_hear, {}\n",
        tests=(_TESTS + "test_a_successor_excludes_what_its_predecessor_excluded",),
    ),
    Mutant(
        name="renewal-forgets-the-excluded",
        what="the ready of a renewed term does not say who is excluded",
        file="services/placement/takeover.py",
        old='        self._owe([hold for hold in self._holds.values() if hold.sequence], self._hearing.left(now))\n',
        new='        held = [hold.decision for hold in self._holds.values() if hold.sequence]\n        self._batcher.owe(self._hearing.ready(term, {}, frozenset()), held)\n',
        tests=(_TESTS + "test_a_renewed_term_remembers_the_excluded",),
    ),
    Mutant(
        name="successor-does-not-exclude",
        what="a successor places whom its predecessor has excluded",
        file="services/placement/takeover.py",
        old="                if self.recovery.is_excluded(state, now):\n",
        new="                if False:\n",
        tests=(_TESTS + "test_a_successor_excludes_what_its_predecessor_excluded",),
    ),
    Mutant(
        name="successor-excludes-who-has-moved",
        what="a successor excludes a pod that has moved since",
        file=_TAKEOVER,
        old="        if self._excluded_before.get(state.uid) != version:\n",
        new="        if state.uid not in self._excluded_before:\n",
        tests=(_TESTS + "test_a_successor_places_a_pod_that_has_moved_since_it_was_excluded",),
    ),
    Mutant(
        name="successor-does-not-touch-the-excluded",
        what="a successor does not try at once to touch whom its predecessor could not",
        file=_TAKEOVER,
        old="self._excluded[state.uid] = Touching(version, since=now)",
        new="self._excluded[state.uid] = Touching(version, now)",
        tests=(_TESTS + "test_a_successor_excludes_what_its_predecessor_excluded",),
    ),
    # --- grants that are void -------------------------------------------------------------------------------------
    Mutant(
        name="void-grant-of-an-excluded-pod-is-booked",
        what="a Binding of the past gives an excluded pod GPUs that may be another's",
        file="shared/book/book.py",
        old="            state.returned, state.suspension, grant = grant.grant_id, None, None\n",
        new="            pass\n",
        tests=_VOID,
    ),
    Mutant(
        name="exclusion-ends-with-the-binding",
        what="a pod that is read anew is not excluded any more, as when a Binding of the past succeeds",
        file="shared/book/book.py",
        old="state.seen_bound, state.excluded = old.seen_bound, old.excluded",
        new="state.seen_bound = old.seen_bound",
        tests=_VOID,
    ),
    Mutant(
        name="void-grant-leaves-the-pod-waiting",
        what="a pod that is bound with a void grant waits on its node for ever",
        file=_CORE,
        old="        if state.excluded and state.returned:\n",
        new="        if False:\n",
        tests=_VOID,
    ),
    Mutant(
        name="dead-pod-is-deleted-at-any-version",
        what="a pod with a void grant is deleted whatever has happened to it since",
        file="services/placement/protocol/releases.py",
        old=(
'        return [\n'
'            m.SendPatches(\n'
'                (\n'
'                    DeletePod(\n'
'                        uid=state.uid,\n'
'                        namespace=meta.namespace,\n'
'                        name=meta.name,\n'
'                        reason=note,\n'
'                        resource_version=meta.resource_version,\n'
'                    ),\n'
'                )\n'
'            )\n'
'        ]\n'
),
        new='        return [m.SendPatches((DeletePod(uid=state.uid, namespace=meta.namespace, name=meta.name, reason=note),))]\n',
        tests=_VOID,
    ),
    Mutant(
        name="bare-pod-is-deleted",
        what="a pod that nothing makes again is deleted for its void grant",
        file="services/placement/protocol/releases.py",
        old="        if state.controller is None:\n",
        new="        if False:\n",
        tests=(_TESTS + "test_a_bare_pod_that_is_bound_to_a_void_grant_stays_with_a_message_on_what_to_do",),
    ),
    Mutant(
        name="facts-before-their-time",
        what="facts are booked while the snapshot before them is still taken in",
        file="services/placement/listing.py",
        old="        if not self.whole or not isinstance(event, _DEFERRED):\n",
        new="        if True:\n",
        tests=(_SESSIONS + "test_a_large_snapshot_is_taken_in_part_by_part_and_what_comes_meanwhile_afterwards",),
    ),
    Mutant(
        name="second-snapshot-dropped",
        what="a snapshot that comes while the first one is taken in is lost",
        file="services/placement/listing.py",
        old="        self.later.append(event)\n",
        new="        if not isinstance(event, m.SnapshotSeen): self.later.append(event)\n",
        tests=(_SESSIONS + "test_a_second_snapshot_during_the_first_one_is_taken_in_after_it",),
    ),
    Mutant(
        name="leads-with-half-a-memory",
        what="policies learn from the first thousand pods alone",
        file="services/placement/engine/memory.py",
        old="return len(uids) == REMEMBERED_AT_ONCE",
        new="return False",
        tests=(_SESSIONS + "test_a_session_leads_when_policies_have_learned_from_all_placed_pods",),
    ),
    Mutant(
        name="unsent-order-ends-the-session",
        what="an order that the client cannot keep ends the leader's session",
        file="services/placement/leader/session.py",
        old="        except NotTaken as error:\n",
        new="        except ZeroDivisionError as error:\n",
        tests=("tests/unit/services/placement/leader/test_session.py::test_orders_that_the_bus_does_not_take_end_no_session",),
    ),
    Mutant(
        name="candidates-of-a-node-that-is-gone",
        what="candidates of a node that is gone are built again",
        file="services/preemptor/planning/victims.py",
        old="if known is not None and node is not None and self._differs(known",
        new="if known is not None and self._differs(known",
        tests=("tests/unit/services/preemptor/test_core_rounds.py::test_a_node_that_goes_with_its_pods_is_forgotten",),
    ),
    Mutant(
        name="excluded-for-half-a-minute",
        what="an excluded pod is touched again after half a minute at first",
        file=_TAKEOVER,
        old="TOUCH_AGAIN_S * (1 << doubled)",
        new="EXCLUDED_TOUCH_AGAIN_S",
        tests=(_TESTS + "test_an_excluded_pod_is_touched_again_ever_more_rarely_and_placed_when_it_has_moved",),
    ),
    Mutant(
        name="closed-transport-is-an-error",
        what="a write to a transport that uvloop has closed is an error of whoever publishes",
        file="shared/bus/client.py",
        old="        except ConnectionResetError as error:\n            await self._process_op_err",
        new="        except ZeroDivisionError as error:\n            await self._process_op_err",
        tests=(_CLOSED,),
    ),
    Mutant(
        name="nothing-flushes-any-more",
        what="uvloop's RuntimeError of a closed transport ends nats-py's flusher, and the connection stays as it is",
        file="shared/bus/transport.py",
        old="super().writelines(payload)  # type: ignore[no-untyped-call]\n        except RuntimeError as error:",
        new="super().writelines(payload)  # type: ignore[no-untyped-call]\n        except ZeroDivisionError as error:",
        tests=(_CLOSED,),
    ),
]  # fmt: skip
