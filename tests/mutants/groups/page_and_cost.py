"""Which users may read the live page, what it and /metrics show of what has ended, and what a slice costs."""

from tests.mutants.mutant import Mutant

_PAGE = "services/metrics/page/"
_SIGN_IN = "tests/unit/services/metrics/page/test_sign_in.py::"
_FLEET = "tests/unit/services/metrics/page/test_fleet.py::"
_ENDS = "tests/unit/services/metrics/test_missed_ends.py::"
_COST = "tests/unit/services/metrics/test_cost.py::"

MUTANTS = [
    Mutant(
        name="page-for-every-token",
        what="every token that the API server knows signs in, whatever its user may do",
        file=_PAGE + "sign_in/token_review.py",
        old='if not allowed.get("allowed"):',
        new="if False:",
        tests=(_SIGN_IN + "test_another_token_is_refused_with_what_to_do",),
    ),
    Mutant(
        name="page-for-refused-tokens",
        what="a token that the API server does not accept signs in",
        file=_PAGE + "sign_in/token_review.py",
        old='if not said.get("authenticated"):',
        new="if False:",
        tests=(_SIGN_IN + "test_another_token_is_refused_with_what_to_do",),
    ),
    Mutant(
        name="page-believes-any-proxy",
        what="the proxy's header is believed from every address",
        file=_PAGE + "sign_in/proxy.py",
        old="if not any(peer in network for network in self._networks):",
        new="if not self._networks:",
        tests=(_SIGN_IN + "test_the_proxys_header_is_believed_from_the_proxy_alone",),
    ),
    Mutant(
        name="page-under-any-name",
        what="the page without sign-in answers to a name that was made to resolve to loopback",
        file=_PAGE + "sign_in/none.py",
        old="if not is_loopback(name):",
        new="if not name:",
        tests=(_SIGN_IN + "test_a_name_that_was_made_to_resolve_to_loopback_is_refused",),
    ),
    Mutant(
        name="page-session-without-end",
        what="a session of the page never ends",
        file=_PAGE + "server.py",
        old="if user and self._monotonic() < end:",
        new="if user:",
        tests=("tests/unit/services/metrics/page/test_server.py::test_a_session_begins_with_a_token_and_ends",),
    ),
    Mutant(
        name="page-sign-ins-by-all-alone",
        what="one address can keep all others from signing in",
        file=_PAGE + "sign_in/limit.py",
        old="self._by_peer[peer] >= MAX_OF_ONE_PEER or ",
        new="",
        tests=("tests/unit/services/metrics/page/test_server.py::test_sign_ins_are_bounded_by_address_and_together",),
    ),
    Mutant(
        name="figures-without-end",
        what="placement's figures are shown for as long as it does not answer",
        file="services/metrics/core.py",
        old="answered_s is not None and self._monotonic() - answered_s <= FIGURES_KEPT_S",
        new="answered_s is not None",
        tests=(
            "tests/unit/services/metrics/test_core.py::"
            "test_placements_metrics_have_no_samples_before_its_first_answer_nor_long_after_the_last",
        ),
    ),
    Mutant(
        name="page-shows-ended-slices",
        what="a late enforcement brings an ended slice back onto the map",
        file=_PAGE + "fleet.py",
        old="        if event.grant_id in self._ended:\n            return\n",
        new="",
        tests=(_FLEET + "test_a_slice_is_gone_when_its_grant_has_ended_in_whatever_order_that_is_heard",),
    ),
    Mutant(
        name="page-trusts-foreign-numbers",
        what="a browser that outlived the server keeps what the earlier one said",
        file=_PAGE + "fleet.py",
        old="reset = since != 0 and not self._first <= since <= self.version",
        new="reset = since > self.version",
        tests=(_FLEET + "test_a_number_of_another_process_gets_everything_and_is_told_to_forget",),
    ),
    Mutant(
        name="cost-of-the-whole-slice",
        what="a slice that began before the period counts from its beginning",
        file="services/metrics/usage.py",
        old="- MAX(t.from_ms, :since_ms)) AS ms",
        new="- t.from_ms) AS ms",
        tests=(_COST + "test_only_the_part_of_a_slice_within_the_period_counts",),
    ),
    Mutant(
        name="cost-by-memory-alone",
        what="a slice costs its memory part, however much compute it has",
        file="services/metrics/usage.py",
        old='_SHARE = "MAX(x.compute_milli * 1000,',
        new='_SHARE = "MAX(0,',
        tests=(_COST + "test_the_book_equals_a_recomputation_from_the_events",),
    ),
    Mutant(
        name="cost-of-suspended-pods",
        what="a slice counts with what it began with, although it is suspended, resized or moved later",
        file="services/metrics/usage.py",
        old='if found is not None and found[0] < at_ms:\n            gpus = record.gpus or (("", 0, 0),)',
        new="if found is not None and found[0] < at_ms:\n            gpus = ()",
        tests=("tests/unit/services/metrics/test_usage.py::test_a_slice_counts_with_what_it_has_at_each_time",),
    ),
    Mutant(
        name="suspension-untold",
        what="an agent does not say what its slices have since they were suspended",
        file="services/node_agent/core.py",
        old="changed = slice_changes.after_suspensions(event.results,",
        new="changed = slice_changes.after_suspensions((),",
        tests=(
            "tests/unit/services/node_agent/test_suspensions.py::"
            "test_what_a_slice_has_is_told_when_it_is_suspended_and_when_it_has_all_back",
        ),
    ),
    Mutant(
        name="gone-nodes-are-idle",
        what="nodes that went while no metrics ran are counted as idle for ever",
        file="services/metrics/core.py",
        old="for node in counted if node not in self._inventories for",
        new="for node in counted if not node for",
        tests=(
            _COST + "test_a_node_that_went_while_no_metrics_ran_is_capacity_no_more_and_may_come_back_without_an_event",
        ),
    ),
    Mutant(
        name="cost-of-first-label",
        what="a pod keeps the label of its first decision",
        file="services/metrics/usage.py",
        old="WHERE (excluded.at_ms, excluded.value) > (at_ms, value)",
        new="WHERE 0",
        tests=(_COST + "test_a_pod_that_was_decided_twice_has_the_later_label_in_whatever_order_that_is_heard",),
    ),
    Mutant(
        name="missed-end-at-once",
        what="a grant that one look does not find has ended, also when a new leader has yet to hear of it",
        file="services/metrics/missed_ends.py",
        old="            if grant_id in before:\n",
        new="            if grant_id in before or before.setdefault(grant_id, now_s):\n",
        tests=(_ENDS + "test_a_grant_that_is_over_at_two_looks_in_a_row_ended_at_the_first",),
    ),
    Mutant(
        name="missed-end-remembers-for-ever",
        what="two looks that did not find a grant count although one between them did",
        file="services/metrics/missed_ends.py",
        old="before, self._first = self._first, {}",
        new="before = self._first",
        tests=(_ENDS + "test_a_grant_that_is_there_again_begins_anew",),
    ),
    Mutant(
        name="events-of-another-stream",
        what="a stream that was made anew is followed from a place in the one before",
        file="shared/bus/follow.py",
        old=' or self._created not in ("", info.created):',
        new=":",
        tests=(
            "tests/unit/shared/bus/test_follow.py::"
            "test_a_recreated_stream_that_has_grown_beyond_the_place_is_known_by_its_time",
        ),
    ),
    Mutant(
        name="events-at-one-pace",
        what="an event is lost when its stream is away for a minute",
        file="shared/bus/events.py",
        old="min(RESEND_MOST_S, RESEND_AFTER_S * (1 << self.attempts))",
        new="RESEND_AFTER_S",
        tests=("tests/unit/shared/bus/test_nats_bus.py::test_an_event_is_sent_again_ever_more_rarely_for_ten_minutes",),
    ),
    Mutant(
        name="a-forgetting-that-fails-stays-open",
        what="a failure to forget leaves its transaction open, and no write begins after it",
        file="services/metrics/usage.py",
        old='            self._db.execute("ROLLBACK")  # or no transaction after it could begin\n',
        new="",
        tests=(
            "tests/unit/services/metrics/test_usage.py::test_a_failure_to_forget_does_not_keep_out_the_writes_after_it",
        ),
    ),
    Mutant(
        name="unread-answers-stay",
        what="a client that does not read keeps its answer for ever",
        file="shared/service/http.py",
        old="asyncio.timeout(ANSWER_TIMEOUT_S)",
        new="asyncio.timeout(None)",
        tests=("tests/unit/shared/service/test_http.py::test_a_client_that_does_not_read_is_cut_off",),
    ),
]
