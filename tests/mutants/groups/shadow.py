"""Shadow mode: it only reads, and what it counts is what a person would count."""

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/shadow"

MUTANTS = [
    Mutant(
        name="shadow-decides-halfway",
        what="pods are placed before all that happens at a moment is known",
        file="shadow/rerun.py",
        old="            *map(m.InventorySeen, inventories),\n",
        new="            *map(m.InventorySeen, inventories),\n        )\n        self._send(\n",
        tests=("tests/unit/shadow/test_rerun.py::test_a_pod_that_comes_with_a_node_is_tried_with_those_that_wait",),
    ),
    Mutant(
        name="shadow-ended-pods-wait-no-more",
        what="a pod that Kerf never starts waits no more when it has ended there",
        file="shadow/history.py",
        old="        return None if self.finished and self.bound_s is not None else self.left_s\n",
        new="        return self.left_s\n",
        tests=(
            "tests/unit/shadow/test_compare.py::"
            "test_a_pod_that_has_ended_there_and_never_started_with_kerf_still_waits",
        ),
    ),
    Mutant(
        name="shadow-pauses-never-end",
        what="a pod that pauses is tried again only when something else happens",
        file="shadow/rerun.py",
        old="        self._wake_s = wake_s if wake_s <= self._awake_until_s else inf\n",
        new="        self._wake_s = inf\n",
        tests=("tests/unit/shadow/test_rerun.py::test_a_pod_that_pauses_is_tried_again_when_its_pause_ends",),
    ),
    Mutant(
        name="shadow-running-pods-come-late",
        what="pods that ran before are placed after those that waited",
        file="shadow/rerun.py",
        old="_RAN if life.ran_before else None",
        new="None",
        tests=("tests/unit/shadow/test_rerun.py::test_pods_that_ran_before_are_placed_before_those_that_waited",),
    ),
    Mutant(
        name="shadow-members-hold-nothing",
        what="members of a group hold nothing while its GPU has no name",
        file="shadow/history.py",
        old="(given == life.given and not again)",
        new="given == life.given",
        tests=("tests/unit/shadow/test_history.py::test_members_of_a_group_hold_their_gpu_until_it_has_a_name",),
    ),
    Mutant(
        name="shadow-writes",
        what="shadow mode sends whatever it is told to",
        file="shadow/watch.py",
        old='        if method != "GET" or body:\n',
        new="        if body:\n",
        tests=(f"{UNIT}/test_watch.py::test_no_other_method_than_get_is_sent",),
    ),
    Mutant(
        name="shadow-doubles-unseen",
        what="memory that is given away twice is no double booking",
        file="shadow/gpus.py",
        old="        if use.memory_mib > device.memory_mib:\n",
        new="        if False:\n",
        tests=(f"{UNIT}/test_gpus.py::test_two_pods_share_a_gpu_up_to_its_memory",),
    ),
    Mutant(
        name="shadow-ended-pods-hold",
        what="a pod that has ended holds its GPUs until it is deleted",
        file="shadow/history.py",
        old="        if pod.ended:\n            self._gone(uid",
        new="        if False:\n            self._gone(uid",
        tests=(f"{UNIT}/test_history.py::test_a_pod_that_has_ended_holds_nothing",),
    ),
    Mutant(
        name="shadow-init-containers-add-up",
        what="init containers count as if they ran beside the others",
        file="shadow/peers/vgpu.py",
        old="    return effective(ordinary, [*sidecars, *held[len(inits) :]])\n",
        new="    return effective((), held)\n",
        tests=(f"{UNIT}/peers/test_vgpu.py::test_of_init_and_app_containers_the_larger_counts",),
    ),
    Mutant(
        name="shadow-group-is-two-gpus",
        what="a GPU group of KAI's keeps its place beside the UUID that it turns out to be",
        file="shadow/history.py",
        old="        for life in members:\n            self.fleet.take(life.uid)\n",
        new="",
        tests=(f"{UNIT}/test_history.py::test_kais_reservation_pod_may_come_after_its_members",),
    ),
    Mutant(
        name="shadow-deleted-pods-run-on",
        what="with Kerf a deleted pod runs for as long as it did there",
        file="shadow/history.py",
        old="None if self.finished and self.bound_s is not None else self.left_s",
        new="None if self.bound_s is not None else self.left_s",
        tests=(f"{UNIT}/test_rerun.py::test_a_deleted_pod_leaves_when_it_did_there",),
    ),
    Mutant(
        name="shadow-records-manifests",
        what="a recording has whole manifests in it",
        file="shadow/objects.py",
        old="    return msgspec.structs.replace(pod, metadata=_trimmed(pod.metadata))\n",
        new="    return pod\n",
        tests=(f"{UNIT}/test_recording.py::test_environment_and_manifests_are_not_recorded",),
    ),
    Mutant(
        name="shadow-waits-before-it-watched",
        what="pods that were bound before count as pods that did not wait",
        file="shadow/compare.py",
        old="for uid, wait_s in waits_with(history, kerf).items() if not lives[uid].ran_before}",
        new="for uid, wait_s in waits_with(history, kerf).items()}",
        tests=(f"{UNIT}/test_compare.py::test_pods_that_ran_before_count_in_gpus_and_not_in_waits",),
    ),
]
