"""R7: the slices that are handed over on a GPU never exceed it."""

from tests.mutants.mutant import Mutant

GATE = "services/node_agent/gate.py"
GRANT_STORE = "services/node_agent/grant_store.py"
SUSPENSION = "services/node_agent/suspensions.py"
START_CHECKS = "services/node_agent/start_checks.py"
UNIT = "tests/unit/services/node_agent"
TEST = f"{UNIT}/test_core.py"
MIG = f"{UNIT}/test_gate_mig.py"
REFUSED = f"{TEST}::test_a_start_that_is_not_allowed_is_refused"
INSTANCES = f"{MIG}::test_a_mig_instance_is_handed_over_once_and_only_if_it_exists"

MUTANTS = [
    Mutant(
        name="gate-without-memory",
        what="the gate does not check memory",
        file=GATE,
        old="    if share.memory_mib > free:\n",
        new="    if False:\n",
        tests=(REFUSED,),
    ),
    Mutant(
        name="gate-without-compute",
        what="the gate does not check compute",
        file=GATE,
        old="    if share.compute_milli > WHOLE_GPU_MILLI - compute:\n",
        new="    if False:\n",
        tests=(REFUSED,),
    ),
    Mutant(
        name="gate-counts-the-last-slice-alone",
        what="the gate counts only one of several slices on a GPU",
        file=GATE,
        old="room[share.uuid] = (memory + share.memory_mib, compute + share.compute_milli)",
        new="room[share.uuid] = (share.memory_mib, share.compute_milli)",
        tests=(f"{TEST}::test_the_device_gate_counts_all_slices_on_a_gpu",),
    ),
    Mutant(
        name="gate-without-releasing-grants",
        what="the gate counts the shares of releasing grants as free",
        file=GRANT_STORE,
        old="for key, lease in self._leases.items() if key not in without]",
        new="for key, lease in self._leases.items() if key not in without "
        "and not self._known[lease.grant_id].releasing]",
        tests=(f"{TEST}::test_the_share_of_a_releasing_grant_is_not_free",),
    ),
    Mutant(
        name="gate-without-health",
        what="a slice of an unhealthy GPU is handed over",
        file=GATE,
        old='    if gpu.state == "unhealthy":\n',
        new="    if False:\n",
        tests=(REFUSED,),
    ),
    Mutant(
        name="gate-without-mig-mode",
        what="a share is handed over on a GPU in the wrong MIG mode",
        file=GATE,
        old="    if gpu.mig_enabled != (share.mig is not None):\n",
        new="    if False:\n",
        tests=(INSTANCES,),
    ),
    Mutant(
        name="gate-without-mig-slices",
        what="the gate lets MIG slices overlap",
        file=GATE,
        old="        if taken.get(share.uuid, 0) & _mask(share, gpu):\n",
        new="        if False:\n",
        tests=(INSTANCES,),
    ),
    Mutant(
        name="gate-counts-the-last-instance-alone",
        what="the gate counts only one of several MIG instances on a GPU",
        file=GATE,
        old="taken[share.uuid] = taken.get(share.uuid, 0) | _mask",
        new="taken[share.uuid] = _mask",
        tests=(f"{MIG}::test_the_device_gate_counts_all_mig_instances",),
    ),
    Mutant(
        name="start-without-mig-slices",
        what="a start is not checked against the MIG instances that are handed over",
        file=START_CHECKS,
        old="gate.occupied(others, node), gate.used_mig_slices(others, gpus)",
        new="gate.occupied(others, node), {}",
        tests=(f"{MIG}::test_the_device_gate_counts_all_mig_instances",),
    ),
    Mutant(
        name="gate-without-instances",
        what="a MIG instance is handed over that the GPU no longer has",
        file=GATE,
        old="        if not gpu.mig_on_demand and not any(_is(share.mig, instance) for instance in gpu.mig_instances):\n",
        new="        if False:\n",
        tests=(INSTANCES,),
    ),
    Mutant(
        name="strategy-not-offered-starts",
        what="a slice starts with a strategy that the node does not offer now",
        file=START_CHECKS,
        old="    if strategy_refusal is not None or known.is_client:",
        new="    if known.is_client:",
        tests=(
            f"{UNIT}/test_start_checks.py::test_a_strategy_no_longer_offered_starts_nothing_and_running_slices_go_on",
        ),
    ),
    Mutant(
        name="gate-without-cards",
        what="a network card is handed over to more pods than may have it",
        file="services/node_agent/cards.py",
        old="given[nic.name] >= nic.pods",
        new="False",
        tests=(f"{UNIT}/test_cards.py",),
    ),
    # --- what is given up and taken back ---------------------------------------------------------------------------
    Mutant(
        name="resumed-without-room",
        what="a suspended slice resumes with capacity that other slices have",
        file=SUSPENSION,
        old="""            why = (
                gate.capacity_refusal(share, gpus[share.uuid], room)
                if share.node == node and share.uuid in gpus
                else None
            )
""",
        new="            why = None\n",
        tests=(f"{UNIT}/test_suspensions.py::test_a_pod_cannot_resume_while_other_slices_have_its_share",),
    ),
    Mutant(
        name="free-before-it-is-suspended",
        what="suspended capacity is free before the slices have freed it",
        file=GRANT_STORE,
        old="applied=before.applied if before.applied == received.suspension else None,",
        new="applied=received.suspension,",
        tests=(f"{UNIT}/test_suspensions.py::test_suspended_capacity_is_free_only_after_the_slices_confirm",),
    ),
    Mutant(
        name="free-by-an-overtaken-suspension",
        what="the result of an overtaken suspension counts for the newer order",
        file=SUSPENSION,
        old="        if known is None or known.grant.suspension != task.suspension:\n",
        new="        if known is None:\n",
        tests=(f"{UNIT}/test_suspensions.py::test_the_result_of_an_overtaken_suspension_is_ignored",),
    ),
    Mutant(
        name="partial-checkpoint-not-restored",
        what="a partial checkpoint is never restored",
        file=SUSPENSION,
        old="            if result.is_partial:\n",
        new="            if False:\n",
        tests=(f"{UNIT}/test_suspensions.py::test_a_partial_checkpoint_frees_nothing_and_is_restored_later",),
    ),
    Mutant(
        name="half-restored-slice-is-free",
        what="memory counts as free although some of it may be back on the GPU",
        file=SUSPENSION,
        old="applied = None if goes_to_host(task.applied) else task.applied",
        new="applied = task.applied",
        tests=(f"{UNIT}/test_suspensions.py::test_a_failed_restore_of_a_checkpointed_pod_counts_its_whole_memory",),
    ),
    Mutant(
        name="checkpointed-pod-starts",
        what="a container of a checkpointed pod starts, with memory that other pods have",
        file=START_CHECKS,
        old="if goes_to_host(known.grant.suspension):",
        new="if False:",
        tests=(f"{UNIT}/test_suspensions.py::test_a_checkpointed_pod_frees_its_memory_and_starts_no_container",),
    ),
]
