"""Mutants of the measurement of GPU time, and of when there is none. The tests compile the sources of their own tree."""

from tests.mutants.mutant import Mutant

TIMELINES, TIMING = "native/interposer/timelines.c", "native/interposer/timing.c"
RULES, REGISTRY = "services/node_agent/strategies/rules.py", "services/node_agent/strategies/slice_registry.py"
SURGE = (
    "tests/interposer/test_idle_time.py::"
    "test_a_launch_longer_than_expected_is_charged_in_the_mean_where_no_call_tells_its_end"
)
GONE = (
    "tests/interposer/test_agent_gone.py::test_launches_are_timed_for_peers_that_the_agent_holds_only_once_it_is_gone"
)
ALONE = (
    "tests/unit/services/node_agent/strategies/test_rules.py::"
    "test_a_slice_has_its_gpus_for_itself_while_all_others_on_them_are_paused"
)
ORDER = (
    "tests/unit/services/node_agent/strategies/test_slice_registry.py::"
    "test_a_slice_learns_that_its_peer_is_resumed_before_the_peer_is"
)

MISSING = "tests/interposer/test_missing_ends.py::"
CHEATS = MISSING + "test_a_program_that_does_not_wait_for_its_sample_gets_no_more_than_its_share"
BEYOND = "tests/interposer/test_beyond.py::"
CHANGES = "tests/interposer/test_share.py::test_shares_hold_where_contexts_take_time_to_change"
LEASE = (
    "tests/unit/services/node_agent/strategies/test_slice_registry.py::"
    "test_no_slice_is_alone_while_its_peers_pause_is_not_written"
)

