"""R2 to R4: what is in the log is sent, at one version of the pod only, and a hold ends by evidence."""

from tests.mutants.mutant import Mutant

_HOLDS = "services/placement/protocol/holds.py"
_BINDING = "services/placement/protocol/bindings.py"
_BOOK = "shared/book/book.py"
_CORE = "tests/unit/services/placement/test_core.py::"
_BOOK_TESTS = "tests/unit/shared/book/test_book.py::"
_EXECUTORS = "tests/unit/services/watcher/test_executors.py::"
_BIND = '{"name": order.name, "uid": order.uid, "resourceVersion": order.resource_version}'

MUTANTS = [
    Mutant(
        name="binding-before-the-log",
        what="Bindings go out when their append is asked for, not when the log has it",
        file="services/placement/protocol/commit.py",
        old="        out += self._batcher.due(term, now)\n",
        new=(
            "        out += self._batcher.due(term, now)\n"
            "        out += [m.SendBinds(0, tuple(hold.bind() for hold in self._holds.values() if not hold.sequence))]\n"
        ),
        tests=(_CORE + "test_a_decision_is_in_the_log_before_its_binding_goes_out",),
    ),
    Mutant(
        name="late-hold-before-the-log",
        what="a hold that the log does not have yet is sent when it takes long",
        file=_HOLDS,
        old="if h.sequence and (at_once or",
        new="if (at_once or",
        tests=(_CORE + "test_a_hold_that_the_log_does_not_have_yet_is_not_sent_however_long_that_takes",),
    ),
    Mutant(
        name="resent-as-soon-as-ever",
        what="a Binding is sent again after five seconds however long Bindings take",
        file="services/placement/protocol/binding_time.py",
        old="return min(max(LEAST_S, self._mean_s + 4 * self._deviation_s), MOST_S)",
        new="return LEAST_S",
        tests=("tests/unit/services/placement/protocol/test_holds.py",),
    ),
    Mutant(
        name="resent-after-any-time",
        what="a Binding that took an hour once keeps the next one from being sent again",
        file="services/placement/protocol/binding_time.py",
        old="return min(max(LEAST_S, self._mean_s + 4 * self._deviation_s), MOST_S)",
        new="return max(LEAST_S, self._mean_s + 4 * self._deviation_s)",
        tests=("tests/unit/services/placement/protocol/test_holds.py",),
    ),
    Mutant(
        name="repeated-binding-is-sent-twice",
        what="an order that is under way is sent beside itself when it is repeated",
        file="services/watcher/executors/batches.py",
        old="        task = self._under_way.get(bind)\n",
        new="        task = None\n",
        tests=(_EXECUTORS + "test_an_order_that_is_repeated_while_it_is_under_way_is_sent_once",),
    ),
    Mutant(
        name="a-bound-pod-is-sent",
        what="a Binding of a pod that is known to be bound goes to the API server",
        file="services/watcher/executors/bindings.py",
        old="        if pod is not None and pod.spec.node_name:\n",
        new="        if False:\n",
        tests=(_EXECUTORS + "test_a_pod_that_is_bound_already_is_not_sent_to_the_server",),
    ),
    Mutant(
        name="voided-hold-is-sent",
        what="a hold that was voided while its append was under way is sent",
        file=_HOLDS,
        old="            if hold is None or hold.decision is not decision:\n                continue",
        new=(
            "            if hold is None:\n"
            "                hold = Hold(decision, now)\n"
            "            if False:\n"
            "                continue"
        ),
        tests=(_CORE + "test_a_hold_voided_before_its_append_is_acknowledged_sends_no_binding",),
    ),
    Mutant(
        name="grant-without-its-sequence",
        what="a grant on a pod does not say which record of the log it is from",
        file=_HOLDS,
        old="encode_grant(msgspec.structs.replace(d.grant, sequence=self.sequence))",
        new="encode_grant(d.grant)",
        tests=(_CORE + "test_a_decision_is_in_the_log_before_its_binding_goes_out",),
    ),
    Mutant(
        name="binding-without-version",
        what="a Binding does not name the pod's resourceVersion",
        file="shared/kube/binding_writes.py",
        old=_BIND,
        new='{"name": order.name, "uid": order.uid}',
        tests=(_EXECUTORS + "test_a_pod_that_is_not_the_one_that_was_decided_is_not_bound",),
    ),
    Mutant(
        name="binding-without-uid",
        what="a Binding does not name the pod's uid",
        file="shared/kube/binding_writes.py",
        old=_BIND,
        new='{"name": order.name, "resourceVersion": order.resource_version}',
        tests=(_EXECUTORS + "test_a_pod_that_is_not_the_one_that_was_decided_is_not_bound",),
    ),
    Mutant(
        name="conflict-ends-the-hold",
        what="a Binding that is answered by 409 ends its hold, although it may be an earlier try that succeeded",
        file=_BINDING,
        old='        if answer.outcome in ("unknown", "throttled"):\n',
        new=(
            '        if answer.outcome == "conflict":\n'
            "            self._holds.pop(answer.uid, None)\n"
            "            self._book.unhold(answer.uid)\n"
            '        elif answer.outcome in ("unknown", "throttled"):\n'
        ),
        tests=(_CORE + "test_no_answer_to_a_binding_ends_its_hold",),
    ),
    Mutant(
        name="refusal-ends-the-hold",
        what="a Binding that is refused ends its hold at once, while it is not yet certain that no other try succeeds",
        file=_BINDING,
        old="            self._queue.pause(answer.uid, now)\n",
        new=(
            "            self._queue.pause(answer.uid, now)\n"
            "            self._holds.pop(answer.uid, None)\n"
            "            self._book.unhold(answer.uid)\n"
        ),
        tests=(_CORE + "test_no_answer_to_a_binding_ends_its_hold",),
    ),
    Mutant(
        name="refused-binding-is-not-touched",
        what="a pod whose Binding was certainly not applied is never decided anew",
        file=_BINDING,
        old=(
'            return [\n'
'                binding_refused(self._book.pods[answer.uid], answer),\n'
'                *self.touch([(answer.uid, False)], term),\n'
'            ]\n'
),
        new='            return [binding_refused(self._book.pods[answer.uid], answer)]\n',
        tests=(_CORE + "test_a_binding_that_was_certainly_not_applied_is_decided_again_after_a_touch",),
    ),
    Mutant(
        name="answer-to-an-older-binding",
        what="an answer to an older Binding of a pod touches its present hold",
        file=_HOLDS,
        old="return hold if hold is not None and hold.decision.resource_version == answer.resource_version else None",
        new="return hold",
        tests=(_CORE + "test_an_answer_to_an_older_binding_does_not_affect_the_current_hold",),
    ),
    Mutant(
        name="hold-outlives-its-version",
        what="a hold stands on when its pod is seen unbound at another version",
        file=_BOOK,
        old='                changes.append(Change("void", uid, state.grant_id))\n                self.unhold(uid)\n',
        new="                pass\n",
        tests=(_CORE + "test_a_pod_seen_at_another_version_unbound_voids_its_hold_and_is_decided_at_the_new_one",),
    ),
    Mutant(
        name="bound-by-another-decision",
        what="a pod that is seen bound with another grant than the decided one does not free the decided one",
        file=_BOOK,
        old="            self.release(known.grant_id)\n            known = None\n",
        new="            known = None\n",
        tests=(_BOOK_TESTS + "test_a_pod_that_is_bound_by_another_decision_frees_the_one_that_was_decided",),
    ),
    Mutant(
        name="bound-without-a-grant",
        what="a pod that somebody else binds without a grant keeps the one that was decided",
        file=_BOOK,
        old="        if known is not None and (grant is None or grant.grant_id != known.grant_id):\n",
        new="        if known is not None and grant is not None and grant.grant_id != known.grant_id:\n",
        tests=(_BOOK_TESTS + "test_a_pod_that_another_scheduler_binds_without_a_grant_frees_the_decided_grant",),
    ),
    Mutant(
        name="edited-annotation-is-a-grant",
        what="an edit of the grant's annotation on a bound pod changes what is booked",
        file=_BOOK,
        old="        if state.seen_bound:\n            return [Change(",
        new="        if False:\n            return [Change(",
        tests=(_BOOK_TESTS + "test_an_edited_grant_annotation_on_a_bound_pod_changes_nothing",),
    ),
    Mutant(
        name="no-backpressure",
        what="decisions go on however many Bindings have not been seen",
        file="services/placement/protocol/commit.py",
        old="while not self._batcher.full and len(self._holds) < self._config.max_holds:",
        new="while not self._batcher.full:",
        tests=(_CORE + "test_holds_are_capped_and_continue_when_bindings_are_seen",),
    ),
]  # fmt: skip
