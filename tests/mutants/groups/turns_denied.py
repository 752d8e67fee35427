"""Turns that are denied without a trial: never one that a trial would find."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_QUICK = "tests/unit/services/preemptor/turns/test_freed.py::"
_FREED = "services/preemptor/turns/freed.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="freed-compute-forgotten",
        what="the compute that victims give back is not counted before the trial",
        file=_FREED,
        old="                    room.free_milli += change.milli\n",
        new="",
        tests=(_QUICK + "test_what_is_not_enough_is_denied_without_a_trial",),
    ),
    Mutant(
        name="only-its-own-gpus-tried",
        what="a pod that may move is denied if its own GPUs have no room",
        file=_FREED,
        old="        if node is None or not self._moves(state) or any(",
        new="        if True or any(",
        tests=(_QUICK + "test_the_turns_are_those_that_are_found_by_trying_everything",),
    ),
    Mutant(
        name="host-promised-twice-in-a-round",
        what="a second turn gets the host memory that the first one of the round takes",
        file="services/preemptor/turns/host_room.py",
        old="        for held in self._parking():\n",
        new="        for held in ():\n",
        tests=(_QUICK + "test_the_turns_are_those_that_are_found_by_trying_everything",),
    ),
    Mutant(
        name="room-of-yesterday",
        what="suspended pods are denied by the free room of an earlier moment",
        file="services/placement/protocol/largest_rooms.py",
        old="        if at != self._at:\n",
        new="        if not self._fits:\n",
        tests=(
            "tests/unit/services/placement/protocol/test_largest_rooms.py::"
            "test_a_pod_is_denied_while_no_gpu_has_room_for_it",
        ),
    ),
    Mutant(
        name="swap-of-other-pods",
        what="a node counts swap that the pod may not use",
        file="services/node_agent/strategies/host_memory.py",
        old="    return max(0, min(free, _swap_room(pod, free), inside))\n",
        new="    return free\n",
        tests=(
            "tests/unit/services/node_agent/strategies/test_host_memory.py::"
            "test_swap_counts_as_far_as_the_pod_may_use_it",
        ),
    ),
)
