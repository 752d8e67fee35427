"""Mutants of the strategy `mps`: limits of clients, and daemons that are there when they are needed and not otherwise."""

from tests.mutants.mutant import Mutant

FOLDER = "services/node_agent/mps"
PLAN, DAEMON, SUPERVISOR = (f"{FOLDER}/{name}.py" for name in ("plan", "daemon", "supervisor"))
DRIVER = "services/node_agent/strategies/mps.py"
TESTS = "tests/unit/services/node_agent"
CORE = f"{TESTS}/mps/test_plan.py"
HOST = f"{TESTS}/mps/test_daemon.py"
REAL = "tests/contract/enforcement/test_mps.py"

MUTANTS = [
    Mutant(
        name="mps-percentage-rounded-up",
        what="the percentages of a GPU's clients add up to more than all of it",
        file=DRIVER,
        old="max(1, part.compute_milli // 10)",
        new="max(1, -(-part.compute_milli // 10))",
        tests=(f"{TESTS}/strategies/test_base.py::test_a_client_of_mps_has_its_share_as_a_cap_that_is_never_more",),
    ),
    Mutant(
        name="mps-slices-take-turns",
        what="the interposer's gate holds clients of MPS back",
        file="services/node_agent/strategies/rules.py",
        old="    if mine.concurrent:",
        new="    if False:",
        tests=(f"{TESTS}/strategies/test_rules.py::test_concurrent_slices_have_memory_limits_and_wait_for_nobody",),
    ),
    Mutant(
        name="mps-for-pods-that-ask-for-protection",
        what="a pod with isolation firm shares faults with its neighbours",
        file="shared/model/strategies.py",
        old='Strategy(name="mps", promise="soft"',
        new='Strategy(name="mps", promise="firm"',
        tests=("tests/unit/shared/book/test_shares.py",),
    ),
    Mutant(
        name="mps-for-two-gpus",
        what="a container with parts of two GPUs is placed where it can be a client of one daemon",
        file="shared/book/shares.py",
        old="(strategy.concurrent and (ask.count > 1 or ask.bursts))",
        new="(strategy.concurrent and (ask.count > 2 or ask.bursts))",
        tests=("tests/unit/shared/book/test_shares.py",),
    ),
    Mutant(
        name="mps-daemon-outlives-its-slices",
        what="a daemon without slices stays",
        file=PLAN,
        old='return Decision("stop" if seen.control or seen.servers or memory is not None else None, None)',
        new="return Decision(None, None)",
        tests=(f"{CORE}::test_the_first_slice_of_a_gpu_starts_its_daemon_and_the_last_one_ends_it",),
    ),
    Mutant(
        name="mps-without-back-off",
        what="a daemon that does not start is started in every round",
        file=PLAN,
        old="    if now_s < known.retry_s:",
        new="    if False:",
        tests=(f"{CORE}::test_a_daemon_that_has_ended_is_told_once_and_started_again_with_a_back_off",),
    ),
    Mutant(
        name="mps-fault-keeps-the-gpu",
        what="a client that does not end after a fault keeps the GPU from all others",
        file=PLAN,
        old="    if now_s - found.fault_s < FAULT_PATIENCE_S:",
        new="    if True:",
        tests=(f"{CORE}::test_a_fault_is_told_once_and_ends_the_server_only_if_its_clients_do_not_end",),
    ),
    Mutant(
        name="mps-end-unseen-by-the-next-agent",
        what="the end of a daemon while no agent runs is not told",
        file=SUPERVISOR,
        old="uuid: Memory(control=known.control, server=known.server) for",
        new="uuid: Memory() for",
        tests=(f"{REAL}::test_a_daemon_that_ends_while_no_agent_runs_is_told",),
    ),
    Mutant(
        name="mps-beside-other-slices",
        what="an MPS server comes to a GPU on which slices take turns",
        file=SUPERVISOR,
        old="        if others:",
        new="        if False:",
        tests=(f"{REAL}::test_slices_of_other_strategies_share_no_gpu_with_mps",),
    ),
    Mutant(
        name="mps-node-offers-advisory",
        what="a node with MPS gives parts that nothing limits",
        file=SUPERVISOR,
        old='if one.unit != "part" or one.concurrent}',
        new='if one.unit != "part" or one.promise == "soft"}',
        tests=(f"{REAL}::test_mps_is_offered_alone_once_the_agent_has_tried_it",),
    ),
    Mutant(
        name="mps-grant-by-what-is-taken-back",
        what="a container starts by a strategy that its node has taken back",
        file="services/node_agent/gate.py",
        old="not (strategy.always_offered and inventory is not None)",
        new="True",
        tests=(f"{REAL}::test_slices_of_other_strategies_share_no_gpu_with_mps",),
    ),
    Mutant(
        name="mps-daemon-of-a-container",
        what="the agent ends a container's process that passes for a daemon",
        file=DAEMON,
        old="""return of is not None and of.pod_uid in ("", "" if own is None else own.pod_uid)""",
        new="return True",
        tests=(f"{HOST}::test_a_container_cannot_have_its_processes_ended_in_place_of_a_daemons",),
    ),
    Mutant(
        name="mps-tried-on-a-gpu-that-was-given-meanwhile",
        what="the proof of MPS runs on a GPU whose slice has come while the canary ran",
        file=SUPERVISOR,
        old="        async with self._keeper.busy:\n            gpu = self._free_gpu()",
        new="        gpu = self._free_gpu()\n        async with self._keeper.busy:",
        tests=(f"{REAL}::test_mps_is_tried_on_a_gpu_that_is_still_free_when_the_canary_is_done",),
    ),
    Mutant(
        name="mps-daemon-of-an-interrupted-start",
        what="an end of the agent during a start leaves a daemon that nothing looks after",
        file=DAEMON,
        old="        except BaseException:",
        new="        except MpsError:",
        tests=(f"{REAL}::test_a_start_that_the_end_of_the_agent_interrupts_leaves_no_daemon",),
    ),
    Mutant(
        name="mps-daemon-without-guard",
        what="a daemon whose start was cut off has no guard under the next agent either",
        file=SUPERVISOR,
        old="                await self._daemon(uuid).adopt()",
        new="                pass",
        tests=(f"{REAL}::test_a_daemon_without_a_guard_gets_one_from_the_next_agent",),
    ),
    Mutant(
        name="mps-joined-by-other-slices",
        what="a slice that takes turns comes to a GPU with clients of MPS",
        file=SUPERVISOR,
        old="and gpu.uuid in self._memories:",
        new="and False:",
        tests=(
            f"{REAL}::test_a_node_that_is_named_no_more_keeps_other_slices_from_those_of_mps_and_then_ends_the_daemon",
        ),
    ),
    Mutant(
        name="mps-daemon-for-a-refused-slice",
        what="a slice that was refused brings a daemon to a GPU of others in the next round",
        file=SUPERVISOR,
        old="return first and bool(",
        new="return bool(",
        tests=(f"{REAL}::test_a_slice_that_was_refused_beside_others_brings_no_daemon_to_their_gpu",),
    ),
    Mutant(
        name="mps-start-while-hung",
        what="a container starts as a client of a daemon that does not answer",
        file=SUPERVISOR,
        old="            if known.hung_s is not None:",
        new="            if False:",
        tests=(f"{REAL}::test_no_slice_starts_while_the_daemon_does_not_answer",),
    ),
    Mutant(
        name="mps-daemon-started-by-the-end",
        what="an agent that ends starts daemons",
        file=SUPERVISOR,
        old="if starting or not self._needs(uuid):",
        new="if True:",
        tests=(f"{REAL}::test_an_agent_that_ends_starts_no_daemon",),
    ),
    Mutant(
        name="mps-one-lock-for-all-gpus",
        what="a start that hangs on one GPU holds up those on all others",
        file=SUPERVISOR,
        old=" = defaultdict(asyncio.Lock)",
        new=" = defaultdict(lambda one=asyncio.Lock(): one)",
        tests=(f"{REAL}::test_a_gpu_whose_server_hangs_keeps_no_slice_from_another_gpu",),
    ),
]
