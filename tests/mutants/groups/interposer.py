"""Mutants of the interposer: its memory account, whose tests compile the sources of their own tree, and its files on
the host."""

from tests.mutants.mutant import Mutant

INSTALL = "services/node_agent/strategies/install.py"
INSTALLED = "tests/unit/services/node_agent/strategies/test_install.py"
DRIVERS = "tests/unit/services/node_agent/strategies/test_base.py"
MEMORY = "native/interposer/memory.c"
ACCOUNT = "native/interposer/account.c"
GRAPHS = "tests/interposer/test_graphs.py"
LIMIT = "tests/interposer/test_memory.py::test_every_allocation_call_gives_the_whole_limit_and_not_a_byte_more"
FAILS = "tests/interposer/test_driver_fails.py::test_an_allocation_that_the_driver_refuses_is_not_charged"

_MEMORY = "tests/interposer/test_memory.py::"

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
        old="if (gpu < 0 || table_add_reference(IMPORT, *to, 1, &again)) return result;",
        new="if (gpu < 0 || (again.bytes = 0)) return result;",
        tests=(
            "tests/interposer/test_imports.py::"
            "test_memory_that_is_opened_again_is_charged_once_until_it_is_closed_as_often",
        ),
    ),
    Mutant(
        name="formats-of-16-bits-count-half",
        what="arrays of UNORM_INT16 are charged one byte for a channel",
        file="native/interposer/memory.c",
        old="    case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5:",
        new="    case 0xc3: case 0xc4: case 0xc5: return 1;\n    case 0x02: case 0x09: case 0x10:",
        tests=(_MEMORY + "test_arrays_are_charged_what_the_device_has_for_their_format_and_layers",),
    ),
    Mutant(
        name="layers-shrink-with-the-level",
        what="the layers of a layered array are halved with each level",
        file="native/interposer/memory.c",
        old="const uint64_t depth = d->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) ? d->depth : d->depth >> level;",
        new="const uint64_t depth = d->depth >> level;",
        tests=(_MEMORY + "test_arrays_are_charged_what_the_device_has_for_their_format_and_layers",),
    ),
    Mutant(
        name="peers-memory-is-charged-to-the-current-gpu",
        what="memory of another process is charged to the GPU that is current, whichever has it",
        file="native/interposer/memory.c",
        old="        gpu = result ? -1 : gpu_of_pointer(*to);                                                       \\\n",
        new="        gpu = result ? -1 : current_gpu();                                                       \\\n",
        tests=(_MEMORY + "test_memory_of_a_peer_is_charged_to_the_gpu_that_has_it",),
    ),
    Mutant(
        name="no-pool-has-a-place",
        what="an allocation from no pool reserves memory at a free place",
        file="native/interposer/pools.c",
        old="if (!pool) return CUDA_ERROR_INVALID_VALUE;",
        new="",
        tests=(_MEMORY + "test_an_allocation_from_no_pool_is_refused_and_costs_nothing",),
    ),
    Mutant(
        name="look-ups-wait-for-each-other",
        what="a thread that looks the driver up waits for one that waits for the linker's lock",
        file="native/interposer/real_driver.c",
        old="first = !__atomic_exchange_n(&looking, 1, __ATOMIC_ACQ_REL);",
        new="first = ++looking > 0;",
        tests=(_MEMORY + "test_a_library_that_looks_the_driver_up_while_it_is_opened_holds_up_no_thread",),
    ),
    Mutant(
        name="green-contexts-have-no-settings",
        what="no heap can be had while a green context is current",
        file="native/interposer/context_accounting.c",
        old="    return i >= 0 ? i : place_of_primary(gpu);\n",
        new="    return gpu >= 0 ? i : -1; /* refuses all */\n",
        tests=("tests/interposer/test_green_contexts.py::test_a_heap_that_is_asked_for_in_a_green_context_is_charged",),
    ),
    Mutant(
        name="one-gate-for-launches-on-several-gpus",
        what="a launch on several GPUs passes the gate of the first alone",
        file="native/interposer/launch.c",
        old="    if (count > 1) return CUDA_ERROR_NOT_SUPPORTED;\n",
        new="",
        tests=(
            "tests/interposer/test_share.py::test_a_launch_on_several_gpus_at_once_is_refused_where_time_is_shared",
        ),
    ),
    Mutant(
        name="library-by-its-name",
        what="a library that a power loss has left empty is taken for installed",
        file=INSTALL,
        old="        if path.read_bytes() == content:\n",
        new="        if path.exists():\n",
        tests=(f"{INSTALLED}::test_what_a_power_loss_has_left_is_replaced",),
    ),
    Mutant(
        name="library-written-anew",
        what="the files that running containers have mounted are replaced at every start of the agent",
        file=INSTALL,
        old="        if path.read_bytes() == content:\n",
        new="        if False:\n",
        tests=(f"{INSTALLED}::test_what_is_right_is_not_touched",),
    ),
    Mutant(
        name="library-written-in-place",
        what="running containers have an empty list of libraries while it is written, and for good if that fails",
        file=INSTALL,
        old="    write_durably(path, content, mode)\n",
        new="    path.parent.mkdir(parents=True, exist_ok=True)\n    path.write_bytes(content)\n    path.chmod(mode)\n",
        tests=(
            f"{INSTALLED}::test_a_file_that_is_replaced_stays_as_it_was_for_containers_that_have_it_mounted",
            f"{INSTALLED}::test_files_are_on_the_disk_before_they_have_their_names",
        ),
    ),
    Mutant(
        name="slices-without-library",
        what="a container starts without any limit where the interposer could not be installed",
        file="services/node_agent/strategies/interposer.py",
        old="        if why := self._not_installed():\n",
        new="        if False:\n",
        tests=(f"{DRIVERS}::test_no_container_starts_on_an_interposer_that_is_not_installed",),
    ),
]
