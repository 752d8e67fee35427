"""Mutants of the promise `policed`: a pod beyond its slice ends, and no other does."""

from tests.mutants.mutant import Mutant

POLICING = "services/node_agent/strategies/policing.py"
TESTS = "tests/unit/services/node_agent"
CORE = f"{TESTS}/strategies/test_policing.py"
REAL = "tests/contract/enforcement/test_policing.py"

MUTANTS = [
    Mutant(
        name="frozen-at-once",
        what="a pod is frozen at its first sample beyond the grant",
        file=POLICING,
        old="FREEZE_SAMPLES = 2",
        new="FREEZE_SAMPLES = 1",
        tests=(f"{CORE}::test_the_first_sample_reports_the_second_freezes_and_the_third_ends",),
    ),
    Mutant(
        name="policed-by-its-own-count",
        what="a program that never loads the library is ended although it keeps to the grant",
        file=POLICING,
        old="one.seen_mib > one.granted_mib + slack_mib]",
        new="one.seen_mib > one.counted_mib + slack_mib]",
        tests=(f"{CORE}::test_what_counts_is_the_grant_and_the_slack_and_not_the_control_blocks",),
    ),
    Mutant(
        name="ended-without-a-freeze",
        what="a pod is ended by a sample that was taken while it ran",
        file=POLICING,
        old="was.ended or was.frozen_s is not None)",
        new="was.ended or now.samples >= FREEZE_SAMPLES)",
        tests=(f"{CORE}::test_the_first_sample_reports_the_second_freezes_and_the_third_ends",),
    ),
    Mutant(
        name="honest-pod-stays-frozen",
        what="a frozen pod that is within its grant again is not thawed",
        file=POLICING,
        old="msgspec.structs.replace(was, frozen_s=None, since_s=float",
        new="msgspec.structs.replace(was, since_s=float",
        tests=(f"{CORE}::test_a_frozen_pod_that_the_next_sample_finds_within_its_grant_is_thawed",),
    ),
    Mutant(
        name="frozen-for-ever",
        what="a pod stays frozen as long as its GPU does not answer",
        file=POLICING,
        old="now_s - was.frozen_s >= MAX_FROZEN_S",
        new="now_s - was.frozen_s >= FORGET_S",
        tests=(f"{CORE}::test_a_pod_does_not_stay_frozen_because_its_gpu_does_not_answer",),
    ),
    Mutant(
        name="silence-is-honest",
        what="a GPU that does not answer clears the pods on it",
        file=POLICING,
        old="if not was.gpus <= answering:",
        new="if False:",
        tests=(f"{CORE}::test_a_gpu_that_does_not_answer_proves_nothing",),
    ),
    Mutant(
        name="forgotten-between-samples",
        what="a pod that frees its memory between two samples is never frozen",
        file=POLICING,
        old="FORGET_S = 60.0",
        new="FORGET_S = 0.0",
        tests=(f"{CORE}::test_a_pod_that_frees_and_takes_again_is_frozen_at_once_and_begins_anew_after_a_minute",),
    ),
    Mutant(
        name="evictions-without-back-off",
        what="an eviction is asked for every 30 s for ever",
        file=POLICING,
        old="max(FIRST_AGAIN_S, 2 * wait_s)",
        new="max(FIRST_AGAIN_S, wait_s)",
        tests=(f"{CORE}::test_an_eviction_is_asked_for_at_growing_intervals",),
    ),
    Mutant(
        name="left-frozen-by-the-agent-before",
        what="a pod that an earlier agent has left frozen stays so",
        file="services/node_agent/police.py",
        old="thawed, failed = self._ender.freezer.thaw_all()",
        new="thawed, failed = (), {}",
        tests=(f"{REAL}::test_a_pod_that_an_earlier_agent_left_frozen_is_thawed",),
    ),
    Mutant(
        name="killed-and-frozen",
        what="a pod of cgroup v1 whose frozen processes have the signal is not thawed",
        file="services/node_agent/processes/killing.py",
        old="                signalled()",
        new="                pass",
        tests=(
            f"{TESTS}/processes/test_freezing.py::test_a_frozen_pod_is_killed_and_its_processes_end_with_the_thaw[v1]",
        ),
    ),
    Mutant(
        name="graphics-not-policed",
        what="memory of a graphics API does not count",
        file="services/node_agent/devices/usage.py",
        old="for key, used in graphics.items()",
        new="for key, used in ()",
        tests=(f"{TESTS}/devices/test_usage.py::test_processes_of_graphics_are_read_and_those_of_both_kinds_once",),
    ),
    Mutant(
        name="firm-pods-are-policed",
        what="a pod that did not ask for it gets a strategy that ends pods",
        file="shared/model/strategy.py",
        old="ISOLATION_RANK[self.promise] >= asked >= ISOLATION_RANK[self.only_from]",
        new="ISOLATION_RANK[self.promise] >= asked",
        tests=("tests/unit/shared/book/test_shares.py",),
    ),
    Mutant(
        name="limit-not-read-back",
        what="a container starts although the driver does not keep its limit",
        file="services/node_agent/devices/memory_limits.py",
        old="if found != limit_bytes:",
        new="if False:",
        tests=(f"{TESTS}/devices/test_memory_limits.py::test_a_limit_that_is_not_read_back_is_an_error",),
    ),
    Mutant(
        name="managed-memory-ignored",
        what="hard is offered although managed memory passes the driver's limit",
        file="services/node_agent/canary/verdict.py",
        old="passing.append(f",
        new="_ = (f",
        tests=(
            f"{TESTS}/canary/test_verdict.py"
            "::test_the_drivers_limit_counts_for_each_path_of_a_program_without_the_library",
        ),
    ),
    Mutant(
        name="reserved-time-promised-by-the-driver",
        what="a pod that reserves GPU time and asks for hard gets a strategy that holds memory alone",
        file="shared/model/strategy.py",
        old="not reserves_compute or of_time >= asked",
        new="True",
        tests=("tests/unit/shared/book/test_shares.py",),
    ),
    Mutant(
        name="unproven-limits-set",
        what="a policed slice gets a limit of the driver that the canary has seen fail",
        file="services/node_agent/driver_limits.py",
        old='(strategy.promise == "hard" or self._holds())',
        new="True",
        tests=(
            "tests/contract/enforcement/test_driver_limits.py"
            "::test_a_policed_pod_is_policed_alone_where_the_drivers_limit_is_not_proven",
        ),
    ),
    Mutant(
        name="leaderless-is-the-hosts",
        what="a process whose first thread has ended counts as the host's with cgroup v1, and is never ended",
        file="services/node_agent/processes/owner.py",
        old='fields(folder)[:1] != [b"Z"]:',
        new="True:",
        tests=(
            f"{TESTS}/processes/test_owner.py"
            "::test_a_process_whose_first_thread_has_ended_is_still_its_pods_and_is_killed[v1]",
        ),
    ),
    Mutant(
        name="one-that-stays-frozen-leaves-all",
        what="pods stay frozen because another one could not be thawed",
        file="services/node_agent/processes/freezing.py",
        old="failed[uid] = error",
        new="raise",
        tests=(f"{TESTS}/processes/test_freezing.py::test_a_pod_that_cannot_be_thawed_leaves_no_other_frozen",),
    ),
    Mutant(
        name="limit-not-set-when-proven",
        what="running policed pods keep the driver's limit that they had before the canary has proven it again",
        file="services/node_agent/strategy_service.py",
        old="await self._limits.refresh()\n                await say()",
        new="await say()",
        tests=(
            "tests/contract/enforcement/test_driver_limits.py"
            "::test_policed_pods_that_run_get_the_limit_when_the_canary_has_proven_it",
        ),
    ),
]
