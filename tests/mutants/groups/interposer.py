"""Mutants of the interposer's memory account. The tests compile the sources of their own tree."""

from tests.mutants.mutant import Mutant

MEMORY = "native/interposer/memory.c"
ACCOUNT = "native/interposer/account.c"
GRAPHS = "tests/interposer/test_graphs.py"
LIMIT = "tests/interposer/test_memory.py::test_every_allocation_call_gives_the_whole_limit_and_not_a_byte_more"
FAILS = "tests/interposer/test_driver_fails.py::test_an_allocation_that_the_driver_refuses_is_not_charged"

MUTANTS = [
    Mutant(
        name="refused-allocation-charged",
        what="a reservation is not undone when the driver fails",
        file=MEMORY,
        old="        if (result_) release(gpu_, charge_); ",
        new="        if (result_) {} ",
        tests=(f"{FAILS}[cuMemAlloc]",),
    ),
    Mutant(
        name="refused-pitch-charged",
        what="a reservation for pitched memory is not undone when the driver fails",
        file=MEMORY,
        old="    if (result) return release(gpu, asked), result;\n",
        new="    if (result) return result;\n",
        tests=(f"{FAILS}[cuMemAllocPitch]",),
    ),
    Mutant(
        name="refused-physical-charged",
        what="a reservation for physical memory is not undone when the driver fails",
        file="native/interposer/physical.c",
        old="    if (result) release(gpu, charge);\n    else table_put",
        new="    if (!result) table_put",
        tests=(f"{FAILS}[cuMemCreate]",),
    ),
    Mutant(
        name="freed-memory-charged",
        what="freed memory stays charged",
        file="native/interposer/kerf.h",
        old="else if (known_ && entry_.references <= 0) release(entry_.gpu, entry_.bytes);",
        new="else {}",
        tests=(f"{LIMIT}[cuMemAlloc]",),
    ),
    Mutant(
        name="allocation-not-reserved",
        what="the limit is not checked before the driver is called",
        file=MEMORY,
        old="        if (!reserve(gpu_, charge_)) return FULL;  ",
        new="        overdraw(gpu_, charge_);  ",
        tests=(f"{LIMIT}[cuMemAlloc]",),
    ),
    Mutant(
        name="physical-memory-not-reserved",
        what="the limit is not checked before physical memory is created",
        file="native/interposer/physical.c",
        old="    if (gpu < 0 || !reserve(gpu, charge)) return FULL;\n    result = real(handle",
        new="    if (gpu < 0) return FULL;\n    overdraw(gpu, charge);\n    result = real(handle",
        tests=(f"{LIMIT}[cuMemCreate]",),
    ),
    Mutant(
        name="limit-of-before-the-count",
        what="an allocation succeeds although the limit was lowered between its check and its count",
        file=ACCOUNT,
        old="    if (won && limit != KERF_ACCOUNT_BYTES && beyond_now(gpu, limit)) {",
        new="    if (won && beyond_now(gpu, limit) && 0) {",
        tests=(
            "tests/interposer/test_account.py::test_an_allocation_fails_if_the_limit_is_lowered_between_its_check_and_its_count",
        ),
    ),
    Mutant(
        name="repair-over-a-new-process",
        what="a repair removes the charge of a slot that a new process has taken meanwhile",
        file=ACCOUNT,
        old="    if (!slots_unchanged(dead, state)) return -1;\n",
        new="    (void)slots_unchanged(dead, state);\n",
        tests=(
            "tests/interposer/test_account.py::test_a_slot_that_a_new_process_takes_during_a_repair_keeps_its_charge",
        ),
    ),
    Mutant(
        name="gpu-of-others-unlimited",
        what="a container may allocate on a GPU that it does not have",
        file=MEMORY,
        old="        if (gpu_ < 0) return current_context() ? FULL : (call); ",
        new="        if (gpu_ < 0) return (call); ",
        tests=("tests/interposer/test_memory.py::test_a_gpu_that_the_container_does_not_have_gives_it_no_memory",),
    ),
    Mutant(
        name="graph-memory-not-reserved",
        what="the limit is not checked before a graph with allocations is instantiated",
        file="native/interposer/graphs.c",
        old="        if (!reserve(gpu, need->bytes[gpu])) return withdraw(need, gpu), 0;\n",
        new="        overdraw(gpu, need->bytes[gpu]);\n",
        tests=(f"{GRAPHS}::test_memory_of_graphs_is_charged_when_they_are_instantiated",),
    ),
    Mutant(
        name="destroyed-graph-charged",
        what="the memory that a destroyed graph might have taken stays charged",
        file="native/interposer/graphs.c",
        old="    if (!result) withdraw(&was, KERF_MAX_GPUS);\n",
        new="",
        tests=(f"{GRAPHS}::test_a_program_may_capture_an_allocation_in_every_step",),
    ),
    Mutant(
        name="kept-graph-memory-free",
        what="memory that the driver keeps for graphs is not charged once they are destroyed",
        file="native/interposer/graph_memory.c",
        old="bytes = now > known[gpu].promised ? now : known[gpu].promised;",
        new="bytes = now ? known[gpu].promised : known[gpu].promised;",
        tests=(f"{GRAPHS}::test_a_program_may_capture_an_allocation_in_every_step",),
    ),
    Mutant(
        name="promise-outlives-context",
        what="what executable graphs may take stays charged when their context has ended",
        file="native/interposer/context_accounting.c",
        old="        if (promised[gpu]) graph_memory_abandoned(gpu, promised[gpu]);\n",
        new="",
        tests=(f"{GRAPHS}::test_graphs_are_not_charged_any_more_when_their_context_has_ended",),
    ),
    Mutant(
        name="abandoned-graph-free",
        what="what a graph takes after the end of its context is not charged",
        file="native/interposer/graph_memory.c",
        old="        takes |= __atomic_load_n(&known[gpu].abandoned, __ATOMIC_RELAXED);\n",
        new="",
        tests=(f"{GRAPHS}::test_what_a_graph_takes_after_the_end_of_its_context_is_charged",),
    ),
    Mutant(
        name="query-asks-each-time",
        what="each query asks the driver for the memory of graphs",
        file="native/interposer/pool_accounting.c",
        old="    if (call == AFTER_QUERY && ",
        new="    if (call == AFTER_WAIT && ",
        tests=(f"{GRAPHS}::test_queries_do_not_ask_the_driver_for_the_memory_of_graphs_each_time",),
    ),
    Mutant(
        name="query-waits",
        what="a query waits while another thread allocates from a pool",
        file="native/interposer/pool_accounting.c",
        old="    if (!lock_pools_if(0)) {\n",
        new="    if (!lock_pools_if(1)) {\n",
        tests=(f"{GRAPHS}::test_a_query_does_not_wait_for_another_threads_allocation",),
    ),
    Mutant(
        name="stale-view",
        what="the memory of a dead process is shown as used",
        file="native/interposer/memory_view.c",
        old="    reclaim(); /* what dead processes held is free",
        new="    /* what dead processes held is free",
        tests=(
            "tests/interposer/test_view.py::test_the_memory_of_a_process_that_has_died_is_shown_as_free_at_once[cuda]",
        ),
    ),
    Mutant(
        name="imported-pointer-free",
        what="an allocation of another process's pool is not charged to the importer",
        file=MEMORY,
        old="    table_put(POINTER, *to, gpu, charge, current_context(), 1);\n    return result;\n}\n\n/* Memory of another",
        new="    release(gpu, charge);\n    return result;\n}\n\n/* Memory of another",
        tests=("tests/interposer/test_imports.py::test_memory_of_others_is_charged_while_it_is_imported[pool]",),
    ),
    Mutant(
        name="green-context-free",
        what="the primary context of a green context is not charged",
        file="native/interposer/green_contexts.c",
        old="    if (!primary || !context_record(primary, gpu, 1, paid)) release(gpu, paid);\n",
        new="    release(gpu, paid);\n",
        tests=("tests/interposer/test_green_contexts.py::test_the_primary_context_of_green_contexts_is_charged_once",),
    ),
    Mutant(
        name="collective-not-followed",
        what="a launch waits for its share while a kernel on another GPU spins until it comes",
        file="native/interposer/gate.c",
        old="tokens_of(gpu) > -FOLLOW_DEBT_NS; }",
        new="tokens_of(gpu) > 0; }",
        tests=("tests/interposer/test_waits.py::test_a_collective_of_two_gpus_takes_as_long_as_the_share_explains",),
    ),
    Mutant(
        name="first-launches-unknown",
        what="each launch of a new function waits until nothing is in flight",
        file="native/interposer/estimates.c",
        old="return ns || firsts < ENOUGH ? ns : first_ns;",
        new="return ns;",
        tests=(
            "tests/interposer/test_waits.py::test_first_launches_do_not_wait_for_an_idle_gpu_once_others_were_short",
        ),
    ),
    Mutant(
        name="divides-by-what-the-agent-changes",
        what="what a launch is divided by is read again after it was checked",
        file="native/interposer/gate.c",
        old="less_ns * MILLI / o->compute_milli;",
        new="less_ns * MILLI / orders->gpu[gpu].compute_milli;",
        tests=(
            "tests/interposer/test_account.py::"
            "test_launches_are_judged_while_the_agent_changes_what_the_slice_may_have",
        ),
    ),
    Mutant(
        name="each-opening-is-charged",
        what="memory of another process that is opened twice is charged twice, and is free at the first close",
        file="native/interposer/memory.c",
        old="if (result || gpu < 0 || table_add_reference(IMPORT, *to, 1, &again)) return result;",
        new="if (result || gpu < 0 || (again.bytes = 0)) return result;",
        tests=(
            "tests/interposer/test_imports.py::"
            "test_memory_that_is_opened_again_is_charged_once_until_it_is_closed_as_often",
        ),
    ),
]
