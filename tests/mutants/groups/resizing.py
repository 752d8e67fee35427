"""Live resize: a growth is booked, logged and conditional; less is promised on disk, and no promise is forgotten."""

from tests.mutants.mutant import Mutant

_RESIZER = "services/placement/protocol/resizing.py"
_LOST = "services/placement/protocol/lost_amendments.py"
_TESTS = "tests/unit/services/placement/protocol/test_resizing.py::"
_AGENT = "tests/unit/services/node_agent/test_resizes.py::"

MUTANTS = [
    Mutant(
        name="growth-is-not-booked",
        what="a growth is logged and written without being booked",
        file=_RESIZER,
        old="        self._book.grow(state.grant_id, booked)\n",
        new="",
        tests=(_TESTS + "test_a_growth_is_booked_logged_written_and_told_in_this_order",),
    ),
    Mutant(
        name="amended-at-any-version",
        what="a grant is amended whatever the pod's version",
        file=_RESIZER,
        old="        resource_version=amendment.resource_version,\n",
        new='        resource_version="",\n',
        tests=(_TESTS + "test_a_growth_for_another_version_is_given_back_and_booked_again",),
    ),
    Mutant(
        name="growths-are-not-feared",
        what="a new leader without a complete log forgets the growths that may be under way",
        file=_RESIZER,
        old="found = recovery.amended(state) if complete else self._possible(state, held)",
        new="found = recovery.amended(state) if complete else None",
        tests=(_TESTS + "test_a_new_leader_without_the_log_counts_what_may_be_written_and_logs_it_before_it_is_ready",),
    ),
    Mutant(
        name="late-promise-of-a-lost-checkpoint",
        what="a promise that an agent made before it lost its checkpoint is believed when it comes late",
        file=_RESIZER,
        old="first is not None and (not event.number or event.number >= first):",
        new="True:",
        tests=(_TESTS + "test_a_promise_from_before_the_checkpoint_was_lost_is_not_believed_when_it_comes_late",),
    ),
    Mutant(
        name="promise-outlives-the-checkpoint",
        what="a node that has lost its checkpoint is believed to use as little as it had promised",
        file="services/placement/core.py",
        old="                self.resizer.inventory_coming(event.inventory)\n",
        new="",
        tests=(_TESTS + "test_a_promise_ends_with_the_checkpoint_of_its_node",),
    ),
    Mutant(
        name="promise-is-not-withdrawn",
        what="a slice keeps less than its grant when its pod does not want less any more",
        file=_RESIZER,
        old="            return self._amend_once(state, next_amendment(held.given, held.given.containers), now)\n",
        new="            return []\n",
        tests=(_TESTS + "test_a_promise_that_is_not_wanted_any_more_is_withdrawn",),
    ),
    Mutant(
        name="promise-before-the-slices",
        what="a node promises less before its slices have it",
        file="services/node_agent/resizes.py",
        old="if task.shrinks and not reason and _is_wanted",
        new="if task.shrinks and _is_wanted",
        tests=(_AGENT + "test_slices_that_could_not_be_restored_are_restored_later",),
    ),
    Mutant(
        name="shrunk-before-it-is-on-disk",
        what="after a crash an agent does not know that a slice may have less than its grant",
        file="services/node_agent/resizes.py",
        old="            self._store.put(msgspec.structs.replace(known, in_force=known.in_force or _may_have(task)))\n",
        new="",
        tests=(
            _AGENT + "test_an_agent_that_restarts_while_a_slice_shrinks_restores_what_nobody_wants_to_shrink_any_more",
        ),
    ),
    Mutant(
        name="promise-after-the-withdrawal",
        what="a node promises what was withdrawn meanwhile, and nobody hears of it",
        file="services/node_agent/resizes.py",
        old="if task.shrinks and not reason and _is_wanted(store, task, known):",
        new="if task.shrinks and not reason:",
        tests=(_AGENT + "test_a_shrink_that_was_withdrawn_while_it_was_done_is_undone_and_not_promised",),
    ),
    Mutant(
        name="amendment-goes-back",
        what="a late order takes an amendment back, or one of the same number replaces it unseen",
        file="services/node_agent/grant_store.py",
        old="            if not amended:\n",
        new="            if False:\n",
        tests=(
            _AGENT + "test_an_amendment_never_goes_back",
            _AGENT + "test_another_amendment_of_the_same_number_is_not_believed",
        ),
    ),
    Mutant(
        name="overtaken-order-repeated",
        what="an order that a sync has overtaken is repeated as it was, and its node does nothing by it",
        file="services/placement/protocol/nodes.py",
        old="if (grant.term, grant.number) < (self.term, self._sync_number.get(node, 0)):",
        new="if grant.term < self.term:",
        tests=(
            "tests/unit/services/placement/protocol/test_nodes.py::"
            "test_an_unanswered_grant_that_a_sync_has_overtaken_is_sent_again_as_a_newer_order",
        ),
    ),
    Mutant(
        name="resized-on-the-host",
        what="slices are resized while their memory is on the host",
        file="services/placement/protocol/resize_limits.py",
        old="        if held.parked:\n",
        new="        if False:\n",
        tests=(_TESTS + "test_a_pod_whose_memory_is_on_the_host_is_resized_when_it_is_back",),
    ),
    Mutant(
        name="lost-amendment-not-booked",
        what="what slices have by an amendment that was lost with etcd is not booked",
        file=_LOST,
        old="            booked = msgspec.structs.replace(booked, containers=higher(other, booked))\n",
        new="            pass\n",
        tests=(_TESTS + "test_what_slices_have_is_booked_and_annotated_again_after_a_restore_of_etcd",),
    ),
    Mutant(
        name="lost-amendment-to-the-same-amounts-forgotten",
        what="of an amendment that was lost with etcd only the amounts count, and not its number",
        file=_LOST,
        old="is_known = given.amendment == lost.amendment and given.containers == lost.containers",
        new="is_known = given.containers == lost.containers",
        tests=(_TESTS + "test_a_lost_amendment_to_the_same_amounts_is_annotated_too",),
    ),
    Mutant(
        name="lost-amendment-of-a-suspended-pod-forgotten",
        what="a pod that was suspended when etcd was restored is not looked at any more",
        file=_RESIZER,
        old="(self._unanswered, self._promised, self._lost))",
        new="(self._unanswered, self._promised))",
        tests=(_TESTS + "test_what_a_suspended_pod_has_by_a_lost_amendment_is_booked_when_it_has_resumed[30]",),
    ),
    Mutant(
        name="lost-amendment-by-its-own-number",
        what="a pod is amended to what its slices have by a number that its node may know with other amounts",
        file=_LOST,
        old="        number = max(grant.amendment for grant in (given, *possible)) + 1\n",
        new="        number = lost.amendment\n",
        tests=(_TESTS + "test_what_slices_have_is_booked_and_annotated_again_after_a_restore_of_etcd",),
    ),
    Mutant(
        name="lost-amendment-replaces-a-growth",
        what="a growth that may be under way is not booked beside an amendment that was lost",
        file=_LOST,
        old="[lost] if opened is None else [lost, opened]",
        new="[lost]",
        tests=(_TESTS + "test_a_growth_that_may_be_under_way_is_booked_beside_a_lost_one",),
    ),
    Mutant(
        name="lost-amendment-forgotten-at-an-edit",
        what="an amendment that was lost is booked until the next edit of its pod",
        file=_RESIZER,
        old="        self._recover(state, held, now)\n        return self._nodes.granted(held, now)\n",
        new="        self._lost.pop(uid, None)\n        return self._nodes.granted(held, now)\n",
        tests=(_TESTS + "test_a_lost_amendment_is_not_forgotten_at_the_next_edit_of_its_pod",),
    ),
    Mutant(
        name="node-keeps-lost-amendments-to-itself",
        what="a node does not tell a new leader of amendments that its sync lacks",
        file="services/node_agent/syncs.py",
        old="and resizes.differs(known.grant.grant, named.grant)",
        new="and False",
        tests=(_TESTS + "test_what_slices_have_is_booked_and_annotated_again_after_a_restore_of_etcd",),
    ),
    Mutant(
        name="growth-beyond-the-device",
        what="the device gate does not look at larger amounts",
        file="services/node_agent/resizes.py",
        old="            if share.node == node and why is not None:\n                return why[1]\n",
        new="",
        tests=(_AGENT + "test_a_growth_beyond_the_device_is_refused_and_counts_nothing",),
    ),
]
