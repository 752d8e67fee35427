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
        new="else if (timeline[i].open) timeline[i].batch[timeline[i].next % DEPTH].sampled = 0;",
        tests=(f"{CHEATS}[waits]",),
    ),
    Mutant(
        name="sample-void-after-a-launch",
        what="a launch joins the sampled batch after a pause, and draws anew for it",
        file=TIMING,
        old="    if (l->batch[l->next % DEPTH].sampled) {",
        new="    if (0) {",
        tests=(f"{CHEATS}[adds]",),
    ),
    Mutant(
        name="destroyed-stream-in-use",
        what="a stream that is destroyed while launches are not timed keeps its batch",
        file="native/interposer/launch.c",
        old="if (!LIKELY(!__atomic_load_n(&timeline_count, __ATOMIC_RELAXED))) flush; ",
        new="if (!LIKELY(!is_timed()) && attached()) flush; ",
        tests=(f"{MISSING}test_a_stream_is_destroyed_while_launches_are_not_timed",),
    ),
    Mutant(
        name="legacy-stream-of-another-context",
        what="the end on the legacy stream is recorded in whatever context is current",
        file=TIMELINES,
        old="entered = (uintptr_t)b->stream <= 1 && ",
        new="entered = !b->stream && ",
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
        old="OF_STREAM(cuEventRecord, (CUevent event, CUstream stream), (event, stream))\n",
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
]
