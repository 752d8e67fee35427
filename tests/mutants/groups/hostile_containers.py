"""Mutants of what the agent does against hostile containers."""

from tests.mutants.mutant import Mutant

AGENT = "services/node_agent"
TESTS = "tests/unit/services/node_agent"
ESCAPES = f"{TESTS}/strategies/test_escapes.py"
SURCHARGES = f"{TESTS}/strategies/test_surcharges.py"
KILLING = f"{TESTS}/processes/test_killing.py"

MUTANTS = [
    Mutant(
        name="bounds-for-running-pods",
        what="a pod that runs since an earlier version loses its gang and its protection by a new bound",
        file="shared/model/request_reader.py",
        old="    is_bound = bool(pod.spec.node_name)",
        new="    is_bound = False",
        tests=(
            "tests/unit/shared/model/test_request_reader.py::"
            "test_a_pod_that_runs_keeps_what_it_named_before_there_was_a_bound",
        ),
    ),
    Mutant(
        name="lists-without-bound",
        what="a pod names tens of thousands of GPU models, and the leader compares each GPU with each of them",
        file="shared/model/request_annotations.py",
        old='        if (count := text.count("|") + 1) > MAX_NAMES:\n',
        new="    if False:\n",
        tests=(
            "tests/unit/shared/model/test_request_reader.py::test_an_invalid_annotation_is_refused_with_what_to_write",
        ),
    ),
    Mutant(
        name="unknown-annotations-all-compared",
        what="each of thousands of unknown annotations is compared with those that there are",
        file="services/admission/manifest_warnings.py",
        old="    for key in unknown[:_WARNINGS_MOST]:\n",
        new="    for key in unknown:\n",
        tests=(
            "tests/unit/services/admission/test_core.py::"
            "test_thousands_of_unknown_annotations_are_counted_and_not_compared",
        ),
    ),
    Mutant(
        name="lease-waited-for",
        what="the agent waits for a lease on a container's file",
        file=f"{AGENT}/strategies/kept_file.py",
        old="os.open(path, _FLAGS | os.O_NONBLOCK)",
        new="os.open(path, _FLAGS)",
        tests=(f"{TESTS}/strategies/test_control_block.py::test_a_lease_is_reported_and_not_waited_for[counters]",),
    ),
    Mutant(
        name="files-only-read",
        what="the agent keeps a container's files open for reading, so that leases are granted",
        file=f"{AGENT}/strategies/kept_file.py",
        old="_FLAGS = os.O_RDWR",
        new="_FLAGS = os.O_RDONLY",
        tests=(f"{TESTS}/strategies/test_control_block.py",),
    ),
    Mutant(
        name="slack-of-a-pod",
        what="the slack for uncounted memory is for a pod and not for each of its processes",
        file=f"{AGENT}/strategies/escapes.py",
        old="return max(1, min(self.processes, MAX_PROCESSES))",
        new="return 1",
        tests=(f"{ESCAPES}::test_the_slack_is_for_each_process",),
    ),
    Mutant(
        name="slack-without-bound",
        what="a pod gets more slack with every process that it starts",
        file=f"{AGENT}/strategies/escapes.py",
        old="return max(1, min(self.processes, MAX_PROCESSES))",
        new="return max(1, self.processes)",
        tests=(f"{ESCAPES}::test_the_slack_is_for_a_bounded_number_of_processes",),
    ),
    Mutant(
        name="action-without-evidence",
        what="a pod is acted upon at the first report",
        file=f"{AGENT}/strategies/escapes.py",
        old="self._act_times.get(key, 0) >= ACT_SAMPLES",
        new="self._act_times.get(key, 0) >= MIN_SAMPLES",
        tests=(f"{ESCAPES}::test_an_action_needs_more_samples_than_a_report",),
    ),
    Mutant(
        name="action-beyond-the-learned-slack",
        what="a pod is acted upon because it hides more than its neighbours",
        file=f"{AGENT}/strategies/escapes.py",
        old="for key in _escapes(seen, self._slack_mib)",
        new="for key in found",
        tests=(f"{ESCAPES}::test_beyond_the_learned_slack_a_pod_is_reported_and_acted_upon_only_beyond_the_setting",),
    ),
    Mutant(
        name="surcharge-of-one-sample",
        what="memory that was allocated between two looks lowers the limit",
        file=f"{AGENT}/strategies/surcharges.py",
        old="memory_bytes = min(samples.get((of.uid, uuid), _NOTHING)) * MIB",
        new="memory_bytes = max(samples.get((of.uid, uuid), _NOTHING)) * MIB",
        tests=(f"{SURCHARGES}::test_memory_beyond_the_account_and_the_slack_is_charged_when_three_samples_show_it",),
    ),
    Mutant(
        name="rate-lowered-without-forging",
        what="overuse that an honest pod's counters show lowers the rate of its processes",
        file=f"{AGENT}/strategies/surcharges.py",
        old="(over.is_proven and over.is_forged)",
        new="over.is_proven",
        tests=(f"{SURCHARGES}::test_overuse_that_is_not_proven_or_that_the_counters_show_lowers_no_rate",),
    ),
    Mutant(
        name="unreadable-pod-checked",
        what="a pod whose counters cannot be read counts as one that bypasses its slices",
        file="services/node_agent/slice_observer.py",
        old="if one.uid not in apart]",
        new="if one.uid]",
        tests=(
            "tests/contract/enforcement/test_escapes.py::test_a_pod_whose_counters_cannot_be_read_hides_nothing[counters]",
        ),
    ),
    Mutant(
        name="forged-high-account-believed",
        what="an account above the grant hides memory beyond the grant",
        file=f"{AGENT}/strategies/surcharges.py",
        old="min(held.counted_mib, held.granted_mib)",
        new="held.counted_mib",
        tests=(f"{SURCHARGES}::test_an_account_above_the_grant_hides_nothing",),
    ),
    Mutant(
        name="surcharge-not-subtracted",
        what="the interposer ignores the surcharge",
        file="native/interposer/account.c",
        old="less < limit ? limit - less : 0;",
        new="less < limit ? limit : 0;",
        tests=("tests/interposer/test_memory.py::test_the_agents_surcharge_lowers_the_limit[cuMemAlloc]",),
    ),
    Mutant(
        name="private-rate-ignored",
        what="each process that forges gets the container's share",
        file="native/interposer/gate.c",
        old="return o->private_milli && o->private_milli < milli ? o->private_milli : milli;",
        new="return o->private_milli && o->private_milli > milli ? o->private_milli : milli;",
        tests=("tests/interposer/test_forged.py",),
    ),
    Mutant(
        name="kill-without-start-time",
        what="a process that has got a listed PID since is killed",
        file=f"{AGENT}/processes/killing.py",
        old="if not begun or started(pid) != begun or of is None",
        new="if of is None",
        tests=(f"{KILLING}::test_a_reused_pid_is_not_killed",),
    ),
    Mutant(
        name="kill-without-pod",
        what="a process of another pod is killed",
        file=f"{AGENT}/processes/killing.py",
        old=" or of is None or of.pod_uid != pod_uid:",
        new=" or of is None:",
        tests=(f"{KILLING}::test_a_process_of_another_pod_is_not",),
    ),
    Mutant(
        name="links-of-containers-followed",
        what="a link in a container leads the agent to a file of the host",
        file=f"{AGENT}/processes/container_files.py",
        old="resolve=_IN_ROOT | _NO_MAGICLINKS",
        new="resolve=0",
        tests=(f"{TESTS}/processes/test_container_files.py",),
    ),
    Mutant(
        name="room-left-in-the-file-system",
        what="the room for the agent's files stays, and containers can fill it",
        file=f"{AGENT}/strategies/slice_files.py",
        old="            yield\n        finally:\n            self.fit()\n",
        new="            yield\n        finally:\n            pass\n",
        tests=(f"{TESTS}/strategies/test_slice_files.py::test_a_container_cannot_extend_its_files[counters]",),
    ),
    Mutant(
        name="shrunk-by-a-forged-account",
        what="a slice is shrunk because its container says that it uses little",
        file=f"{AGENT}/strategies/suspension.py",
        old="if mib > keeps_mib * containers + uncounted_mib:",
        new="if mib < 0:",
        tests=("tests/contract/enforcement/test_suspension.py::test_a_pod_that_forges_a_low_account_is_not_shrunk",),
    ),
]