MUTANTS = [
    Mutant(
        name="sample-void-after-a-wait",
        what="a program that pauses and then waits does not pay for what its launches took longer than expected",
        file=TIMING,
        old="else if (timeline[i].open) no_sample_if_busy(&timeline[i], now_ns());",
        new="else if (timeline[i].open) timeline[i].batch[timeline[i].next % SLOTS].sampled = 0;",
        tests=(f"{CHEATS}[waits]",),
    ),
    Mutant(
        name="sample-void-after-a-launch",
        what="a launch joins the sampled batch after a pause, and draws anew for it",
        file=TIMING,
        old="    if (l->batch[l->next % SLOTS].sampled) {",
        new="    if (0) {",
        tests=(f"{CHEATS}[adds]",),
    ),
    Mutant(
        name="destroyed-stream-in-use",
        what="a stream that is destroyed while launches are not timed keeps its batch",
        file="native/interposer/timelines.h",
        old="if (!LIKELY(!__atomic_load_n(&timeline_count, __ATOMIC_RELAXED))) flush; ",
        new="if (must_time() == ALWAYS_TIMED) flush; ",
        tests=(f"{MISSING}test_a_stream_is_destroyed_while_launches_are_not_timed",),
    ),
    Mutant(
        name="legacy-stream-of-another-context",
        what="the end on the legacy stream is recorded in whatever context is current",
        file=TIMELINES,
        old="entered = (uintptr_t)stream <= 1 && ",
        new="entered = !stream && ",
        tests=(f"{MISSING}test_launches_on_the_legacy_stream_are_measured_whatever_context_is_current",),
    ),
    Mutant(
        name="answer-about-our-own-event",
        what="an end is recorded before the program asks whether its work is done",
        file="native/interposer/launch.c",
        old="        if (waits && !LIKELY(",
        new="        if (!LIKELY(",
        tests=(f"{MISSING}test_a_question_whether_work_is_done_is_answered_as_without_the_library",),
    ),
    Mutant(
        name="overlap-ended-by-a-slow-processor",
        what="a launch that may overlap the one before gets an event before it after 50 us",
        file=TIMING,
        old="(overlaps ? !has_paused(l, now) : now <= l->launched_ns + PAUSE_NS)",
        new="(now <= l->launched_ns + PAUSE_NS)",
        tests=(f"{MISSING}test_overlaps_are_kept_where_launching_takes_longer_than_a_pause",),
    ),
    Mutant(
        name="own-event-before-the-end",
        what="the end is recorded after the program's own event, so that its wait ends before it is known",
        file="native/interposer/stream_work.c",
        old="RECORDS(cuEventRecord, (CUevent event, CUstream stream), (event, stream))\n",
        new="",
        tests=(f"{MISSING}test_a_slice_that_waits_by_an_event_of_its_own_is_idle_at_once",),
    ),
    Mutant(
        name="alone-beside-a-pause-that-is-not-written",
        what="a slice counts as alone although its peer cannot read its pause",
        file=REGISTRY,
        old="        if not self._all_written():  #",
        new="        if False:  #",
        tests=(LEASE,),
    ),
    Mutant(
        name="excess-of-samples-free",
        what="what launches without their own end take longer than estimated is not charged",
        file=TIMELINES,
        old="* (SAMPLES - 1), b->lent);",
        new="* 0, b->lent);",
        tests=(SURGE,),
    ),
    Mutant(
        name="other-contexts-work-in-a-batch",
        what="an end is left out although another context of the process works on the GPU",
        file=TIMING,
        old="timeline[i].context && timeline[i].gpu == l->gpu) return 1;",
        new="timeline[i].context && timeline[i].gpu == l->gpu) break;",
        tests=(
            "tests/interposer/test_streams.py::test_the_program_continues_and_all_of_its_time_is_accounted[contexts]",
        ),
    ),
    Mutant(
        name="untimed-without-the-agent",
        what="launches beside held peers are not timed when the agent is gone, and the peers with its pause",
        file="native/interposer/launch.c",
        old="decided : !agent_is_alive(now_ns());",
        new="decided : 0;",
        tests=(f"{GONE}[False]",),
    ),
    Mutant(
        name="alone-beside-a-peer-that-runs",
        what="a slice counts as alone if any of its peers is paused",
        file=RULES,
        old="- {mine.key} <= held:",
        new="& held:",
        tests=(ALONE,),
    ),
    Mutant(
        name="resumed-before-its-peer-knows",
        what="a slice is resumed before its peers are told that they are not alone",
        file=REGISTRY,
        old="(before.paused and not after.paused) or ",
        new="",
        tests=(ORDER,),
    ),
    Mutant(
        name="small-shares-wait-for-ever",
        what="a slice saves more of its share than it may hold",
        file="native/interposer/gate.c",
        old="own_bucket[gpu].cap_ns < 2 * SAVED_NS ? own_bucket[gpu].cap_ns / 2 : SAVED_NS",
        new="SAVED_NS",
        tests=("tests/interposer/test_share.py::test_the_smallest_share_goes_on",),
    ),
    Mutant(
        name="end-unknown-after-a-wait",
        what="the end of work is not recorded before the program waits for it",
        file=TIMING,
        old="        if (lacks_end(&timeline[i])) end_of(&timeline[i]);\n        else if",
        new="        if",
        tests=("tests/interposer/test_low_tier.py::test_a_slice_that_has_waited_for_its_work_is_idle_at_once",),
    ),
    Mutant(
        name="room-for-one",
        what="where there is no room in flight each launch is a batch of its own",
        file="native/interposer/gate.c",
        old="        waits_for_room[gpu] = 1;\n",
        new="",
        tests=(f"{MISSING}test_a_long_queue_needs_few_events[35000-2000-1000]",),
    ),
    Mutant(
        name="begin-of-each-batch",
        what="each batch has an event for its begin, also right behind another one",
        file=TIMELINES,
        old=" && must_time() == ALWAYS_TIMED\n",
        new=" && must_time() == NEVER_TIMED\n",
        tests=(f"{MISSING}test_a_long_queue_needs_few_events[100000-50000-2000]",),
    ),
    Mutant(
        name="follows-other-work",
        what="a batch begins with the end of the one before it though other work is between them",
        file=TIMING,
        old=".stream, stream)) l->unbroken = 0;",
        new=".stream, stream)) continue;",
        tests=("tests/interposer/test_idle_time.py::test_work_between_launches_closes_the_batch[copy]",),
    ),
    Mutant(
        name="follows-untimed-work",
        what="a batch begins with the end of the one before it though launches between them were not timed",
        file=TIMELINES,
        old="        && l->generation == l->generation_before && must_time()",
        new="        && must_time()",
        tests=(f"{MISSING}test_what_ran_while_launches_were_not_timed_is_not_charged[30000]",),
    ),
    Mutant(
        name="last-batch-taken-twice",
        what="the launch that closes the last batch finds none and does not wait for one",
        file=TIMING,
        old="l->next + (uint32_t)l->open - l->oldest >= DEPTH);",
        new="l->next - l->oldest >= DEPTH);",
        tests=(f"{MISSING}test_a_long_queue_needs_few_events[100000-50000-2000]",),
    ),
    Mutant(
        name="launch-beyond-batches-not-measured",
        what="launches behind a stalled stream are charged by estimate for good, if all batches are in flight",
        file=TIMELINES,
        old="gate_correct(l->gpu, b->estimated_ns, span_ns > b->charged_ns ? span_ns - b->charged_ns : 0);",
        new="(void)span_ns;",
        tests=(f"{BEYOND}test_launches_behind_a_stall_get_no_more_than_the_share",),
    ),
    Mutant(
        name="pauses-without-use",
        what="the low tier changes contexts in pauses that are too short for it",
        file="native/interposer/gate.c",
        old="if (SWITCH_NS > may_delay_ns && !is_inside && m->now_ns + 4 * SWITCH_NS > m->quiet_until_ns) return 1;",
        new="",
        tests=(
            "tests/interposer/test_low_tier.py::"
            "test_short_requests_lose_less_than_seven_percent_of_p99_where_contexts_take_time_to_change",
        ),
    ),
    Mutant(
        name="change-forgotten-in-the-due-time",
        what="a slice tells its peers that its work is done before the GPU has changed to it",
        file=TIMELINES,
        old="l->changing_ns = orders->peer_count ? SWITCH_NS : 0;",
        new="l->changing_ns = 0;",
        tests=(CHANGES,),
    ),
    Mutant(
        name="turns-of-one-launch",
        what="launches take turns one by one, and each costs a change of contexts",
        file="native/interposer/gate.c",
        old="QUANTUM_NS = 6000000",
        new="QUANTUM_NS = 2000000",
        tests=(CHANGES,),
    ),
    Mutant(
        name="destroyed-context-charged-from-the-last-launches-on",
        what="of a context that is destroyed only the time since its last launches passed is charged",
        file=TIMING,
        old="if (since_ns && (!l->pending_ns || since_ns < left.since_ns)) left",
        new="if (since_ns) left",
        tests=(f"{BEYOND}test_a_context_that_is_destroyed_with_such_launches_is_charged_for_what_ran_before_them",),
    ),
    Mutant(
        name="batches-charged-again",
        what="launches beyond all batches are charged for the batches that ran meanwhile, too",
        file=TIMELINES,
        old="span_ns > b->charged_ns ? span_ns - b->charged_ns : 0",
        new="span_ns",
        tests=(f"{BEYOND}test_what_batches_were_charged_meanwhile_is_not_charged_again",),
    ),
    Mutant(
        name="unseen-beyond-batches",
        what="what a slice tells of its end leaves out the launches beyond all batches",
        file=TIMELINES,
        old="return l->pending_ns + (l->beyond.since_ns ? l->beyond.estimated_ns : 0); }",
        new="return l->pending_ns; }",
        tests=(f"{BEYOND}test_a_low_slice_does_not_run_beside_them",),
    ),
    Mutant(
        name="more-peers-than-a-control-block-names",
        what="no slice can be added or paused beside one that would yield to more than a control block names",
        file=RULES,
        old="        peers=_foremost(mine, before, on),\n",
        new="        peers=before,\n",
        tests=(
            "tests/unit/services/node_agent/strategies/test_slice_registry.py::"
            "test_a_slice_with_more_peers_than_its_control_block_names_is_no_obstacle",
        ),
    ),
    Mutant(
        name="peers-left-out-by-name",
        what="of too many peers those are left out that come last by name, on one GPU and whatever their share",
        file=RULES,
        old="set(sorted(before, key=lambda key: place[key])[: layout.MAX_PEERS])",
        new="set(sorted(before)[: layout.MAX_PEERS])",
        tests=(
            "tests/unit/services/node_agent/strategies/test_rules.py::"
            "test_a_slice_yields_on_each_of_its_gpus_to_those_that_come_first_if_there_are_too_many",
        ),
    ),
    Mutant(
        name="adoption-ends-with-one-slice",
        what="an agent does not start because the rules of one running slice cannot be written",
        file=REGISTRY,
        old="        while unwritten := self._publish_each():\n",
        new="        self._publish()\n        while unwritten := self._publish_each():\n",
        tests=(
            "tests/unit/services/node_agent/strategies/test_slice_registry.py::"
            "test_an_agent_starts_although_the_rules_of_a_slice_cannot_be_written",
        ),
    ),
]
