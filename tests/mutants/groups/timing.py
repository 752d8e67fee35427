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

MUTANTS = [
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
