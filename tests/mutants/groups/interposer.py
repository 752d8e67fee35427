"""Mutants of the interposer's memory account. The tests compile the sources of their own tree."""

from tests.mutants.mutant import Mutant

MEMORY = "native/interposer/memory.c"
ACCOUNT = "native/interposer/account.c"
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
        file=MEMORY,
        old="if (known_ && !result_) release(entry_.gpu, entry_.bytes);",
        new="if (known_ && !result_) {}",
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
]
