"""What is counted: memory, compute, MIG slices, what strangers have, and when it comes back."""

from tests.mutants.mutant import Mutant

_LEDGER = "shared/book/ledger.py"
_GIVING = "services/placement/protocol/releases.py"
_TESTS = "tests/unit/shared/book/test_book.py::"
_CORE_RELEASES = "tests/unit/services/placement/test_core_releases.py::"
_GIVING_TESTS = "tests/unit/services/placement/protocol/test_releases.py::"

MUTANTS = [
    Mutant(
        name="compute-is-not-counted",
        what="the book counts memory and not compute",
        file=_LEDGER,
        old="                room.free_milli -= sign * share.compute_milli\n",
        new="",
        tests=(_TESTS + "test_a_hold_of_a_pod_that_a_snapshot_lacks_waits_for_its_node",),
    ),
    Mutant(
        name="memory-is-not-counted",
        what="the book counts compute and not memory",
        file=_LEDGER,
        old="                room.free_mib -= sign * share.memory_mib\n",
        new="",
        tests=(_TESTS + "test_a_hold_of_a_pod_that_a_snapshot_lacks_waits_for_its_node",),
    ),
    Mutant(
        name="grants-before-the-inventory",
        what="grants that were booked before their node's inventory came take nothing",
        file=_LEDGER,
        old='                        room.take(share.memory_mib, share.compute_milli, kept=held.phase == "reserved")\n',
        new="                        pass\n",
        tests=(_TESTS + "test_a_grant_is_counted_whether_its_node_is_known_before_or_after",),
    ),
    Mutant(
        name="older-inventory-is-taken",
        what="an older inventory of the same boot replaces a newer one",
        file=_LEDGER,
        old=(
            "        if old is not None and old.era == inventory.era and old.generation > inventory.generation:\n"
            "            return\n"
        ),
        new="",
        tests=(_TESTS + "test_an_older_inventory_of_the_same_boot_changes_nothing",),
    ),
    Mutant(
        name="returned-and-still-suspended",
        what="a pod whose node has given its grant back waits for its turn",
        file="shared/book/book.py",
        old="state.returned, state.suspension = grant_id, None",
        new="state.returned = grant_id",
        tests=(_TESTS + "test_a_pod_whose_grant_is_returned_is_not_suspended_any_more",),
    ),
    Mutant(
        name="returned-and-suspended-again",
        what="a pod whose node has given its grant back waits for its turn when it is seen again",
        file="shared/book/book.py",
        old="state.suspension = None if state.returned else state.suspension",
        new="pass",
        tests=(_TESTS + "test_a_pod_whose_grant_is_returned_is_not_suspended_any_more",),
    ),
    Mutant(
        name="generation-outlives-a-lost-checkpoint",
        what="the inventories of an agent that has lost its checkpoint count as outdated",
        file=_LEDGER,
        old="old.era == inventory.era and",
        new="old.boot_id == inventory.boot_id and",
        tests=(_TESTS + "test_generations_begin_anew_after_a_lost_checkpoint",),
    ),
    Mutant(
        name="foreign-memory-is-given",
        what="memory that strangers use is given out",
        file="shared/book/states.py",
        old="free_mib, free_milli = gpu.memory_mib - gpu.foreign_mib, WHOLE_GPU_MILLI",
        new="free_mib, free_milli = gpu.memory_mib, WHOLE_GPU_MILLI",
        tests=(_TESTS + "test_foreign_memory_is_not_given_away",),
    ),
    Mutant(
        name="mig-slices-overlap",
        what="MIG slices that are taken are given a second time",
        file=_LEDGER,
        old="            granted |= taken\n",
        new="            granted |= 0\n",
        tests=(
            "tests/unit/services/placement/test_core_mig.py::"
            "test_an_instance_of_a_fixed_layout_is_named_by_its_uuid_and_given_once",
        ),
    ),
    Mutant(
        name="terminal-phase-frees-the-gpu",
        what="GPUs come back when their pod has ended, before the node has given them back",
        file="shared/book/book.py",
        old=(
            '        held.enter("leaving")\n        self.leaving[held.grant_id] = held\n'
            '        return [Change("ended", state.uid, held.grant_id)]'
        ),
        new='        self.release(held.grant_id)\n        return [Change("ended", state.uid, held.grant_id)]',
        tests=(_CORE_RELEASES + "test_a_terminal_phase_alone_frees_no_gpu",),
    ),
    Mutant(
        name="returned-grant-counts-again",
        what="a grant that was given back is booked again by its annotation",
        file="shared/book/book.py",
        old="return None if grant is None or grant.grant_id == state.returned else grant",
        new="return grant",
        tests=(_TESTS + "test_a_released_grant_is_not_booked_again_when_its_pod_ends",),
    ),
    # --- giving back ----------------------------------------------------------------------------------------------
    Mutant(
        name="another-nodes-grant-is-given-back",
        what="a node gives back another node's grant",
        file=_GIVING,
        old='if held is not None and (held.phase == "holding" or event.node not in held.nodes):',
        new='if held is not None and held.phase == "holding":',
        tests=(_CORE_RELEASES + "test_no_node_releases_grants_of_another_node",),
    ),
    Mutant(
        name="hold-is-given-back",
        what="a release is believed while the grant is only held",
        file=_GIVING,
        old='if held is not None and (held.phase == "holding" or event.node not in held.nodes):',
        new="if held is not None and event.node not in held.nodes:",
        tests=(_CORE_RELEASES + "test_a_release_before_the_bound_pod_is_seen_waits_until_the_node_repeats_it",),
    ),
    Mutant(
        name="another-nodes-word-on-a-grant",
        what="a node says of another node's grant that it is dead",
        file="services/placement/core.py",
        old=(
            "        if held is not None and event.node not in held.nodes:\n"
            "            return  # a node answers for itself alone\n"
        ),
        new="",
        tests=(_GIVING_TESTS + "test_a_node_cannot_report_on_another_nodes_grant",),
    ),
    Mutant(
        name="dead-hold-is-freed",
        what="a grant that its node calls dead is freed although its Binding may still succeed",
        file=_GIVING,
        old='        if held is None or held.phase in ("holding", "reserved"):\n            return []\n',
        new='        if held is None:\n            return []\n',
        tests=(_GIVING_TESTS + "test_a_dead_grant_stays_booked_while_its_binding_may_still_succeed",),
    ),
    Mutant(
        name="dead-grant-is-kept",
        what="a grant that its node will never hand over stays booked",
        file="services/placement/core.py",
        old="        if event.dead:\n",
        new="        if False:\n",
        tests=(_GIVING_TESTS + "test_a_grant_that_its_node_will_never_hand_over_is_free_and_its_pod_is_replaced",),
    ),
    Mutant(
        name="dead-grants-pod-is-not-replaced",
        what="a pod whose grant is dead waits on its node for ever",
        file=_GIVING,
        old="        return [*out, *self.dead_on_arrival(state, held.grant_id, why)]\n",
        new="        return out\n",
        tests=(_GIVING_TESTS + "test_a_grant_that_its_node_will_never_hand_over_is_free_and_its_pod_is_replaced",),
    ),
    Mutant(
        name="ended-pod-is-replaced",
        what="a pod that has ended is deleted because its grant is given back",
        file=_GIVING,
        old=(
            'if held.phase != "bound" or state is None or state.ended or '
            "state.pod.metadata.deletion_timestamp is not None:"
        ),
        new="if state is None or state.pod.metadata.deletion_timestamp is not None:",
        tests=(_GIVING_TESTS + "test_a_pod_that_has_ended_is_not_replaced_for_its_dead_grant",),
    ),
    Mutant(
        name="deleted-pod-is-deleted-again",
        what="a pod that is being deleted is deleted once more for its dead grant",
        file=_GIVING,
        old=" or state.ended or state.pod.metadata.deletion_timestamp is not None:",
        new=" or state.ended:",
        tests=(_GIVING_TESTS + "test_a_terminating_pod_is_not_deleted_again",),
    ),
    Mutant(
        name="tombstone-ends-a-hold",
        what="what a node says by its sync to have released frees a hold whose Binding may be on the way",
        file=_GIVING,
        old="for command in self._void(grant_id, answer.node, now)]",
        new="for command in self._ended(self._book.grants[grant_id], '', now)]",
        tests=(_GIVING_TESTS + "test_a_hold_that_its_node_calls_released_stays_booked",),
    ),
    Mutant(
        name="tombstones-of-a-sync-are-ignored",
        what="what a node says by its sync to have released stays booked",
        file=_GIVING,
        old=(
            "return [command for grant_id in released for command in "
            "self._void(grant_id, answer.node, now)]"
        ),
        new="return []",
        tests=(_GIVING_TESTS + "test_a_release_that_a_node_reports_in_its_sync_frees_the_grant",),
    ),
    Mutant(
        name="releases-are-not-acknowledged",
        what="a node is told only once that its release is booked, so that it says it for ever if that got lost",
        file=_GIVING,
        old="        return [*out, m.SendReleasesSeen(event.node, (event.grant_id,))]\n",
        new="        return [*out, m.SendReleasesSeen(event.node, (event.grant_id,))] if out else []\n",
        tests=(_GIVING_TESTS + "test_a_release_is_acknowledged_to_its_node_as_often_as_the_node_repeats_it",),
    ),
    Mutant(
        name="deleted-node-keeps-what-was-leaving",
        what="what a deleted node had still to give back stays booked for ever",
        file="shared/book/book.py",
        old=(
            "        for held in [h for h in self.leaving.values() if h.node == name]:\n"
            "            self.release(held.grant_id)\n"
        ),
        new="",
        tests=(_CORE_RELEASES + "test_a_deleted_node_frees_grants_that_it_had_not_released",),
    ),
    Mutant(
        name="pods-alike-keep-old-labels",
        what="a placed pod with other labels is found by its former ones, by terms that select pods",
        file="shared/book/states.py",
        old="        and one.metadata.labels == other.metadata.labels\n",
        new="",
        tests=("tests/unit/shared/book/test_pods_alike.py",),
    ),
    Mutant(
        name="pods-alike-shared-with-a-twin",
        what="trying a change on a fork takes a pod off the book's index",
        file="shared/book/pods_alike.py",
        old="        twin._shared = dict.fromkeys(self._groups)\n",
        new="",
        tests=("tests/unit/shared/book/test_pods_alike.py",),
    ),
]  # fmt: skip
