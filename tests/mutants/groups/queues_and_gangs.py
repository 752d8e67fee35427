"""Weakenings of gangs, queues, reservations, suspension and explanations."""

from tests.mutants.mutant import Mutant

_GANGS = "tests/unit/services/placement/scheduling/gangs/test_gangs.py::"
_MEMBERS = "tests/unit/shared/book/test_gangs.py::"
_SUBGROUPS = "tests/unit/services/placement/scheduling/gangs/test_gangs_subgroups.py::"
_QUEUES = "tests/unit/services/placement/scheduling/fair/test_fair.py::"
_PLANS = "tests/unit/services/placement/preemption/test_reservations.py::"
_POD_GROUPS = "tests/unit/services/placement/explain/test_pod_groups.py::"
_SUSPENSION = "tests/unit/services/placement/protocol/test_suspension.py::"
_FAILS_AFTER = "test_a_failure_after_the_confirmation_withdraws_nothing_and_is_ordered_again_until_it_is_confirmed"
_PREEMPTION = "services/placement/preemption/plans.py"

MUTANTS = [
    Mutant(
        name="replacements-without-their-gang",
        what="the replacement of a migrated pod is decided without the gang that needs it",
        file="services/placement/preemption/migration.py",
        old='(gang is None or gang.satisfied)',
        new='True',
        tests=(
            "tests/unit/services/placement/preemption/test_migration.py::"
            "test_a_replacement_that_its_gang_needs_by_then_waits_for_the_others",
        ),
    ),
    Mutant(
        name="gang-in-part",
        what="part of a gang is placed though not all members fit",
        file="services/placement/scheduling/gangs/placing.py",
        old="        if len(placed) == need:\n            return placed, None\n",
        new="        if placed:\n            return placed, None\n",
        tests=(_GANGS + "test_a_gang_of_mig_instances_fills_a_gpu_or_leaves_it_untouched",),
    ),
    Mutant(
        name="gang-is-tried-from-its-largest-member-only",
        what="a large member takes the capacity of small ones that a gang needs",
        file="services/placement/scheduling/gangs/placing.py",
        old="            yield index\n",
        new="            pass\n",
        tests=(_GANGS + "test_a_large_member_does_not_take_capacity_that_the_gangs_small_members_need",),
    ),
    Mutant(
        name="gang-is-not-taken-back",
        what="placed members of a gang keep their holds though the rest does not fit",
        file="services/placement/scheduling/gangs/placing.py",
        old=(
            "                if self._on_misfit is not None:\n"
            "                    self._on_misfit(misfit)\n"
            "            self._transaction.roll_back(mark)\n"
        ),
        new="                if self._on_misfit is not None:\n                    self._on_misfit(misfit)\n",
        tests=(_GANGS + "test_a_gang_of_mig_instances_fills_a_gpu_or_leaves_it_untouched",),
    ),
    Mutant(
        name="gang-begins-before-all-are-there",
        what="a gang is tried before all members that it needs exist",
        file="shared/book/subgroups.py",
        old="    if count(subgroup, placed):\n",
        new="    if count(subgroup, waiting):\n",
        tests=(_GANGS + "test_no_member_is_placed_before_all_exist_and_then_all_are_in_one_record",),
    ),
    Mutant(
        name="an-incomplete-gang-is-evicted-at-once",
        what="a gang is evicted as soon as it lacks a member, whatever its annotation and the setting say",
        file="shared/book/gangs.py",
        old="            if allowed_s and gang.incomplete_since is not None and now - gang.incomplete_since >= allowed_s:\n",
        new="            if gang.incomplete_since is not None:\n",
        tests=("tests/unit/services/preemptor/test_incomplete_gangs.py",),
    ),
    Mutant(
        name="finished-pods-of-an-earlier-run-count",
        what="members that ended well count for a later run under the same name",
        file="shared/book/gangs.py",
        old="        done = gang.done_in(present)\n",
        new="        done = gang.counted('done')\n",
        tests=(_MEMBERS + "test_finished_pods_of_an_earlier_run_do_not_count_for_a_later_one",),
    ),
    Mutant(
        name="ended-pods-set-the-minimum",
        what="pods that have ended have a say in the figures of their gang",
        file="shared/book/gangs.py",
        old="None if state.ended else ref)",
        new="ref)",
        tests=(_MEMBERS + "test_members_that_have_ended_or_are_gone_have_no_say_in_the_figures",),
    ),
    Mutant(
        name="a-part-of-a-gang-taints-nodes",
        what="a node that has room for some pods of a gang is tainted for autoscalers at once",
        file="services/placement/autoscaling/signals.py",
        old="        if gang is None or gang.need < 2:\n",
        new="        if True:\n",
        tests=(
            "tests/unit/services/placement/autoscaling/test_signals.py::"
            "test_a_node_that_has_room_for_a_part_of_a_gang_is_not_tainted_before_nodes_for_the_rest_can_have_come",
        ),
    ),
    Mutant(
        name="the-way-up-passes-the-request",
        what="a slice that follows its use asks for more than its pod requests before it has what it requests",
        file="shared/model/autoscale.py",
        old="    return requested if granted < requested < wanted else wanted\n",
        new="    return wanted\n",
        tests=("tests/unit/shared/model/test_autoscale.py::test_on_its_way_up_an_amount_stops_at_the_request",),
    ),
    Mutant(
        name="workers-stand-for-their-head",
        what="a gang runs on with enough pods, though one of its subgroups lacks some",
        file="shared/book/subgroups.py",
        old="    return satisfied >= (subgroup.min_subgroups or len(subgroup.subgroups))\n",
        new="    return True\n",
        tests=(_SUBGROUPS + "test_a_gang_ends_as_a_whole_where_a_subgroup_would_fall_below_its_minimum",),
    ),
    Mutant(
        name="siblings-of-a-subgroup-keep-their-places",
        what="a subgroup keeps its places though its sibling finds none in the same area",
        file="services/placement/scheduling/gangs/placing.py",
        old="            self._transaction.roll_back(mark)\n            del self.placed[before:]\n",
        new="            del self.placed[before:]\n",
        tests=(_SUBGROUPS + "test_a_choice_that_leaves_no_room_for_a_sibling_is_undone",),
    ),
    Mutant(
        name="further-pods-leave-the-rack-of-their-subgroup",
        what="a pod above the minimum is placed outside of the domain in which its subgroup has begun",
        file="services/placement/scheduling/gangs/domains.py",
        old="    return [book.nodes[node].row for node in nodes if node in book.nodes]\n",
        new="    return [book.nodes[node].row for node in nodes if node in book.nodes and not subgroup.name]\n",
        tests=(_SUBGROUPS + "test_a_pod_above_the_minimum_stays_in_the_rack_of_its_subgroup",),
    ),
    Mutant(
        name="gang-in-a-begun-record",
        what="a gang's decisions begin in a log record that is nearly full",
        file="services/placement/protocol/commit.py",
        old="                if gang.need > self._config.max_batch and not self._batcher.empty:\n",
        new="                if False:\n",
        tests=(_GANGS + "test_a_gang_larger_than_a_batch_does_not_begin_in_a_record_that_others_have_begun",),
    ),
    Mutant(
        name="gang-larger-than-a-record",
        what="a gang is decided whose decisions do not fit into a log record",
        file="services/placement/protocol/commit.py",
        old="        if size > RECORD_MOST_BYTES:\n",
        new="        if False:\n",
        tests=(_GANGS + "test_a_gang_that_no_record_of_the_log_could_take_is_refused_by_name",),
    ),
    # --- queues ---------------------------------------------------------------------------------------------------
    Mutant(
        name="held-is-not-used",
        what="a queue's use does not count holds",
        file="shared/queues/usage.py",
        old="    def booked(self, held: GrantState) -> None:\n",
        new=(
            "    def booked(self, held: GrantState) -> None:\n"
            '        if held.phase == "holding":\n'
            "            return\n"
        ),
        tests=(_QUEUES + "test_a_limit_is_never_exceeded_and_is_reported",),
    ),
    Mutant(
        name="suspended-pods-resume-beyond-the-limit",
        what="suspended pods resume whatever the limit of their queue",
        file="services/placement/protocol/suspension.py",
        old="return None if places is None or self.quota_exceeded(unit) else places",
        new="return places",
        tests=(
            "tests/unit/services/placement/protocol/test_suspension.py::"
            "test_a_suspended_pod_resumes_within_the_limit_of_its_queue",
        ),
    ),
    Mutant(
        name="limit-not-to-the-very-gpu",
        what="a queue's limit is not checked for the GPU that was found",
        file="services/placement/scheduler.py",
        old="        elif place is not None and self._fair.quota_exceeded_on(state, place.containers) is not None:\n",
        new="        elif False:\n",
        tests=(_QUEUES + "test_a_limit_holds_for_the_gpu_that_was_found",),
    ),
    Mutant(
        name="unreadable-policy-is-none",
        what="a leader that begins with an unreadable policy places pods as if there were none",
        file="services/placement/scheduling/fair/fair.py",
        old="            self.blocked = first or self.blocked\n",
        new="            self.blocked = False\n",
        tests=(_QUEUES + "test_a_leader_that_starts_with_invalid_queues_places_no_pod_until_they_are_corrected",),
    ),
    Mutant(
        name="equals-give-way",
        what="a pod is preempted by one of equal priority",
        file="shared/queues/preemption_policy.py",
        old="if g.pod.spec.priority >= lowest), None)",
        new="if g.pod.spec.priority > lowest), None)",
        tests=(_PLANS + "test_a_pod_of_equal_priority_is_not_preempted",),
    ),
    # --- plans ----------------------------------------------------------------------------------------------------
    Mutant(
        name="kept-place-is-not-booked",
        what="a reserved place may be given to other pods",
        file="shared/book/ledger.py",
        old='            self._book(grant_state(grant, placeholder, node, "reserved"))\n',
        new="",
        tests=(_PLANS + "test_a_plan_waits_until_all_victims_have_released",),
    ),
    Mutant(
        name="plan-is-not-over-in-the-log",
        what="the end of a reservation is not logged",
        file=_PREEMPTION,
        old="        self._batcher.reservations.append(found.record(term, over=True))\n",
        new="",
        tests=(_PLANS + "test_the_end_of_a_reservation_is_logged_after_its_decisions",),
    ),
    Mutant(
        name="plan-before-the-log",
        what="victims are evicted before the plan is logged",
        file=_PREEMPTION,
        old="        if found.answered or found.closing or not found.logged or waits:\n",
        new="        if found.answered or found.closing or waits:\n",
        tests=(_PLANS + "test_a_reservation_is_logged_before_it_may_be_executed",),
    ),
    Mutant(
        name="place-before-all-have-given-back",
        what="a beneficiary gets its place when one of its victims has returned its capacity",
        file="services/placement/preemption/reservations.py",
        old='            and all(self._has_given_up(victim, r.plan) for victim in r.plan.victims)\n',
        new='            and any(self._has_given_up(victim, r.plan) for victim in r.plan.victims)\n',
        tests=(_PLANS + "test_a_plan_waits_until_all_victims_have_released",),
    ),
    Mutant(
        name="new-leader-drops-reservations",
        what="a new leader does not know the plans in progress",
        file="services/placement/takeover.py",
        old='            out += self._preemption.readopt(self.recovery, self.term, now)\n',
        new='',
        tests=(_PLANS + "test_a_reservation_survives_its_leader",),
    ),
    Mutant(
        name="plan-without-a-deadline",
        what="a plan has no deadline",
        file="services/placement/preemption/reservations.py",
        old=(
            "            elif reservation.logged and reservation.until <= now and not "
            "self._all_end(reservation, now):\n"
        ),
        new="            elif False:\n",
        tests=(_PLANS + "test_a_deadline_releases_the_reservation",),
    ),
    Mutant(
        name="failure-undoes-a-confirmed-suspension",
        what="a late report that a suspension failed withdraws one that the node has confirmed since",
        file="services/placement/protocol/suspension.py",
        old="        elif suspension is None and reason and self.is_confirmed(grant_id):\n",
        new="        elif False:\n",
        tests=(_SUSPENSION + _FAILS_AFTER,),
    ),
    Mutant(
        name="failure-after-the-confirmation-is-forgotten",
        what="a suspension that failed after it had been confirmed is not ordered again",
        file="services/placement/protocol/suspension.py",
        old="            *self._order_doubted(now),\n",
        new="",
        tests=(_SUSPENSION + _FAILS_AFTER,),
    ),
    Mutant(
        name="doubted-for-ever",
        what="it is ordered again also when it is confirmed",
        file="services/placement/protocol/suspension.py",
        old="            self._doubted.pop(state.uid, None)\n",
        new="",
        tests=(_SUSPENSION + _FAILS_AFTER,),
    ),
    Mutant(
        name="failure-after-the-confirmation-ends-the-plan",
        what="a plan is given up because of a victim with a confirmed suspension",
        file="services/placement/core.py",
        old=" and not self.suspension.is_confirmed(event.grant_id)",
        new="",
        tests=(_SUSPENSION + "test_a_failure_after_the_confirmation_gives_no_plan_up",),
    ),
    Mutant(
        name="suspension-rest-before-the-pod-has-moved",
        what="a new leader assigns what a suspended pod gave up before it has seen a new version of the pod",
        file="services/placement/protocol/suspension.py",
        old=(
            "        if suspension == state.suspension and state.uid in self._unmoved:\n"
            "            self._said[state.uid] = suspension\n"
            "        elif suspension"
        ),
        new="        if suspension",
        tests=(_SUSPENSION + "test_a_new_leader_books_what_the_node_confirms",),
    ),
    Mutant(
        name="late-order-to-resume-is-obeyed",
        what="an annotation that a late order removed is obeyed though other pods have the capacity",
        file="services/placement/protocol/suspension.py",
        old="        if state.suspension is None and held.suspension is not None and not self._fits((held,)):\n",
        new="        if False:\n",
        tests=(
            _SUSPENSION + "test_an_annotation_removed_by_a_late_order_is_restored",
        ),
    ),
    Mutant(
        name="suspension-is-booked-before-the-node-says-so",
        what="other pods get what a pod gives up before its node has confirmed it",
        file="services/placement/protocol/suspension.py",
        old=(
            "        return held is None or (is_suspension(victim) and "
            "held.suspension == suspension_by(victim, plan_id))\n"
        ),
        new="        return held is None or is_suspension(victim)\n",
        tests=(_SUSPENSION + "test_no_victim_is_evicted_before_all_suspensions_are_confirmed",),
    ),
    # --- explanations ---------------------------------------------------------------------------------------------
    Mutant(
        name="counterfactual-is-not-tried",
        what="a counterfactual is reported without being tried",
        file="services/placement/explain/counterfactuals.py",
        old="return book.nodes.get(node.name) is node and not Diagnosis(state, book).of(node)",
        new="return book.nodes.get(node.name) is node",
        tests=(
            "tests/unit/services/placement/explain/test_counterfactuals.py::"
            "test_another_model_is_only_named_if_such_a_gpu_is_free",
        ),
    ),
    Mutant(
        name="excluded-is-not-explained",
        what="an excluded pod is reported like any other pending pod",
        file="services/placement/scheduling/unsupported_fields.py",
        old="    if state.excluded:\n",
        new="    if False:\n",
        tests=("tests/unit/services/placement/protocol/test_recovery.py::test_an_excluded_pod_gets_a_reason_and_kerf_why_states_it",),
    ),
    # --- Kubernetes' PodGroups ------------------------------------------------------------------------------------
    Mutant(
        name="scheduled-group-is-reported-again",
        what="a PodGroup that was scheduled once is reported as unschedulable later",
        file="services/placement/explain/pod_groups.py",
        old='        if not ours or (group.scheduled is not None and group.scheduled.status == "True"):\n',
        new="        if not ours:\n",
        tests=(_POD_GROUPS + "test_a_condition_that_is_true_stays_whatever_becomes_of_the_pods",),
    ),
    Mutant(
        name="group-is-scheduled-before-it-is-bound",
        what="a PodGroup is reported as scheduled by its places, before its pods are bound",
        file="services/placement/explain/pod_groups.py",
        old="    if group.metadata.uid in gang.whole_runs:",
        new="    if gang.satisfied:",
        tests=(_POD_GROUPS + "test_a_group_whose_minimum_is_bound_is_scheduled_and_not_before",),
    ),
    Mutant(
        name="condition-is-news",
        what="each report on a PodGroup has its gang tried again",
        file="shared/book/book.py",
        old="        if isinstance(obj, Gang) and isinstance(known, Gang) and _described(known) == _described(obj):\n",
        new="        if False:\n",
        tests=(_POD_GROUPS + "test_the_condition_alone_changes_nothing_in_the_book",),
    ),
    Mutant(
        name="part-of-a-composite-group-is-placed",
        what="a PodGroup that is a part of a CompositePodGroup is placed by itself",
        file="shared/book/gangs.py",
        old="        return None if found is None or found.parent else found\n",
        new="        return found\n",
        tests=(_POD_GROUPS + "test_a_part_of_a_composite_group_waits_and_says_which_group_is_not_read",),
    ),
    Mutant(
        name="group-that-says-so-is-written-again",
        what="the watcher writes a condition that the PodGroup has already",
        file="services/watcher/executors/patches.py",
        old='        if said is not None and (said.status == "True" or (not order.scheduled and said == wanted)):\n',
        new="        if False:\n",
        tests=("tests/unit/services/watcher/test_executors.py::test_a_pod_groups_condition_is_not_written_again",),
    ),
    Mutant(
        name="tenants-use-each-others-automatic-queues",
        what="a pod that names another namespace uses up the limit that this one has by default",
        file="shared/queues/tree.py",
        old="            self._automatic.add(namespace)\n",
        new="            pass\n",
        tests=("tests/unit/shared/queues/test_tree_precedence.py::"
               "test_the_queue_of_a_namespace_without_one_is_that_namespaces_alone",),
    ),
    Mutant(
        name="reserved-places-count-as-preemptible",
        what="what is reserved for a pod that cannot be preempted is not counted against what its queue is guaranteed",
        file="shared/book/states.py",
        old="            life=self.life,\n",
        new="",
        tests=("tests/unit/shared/book/test_states.py::test_a_reserved_place_counts_against_quotas_as_its_pod_would",),
    ),
    Mutant(
        name="reclaims-add-up",
        what="several plans at once take a queue below its guarantee",
        file="shared/queues/preemption_policy.py",
        old="(uid for uid in self._leaving if uid not in going)",
        new="()",
        tests=(
            "tests/unit/services/preemptor/test_both_cores.py::"
            "test_several_reclaims_at_once_take_no_queue_below_its_guarantee",
        ),
    ),
    Mutant(
        name="gang-stays-in-its-first-queue",
        what="a gang whose queue label was mended is not tried until something else changes",
        file="services/placement/scheduling/queue.py",
        old="                self._move(known, state.uid, queue)\n",
        new="",
        tests=(
            "tests/unit/services/placement/scheduling/test_queue.py::"
            "test_a_gang_with_another_queue_label_is_tried_in_that_queue",
        ),
    ),
    Mutant(
        name="late-volume-after-its-pod",
        what="a pod that others were evicted for is bound before its volume has a node, and never starts",
        file="services/placement/preemption/plans.py",
        old="            if late is not None:\n",
        new="            if False:\n",
        tests=(
            "tests/unit/services/placement/preemption/test_reservations.py::"
            "test_a_volume_that_binds_late_gets_its_node_before_its_pod_is_bound",
        ),
    ),
    Mutant(
        name="planned-in-vain-for-ever",
        what="groups for which nothing is found keep others from being planned for",
        file="services/preemptor/core.py",
        old="zip_longest(ranked, left)",
        new="zip_longest(ranked, ())",
        tests=(
            "tests/unit/services/preemptor/test_core_rounds.py::"
            "test_groups_that_are_planned_in_vain_again_and_again_keep_no_other_waiting",
        ),
    ),
    Mutant(
        name="pods-of-a-split-queue-count-nowhere",
        what="a queue that gets children exceeds its limit by what ran in it",
        file="shared/queues/usage.py",
        old="queue = self.tree.find_running(named, namespace)",
        new="queue = self.tree.find(named, namespace)",
        tests=(
            "tests/unit/services/placement/scheduling/fair/test_fair.py::"
            "test_pods_of_a_queue_that_gets_children_still_count_against_its_limit",
        ),
    ),
    Mutant(
        name="quota-after-the-search",
        what="a queue at its limit never preempts while some GPU is free",
        file="services/preemptor/planning/attempt.py",
        old="return grant if within else None",
        new="return grant",
        tests=(
            "tests/unit/services/preemptor/test_both_cores.py::"
            "test_a_queue_at_its_limit_preempts_also_where_gpus_are_free",
        ),
    ),
    Mutant(
        name="quota-comes-back",
        what="a victim that a quota needs gone moves to a free GPU, and its queue exceeds its limit",
        file="services/preemptor/planning/planner.py",
        old="        if not self._candidates.within_quota((), self._members):\n            return {}\n",
        new="",
        tests=(
            "tests/unit/services/preemptor/test_both_cores.py::"
            "test_a_queue_at_its_limit_preempts_also_where_gpus_are_free",
        ),
    ),
    Mutant(
        name="gangs-by-their-first-member",
        what="a gang is compared with the quota of its first member's queue, by that member's right to borrow",
        file="services/placement/scheduling/fair/fair.py",
        old="alike.setdefault(self.usage.kind_of(state), [])",
        new='alike.setdefault(("", False), [])',
        tests=(
            "tests/unit/services/placement/scheduling/fair/test_fair.py::"
            "test_members_of_a_gang_in_several_queues_each_count_in_their_own",
        ),
    ),
    Mutant(
        name="gangs-borrow-by-their-first-member",
        what="whether a gang may borrow depends on which member is the oldest",
        file="services/placement/scheduling/fair/fair.py",
        old="alike.setdefault(self.usage.kind_of(state), [])",
        new="alike.setdefault((self.usage.queue_of(state).name, False), [])",
        tests=(
            "tests/unit/services/placement/scheduling/fair/test_fair.py::"
            "test_of_a_gang_only_members_that_are_never_preempted_stay_within_the_guarantee",
        ),
    ),
    Mutant(
        name="plans-by-their-first-beneficiary",
        what="a plan is compared with the quota of its first beneficiary's queue alone",
        file="shared/queues/queues.py",
        old="                hit = self.hit(state, NOTHING, amount)\n",
        new="                hit = self.hit(asked[0][0], NOTHING, amount)\n",
        tests=(
            "tests/unit/shared/queues/test_preemption_policy.py::"
            "test_beneficiaries_in_several_queues_each_count_in_their_own",
        ),
    ),
    Mutant(
        name="pods-beside-wake-none",
        what="a pod that waits for another one near it is not tried when that comes",
        file="services/placement/scheduler.py",
        old="        self._is_beside_changed = True\n",
        new="        pass\n",
        tests=("tests/unit/services/placement/test_scheduler.py",),
    ),
    Mutant(
        name="late-volumes-keep-no-place",
        what="pods with volumes that are being made all go to one node, or lose their place to younger ones",
        file="services/placement/scheduling/late_claims.py",
        old="        self._book.reserve(placeholder, node, named)\n",
        new="",
        tests=("tests/unit/services/placement/scheduling/test_late_claims.py",),
    ),
    Mutant(
        name="containers-choose-once",
        what="a pod with several containers that fits in another way only waits for ever",
        file="shared/scheduling/choosing.py",
        old="        for chosen in combinations(ordered, ask.count):\n",
        new="        for chosen in ():\n",
        tests=("tests/unit/shared/scheduling/test_assignment.py",),
    ),
    Mutant(
        name="cards-before-topology",
        what="a free network card, which is a preference, makes a required topology impossible",
        file="shared/scheduling/choosing.py",
        old="return chosen or _choose(ask, fitting, rooms, self._pod, self._node, order=self._order)",
        new="fitting = near if len(near) >= ask.count else fitting\n"
        "        return chosen or _choose(ask, fitting, rooms, self._pod, self._node, order=self._order)",
        tests=("tests/unit/shared/scheduling/test_assignment.py",),
    ),
]  # fmt: skip
