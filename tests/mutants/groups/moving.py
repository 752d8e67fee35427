"""Memory that comes back to other GPUs: what the node saves, hides and refuses."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MOVING = "services/node_agent/moving.py"
_CORE = "tests/unit/services/node_agent/test_moving.py::"
_MAP = "tests/unit/services/node_agent/test_moves.py::"
_AGENT = "tests/contract/enforcement/test_moving.py::"
_PROGRAMS = "tests/interposer/test_moving.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="move-of-a-running-pod",
        what="a pod whose memory is on its GPU gets the slices of another one",
        file=_MOVING,
        old="    if not known.on_host or received.suspension is not None:\n",
        new="    if False:\n",
        tests=(_CORE + "test_a_pod_that_runs_is_not_moved",),
    ),
    Mutant(
        name="start-while-it-moves",
        what="a container starts on a GPU while its pod's memory is on its way",
        file=_MOVING,
        old="    if not is_under_way(known):\n        return None\n",
        new="    if True:\n        return None\n",
        tests=(_CORE + "test_no_container_starts_while_the_memory_is_on_its_way",),
    ),
    Mutant(
        name="move-from-where-it-shall-be",
        what="after a crash the agent takes the new GPUs for those on which the memory was",
        file=_MOVING,
        old="before=place_of(known.in_force or grant, node)",
        new="before=place_of(grant, node)",
        tests=(_CORE + "test_an_agent_that_is_killed_while_it_moves_a_pod_goes_on",),
    ),
    Mutant(
        name="map-without-the-others",
        what="the driver gets a map of the pod's GPUs alone",
        file="services/node_agent/moves.py",
        old="    to |= {uuid: uuid for uuid in models if uuid not in old and uuid not in new}\n",
        new="",
        tests=(_MAP + "test_a_map_is_a_permutation_of_all_gpus_that_keeps_models",),
    ),
    Mutant(
        name="place-of-an-abandoned-restore",
        what="a process that is still on the host counts as restored",
        file="services/node_agent/strategies/lock_worker.py",
        old="at if is_checkpointed or not going else going",
        new="going or at",
        tests=(_PROGRAMS + "test_where_a_process_is_stays_known_whenever_the_worker_is_killed",),
    ),
    Mutant(
        name="slack-on-a-hidden-gpu",
        what="a pod may have as much on a GPU that it must not use as honest processes hide on theirs",
        file="services/node_agent/strategies/escapes.py",
        old="        slack = 0 if held.is_hidden else slack_mib * held.slack_processes\n",
        new="        slack = slack_mib * held.slack_processes\n",
        tests=(_AGENT + "test_a_process_on_a_hidden_gpu_is_seen_by_nvml_whatever_it_has_there",),
    ),
)
