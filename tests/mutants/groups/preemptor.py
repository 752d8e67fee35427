"""Weakenings of the preemptor: reservation before eviction, budgets, protection, uid preconditions."""

from tests.mutants.mutant import Mutant

CORE = "services/preemptor/core.py"
EXECUTION = "services/preemptor/plans/execution.py"
RESERVATIONS = "services/placement/preemption/reservations.py"
BUDGETS = "services/preemptor/planning/budgets.py"
PROTECTION = "services/preemptor/protection.py"
UNIT = "tests/unit/services/preemptor"
TEST = f"{UNIT}/test_core.py"
PLANS = f"{UNIT}/planning/test_planner.py"
PLANS_QUEUES = "tests/unit/services/preemptor/planning/test_planner_queues.py"
WRITES = "tests/unit/shared/kube/test_writes.py"
BESIDE = f"{UNIT}/test_plans_on_one_node.py"
RESERVED_BESIDE = "tests/unit/services/placement/preemption/test_plans_on_one_node.py"
VERY_POD = f"{WRITES}::test_an_eviction_and_a_deletion_name_the_pods_uid_and_affect_no_other_of_its_name"

LAUNCHER_ENDS = (
    "tests/unit/services/placement/preemption/test_reservations.py::"
    "test_a_plan_waits_for_victims_that_have_no_gpu_where_it_needs_their_cpu"
)

MUTANTS = [
    Mutant(
        name="members-to-spare-are-taken-twice",
        what="plans of one moment take a gang below its minimum by one member each",
        file="services/placement/preemption/plans.py",
        old="        self._mark_victims(record.plan, now, going=True)\n",
        new="",
        tests=(
            "tests/unit/services/placement/preemption/test_reservations.py::"
            "test_plans_of_one_moment_take_no_gang_below_its_minimum_by_one_member_each",
        ),
    ),
    Mutant(
        name="answers-about-the-next-pod-of-a-name",
        what="a plan is cancelled because the next pod of its victim's name cannot be evicted",
        file=CORE,
        old='if answer.outcome not in ("done", "gone") and answer.uid in self.book.pods',
        new='if answer.outcome not in ("done", "gone")',
        tests=(f"{UNIT}/test_core_answers.py::test_any_answer_about_a_victim_that_is_gone_is_as_good_as_its_eviction",),
    ),
    Mutant(
        name="evictions-of-a-former-leader",
        what="a preemptor that has lost the lead evicts, and nothing protects the replacements",
        file=CORE,
        old="if found.victims_left and self._leads else []",
        new="if found.victims_left else []",
        tests=(f"{UNIT}/test_core_answers.py::test_an_instance_that_has_lost_the_lead_begins_no_eviction",),
    ),
    Mutant(
        name="evictions-are-repeated-before-the-answer",
        what="evictions are requested again while an answer is awaited",
        file=EXECUTION,
        old="NO_ANSWER_S if self.asking else ASK_AGAIN_S",
        new="ASK_AGAIN_S",
        tests=(f"{UNIT}/test_core_answers.py::test_no_eviction_is_requested_again_while_an_answer_is_awaited",),
    ),
    Mutant(
        name="evictions-count-twice",
        what="an eviction that is requested again counts twice against the hourly budget",
        file=CORE,
        old="if state is not None and state.pod.metadata.deletion_timestamp is None:",
        new="if state is not None:",
        tests=(f"{TEST}::test_an_eviction_that_is_requested_again_counts_once",),
    ),
    Mutant(
        name="quick-looks-leave-traces",
        what="what one quick look has tried remains for the next",
        file="services/placement/preemption/quick_look.py",
        old="        changes.roll_back(mark)\n",
        new="",
        tests=(
            "tests/unit/services/placement/preemption/test_quick_look.py::"
            "test_what_does_not_fit_at_a_quick_look_does_not_fit",
        ),
    ),
    Mutant(
        name="grants-on-gone-gpus-end-unnoticed",
        what="a pod whose grant has ended stays a victim where its GPU is gone",
        file="services/preemptor/cluster.py",
        old="                    self.changed_nodes.note(held.nodes)\n",
        new="                    pass\n",
        tests=(f"{UNIT}/planning/test_changed_nodes.py::test_what_is_known_by_changes_is_what_is_found_anew",),
    ),
    Mutant(
        name="protected-until-the-clock-has-caught-up",
        what="what was recorded under a clock that was ahead protects pods until this one has come as far",
        file=CORE,
        old="self.protection.restore(not_ahead(event.record, now))",
        new="self.protection.restore(event.record)",
        tests=(
            f"{UNIT}/test_protection.py::test_what_was_recorded_under_a_clock_that_was_ahead_ends_as_if_it_were_of_now",
        ),
    ),
    Mutant(
        name="evicts-though-refused",
        what="the preemptor evicts although placement refused",
        file=CORE,
        old="        elif not event.answer.ok:\n",
        new="        elif False:\n",
        tests=(f"{TEST}::test_another_node_is_tried_when_placement_refuses",),
    ),
    Mutant(
        name="stand-by-proposes",
        what="a preemptor on standby proposes plans",
        file=CORE,
        old="if self.ready and proposes and self._plans_left() > 0",
        new="if self.ready and self._plans_left() > 0",
        tests=(f"{TEST}::test_a_standby_instance_proposes_nothing",),
    ),
    Mutant(
        name="evictions-before-protection-is-saved",
        what="evictions are requested before the protection records are written",
        file=CORE,
        old="self.inputs.mark([*saved, *out])",
        new="self.inputs.mark([*out, *saved])",
        tests=(f"{TEST}::test_the_eviction_reason_of_a_reclaimed_pod_names_queue_and_replacement",),
    ),
    Mutant(
        name="plan-goes-on-without-a-victim",
        what="a plan evicts the other victims though one cannot be evicted",
        file=CORE,
        old="        if stuck is None:\n",
        new="        if True:\n",
        tests=(f"{TEST}::test_an_eviction_denied_by_a_budget_cancels_the_plan_and_another_is_made",),
    ),
    Mutant(
        name="budgeted-victims-at-once",
        what="victims under a budget are evicted together with the others",
        file="services/preemptor/plans/execution.py",
        old=(
            "        return tuple(\n"
            "            victim\n"
            "            for victim in self.plan.victims\n"
            "            if victim.uid in self.victims_left and (not first or victim.uid == first)\n"
            "        )\n"
        ),
        new="        return tuple(victim for victim in self.plan.victims if victim.uid in self.victims_left)\n",
        tests=(f"{TEST}::test_victims_under_a_budget_are_evicted_first_the_tightest_first",),
    ),
    Mutant(
        name="budget-one-too-generous",
        what="disruption budgets allow one eviction too many",
        file=BUDGETS,
        old="self._promised[name] + count <= allowed[name] for",
        new="self._promised[name] + count <= allowed[name] + 1 for",
        tests=(f"{PLANS}::test_a_budget_of_one_allows_no_two_evictions",),
    ),
    Mutant(
        name="plans-in-progress-not-counted",
        what="budgets do not count the victims of plans in progress",
        file=BUDGETS,
        old="self._promised = Counter(name for uid in promised if uid in self._book.pods for name in self.of(uid))",
        new="self._promised = Counter()",
        tests=(f"{PLANS_QUEUES}::test_plans_in_progress_count_against_budgets",),
    ),
    Mutant(
        name="plans-of-a-round-not-counted",
        what="budgets do not count the victims of other plans of the same round",
        file=BUDGETS,
        old="        self._promised.update(name for victim in victims if",
        new="        self._promised.update(name for victim in () if",
        tests=(f"{PLANS_QUEUES}::test_plans_of_one_round_count_against_budgets",),
    ),
    Mutant(
        name="hourly-budget-of-a-plan",
        what="one plan may exceed the hourly budget of a namespace",
        file=BUDGETS,
        old="budgets_of(self._book.pods[uid], self._book) | hourly",
        new="budgets_of(self._book.pods[uid], self._book)",
        tests=(f"{UNIT}/test_protection.py::test_no_plan_exceeds_the_hourly_budget_of_a_namespace",),
    ),
    Mutant(
        name="hourly-budget-not-spent",
        what="the hourly budget of a namespace has no effect",
        file=PROTECTION,
        old="        self._evicted.setdefault(known.namespace, deque()).append(now)\n",
        new="",
        tests=(f"{UNIT}/test_protection.py::test_evictions_count_for_an_hour",),
    ),
    Mutant(
        name="no-protection",
        what="replacements of preempted pods may be preempted at once",
        file=PROTECTION,
        old="return known is not None and bool(known.since) and self._until(known, state) > now",
        new="return False",
        tests=(f"{UNIT}/test_protection.py::test_the_replacement_of_a_replacement_is_protected_for_twice_as_long",),
    ),
    Mutant(
        name="protection-does-not-grow",
        what="protection does not grow with repeated evictions",
        file=PROTECTION,
        old="return self._first_s * 2.0 ** (generation - 1)",
        new="return self._first_s",
        tests=(f"{UNIT}/test_protection.py::test_the_replacement_of_a_replacement_is_protected_for_twice_as_long",),
    ),
    Mutant(
        name="eviction-without-uid",
        what="an eviction ends any pod of that name",
        file="shared/kube/pod_writes.py",
        old='options: dict[str, Any] = {"preconditions": _preconditions(order.uid, order.resource_version)}',
        new="options: dict[str, Any] = {}",
        tests=(VERY_POD,),
    ),
    Mutant(
        name="deletion-without-uid",
        what="a deletion ends any pod of that name",
        file="shared/kube/pod_writes.py",
        old=(
            "        body = {\n"
            '            "apiVersion": "v1",\n'
            '            "kind": "DeleteOptions",\n'
            '            "preconditions": _preconditions(order.uid, order.resource_version),\n'
            "        }\n"
        ),
        new='        body = {"apiVersion": "v1", "kind": "DeleteOptions"}\n',
        tests=(VERY_POD,),
    ),
    Mutant(
        name="place-of-another-plan-is-free",
        what="the preemptor plans with what is reserved for another plan",
        file="services/preemptor/planning/beside.py",
        old="        reserve_closed(fork, other.places)\n",
        new="        pass\n",
        tests=(f"{BESIDE}::test_the_place_of_the_first_is_not_free_when_its_victim_is_gone",),
    ),
    Mutant(
        name="beside-victims-that-run",
        what="a node is open to another plan before the victims of the first are seen to end",
        file=EXECUTION,
        old="if not self.places or self.victims_left or any(ends_by(state.pod) is None for state in victims):",
        new="if not self.places or self.victims_left:",
        tests=(f"{BESIDE}::test_a_second_plan_is_made_as_soon_as_the_victims_of_the_first_end",),
    ),
    Mutant(
        name="beside-what-is-not-told",
        what="a node is open to another plan although what is reserved there is not known",
        file=EXECUTION,
        old="if not self.places or self.victims_left",
        new="if self.victims_left",
        tests=(f"{BESIDE}::test_a_node_is_closed_without_word_of_what_is_reserved_there",),
    ),
    Mutant(
        name="beside-what-is-left-over",
        what="pods are evicted although an ending victim leaves enough",
        file="services/preemptor/planning/planner.py",
        old="if option is not None and is_beside and not self._needs_all(option, state) else option",
        new="if False else option",
        tests=(f"{BESIDE}::test_nobody_is_evicted_where_the_first_plan_frees_enough",),
    ),
    Mutant(
        name="no-option-is-no-option",
        what="a pod that found no option waits ten seconds although a node is about to be open to it",
        file=CORE,
        old="soon=self._opening.may_be_open_soon(members, now)",
        new="soon=False",
        tests=(f"{BESIDE}::test_a_node_is_taken_over_in_one_grace_period",),
    ),
    Mutant(
        name="beside-a-pod-that-needs-others",
        what="other plans are made beside that of a pod that has to be near another one",
        file="services/placement/preemption/reservation.py",
        old="return plan.only_evicts and not any(state.attracted for state in states)",
        new="return plan.only_evicts",
        tests=(f"{RESERVED_BESIDE}::test_a_pod_that_has_to_be_near_another_has_no_plan_beside_it",),
    ),
    Mutant(
        name="refused-again-and-again",
        what="a node that placement has refused is proposed again twice a second while another plan begins",
        file="services/preemptor/pending_pods.py",
        old="self[state.uid].not_before = now + SOON_S",
        new="self._delay([state], now + SOON_S)",
        tests=(f"{BESIDE}::test_a_node_that_placement_refused_is_not_tried_again_soon",),
    ),
    Mutant(
        name="when-all-plans-are-done",
        what="a pod is said to start when the victims of other plans on its node are gone, too",
        file="services/placement/preemption/plans.py",
        old="        leave_to(self.reservations.beside(found.plan), book)\n",
        new="",
        tests=(f"{RESERVED_BESIDE}::test_when_a_pod_starts_does_not_depend_on_plans_beside_its_own",),
    ),
    Mutant(
        name="all-of-a-long-queue-again",
        what="each pod of a long queue is looked at again twice a second while plans begin",
        file="services/preemptor/plans/opening.py",
        old="        self._left -= len(members)\n",
        new="",
        tests=(f"{UNIT}/plans/test_opening.py::test_of_a_long_queue_the_first_are_looked_at",),
    ),
    Mutant(
        name="opening-for-ever",
        what="pods are looked at again twice a second for as long as a plan closes its nodes",
        file="services/preemptor/plans/opening.py",
        old="            if now - one.since < OPENED_WITHIN_S:\n",
        new="            if True:\n",
        tests=(f"{UNIT}/plans/test_opening.py::test_a_plan_that_goes_on_for_longer_makes_nobody_look_again_soon",),
    ),
    Mutant(
        name="plan-beside-a-move",
        what="a node with a plan that moves pods is open to another plan",
        file=RESERVATIONS,
        old="alone = [r for r in in_progress if not (r.beside and can_be_beside(plan, self.book))]",
        new="alone = [r for r in in_progress if not can_be_beside(plan, self.book)]",
        tests=(f"{RESERVED_BESIDE}::test_a_plan_that_does_more_than_evict_is_alone_on_its_nodes",),
    ),
    Mutant(
        name="plans-share-a-gpu",
        what="two plans reserve parts of one GPU",
        file="shared/book/reserved.py",
        old='            book.close_gpu(node, uuid, "it is reserved for another pod")\n',
        new="            pass\n",
        tests=(f"{RESERVED_BESIDE}::test_two_plans_do_not_share_a_gpu",),
    ),
    Mutant(
        name="victims-room-counts-twice",
        what="another plan leaves to a plan what its victims have and what it needs",
        file="services/placement/preemption/reservation.py",
        old="reserve_closed(book, beyond_victims(kept, victims))",
        new="reserve_closed(book, beyond_victims(kept, []))",
        tests=(f"{RESERVED_BESIDE}::test_victims_make_room_on_a_node_whose_cpu_is_all_requested",),
    ),
    Mutant(
        name="places-need-no-room-of-their-own",
        what="another plan takes what the first needs beyond what its victims have",
        file="shared/book/reserved.py",
        old="            twin.demand, had[uid] = beyond(twin.demand, had[uid]), beyond(had[uid], twin.demand)\n",
        new="            twin.demand = type(twin.demand)()\n",
        tests=(f"{RESERVED_BESIDE}::test_room_that_another_plan_needs_is_left_to_it",),
    ),
    Mutant(
        name="kept-for-a-member-that-is-gone",
        what="the place of a member that is gone stays kept, and its gang gets no other plan",
        file="shared/book/gangs.py",
        old="        gang.kept.pop(uid, None)\n",
        new="",
        tests=(
            "tests/unit/services/placement/preemption/test_reservations.py"
            "::test_a_member_that_is_gone_keeps_its_gang_from_no_other_plan",
        ),
    ),
    Mutant(
        name="takes-what-is-reserved-for-another",
        what="what is reserved for all pods of a plan is released before the first of them is decided",
        file="services/placement/protocol/commit.py",
        old="            release(uid)\n",
        new="            for one, _ in places:\n                release(one)\n",
        tests=(
            "tests/unit/services/placement/preemption/test_reservations.py"
            "::test_a_pod_of_a_gang_never_takes_what_is_reserved_for_another_one",
        ),
    ),
    Mutant(
        name="first-done-finds-no-room",
        what="a plan whose victims are gone is placed beside what other plans have booked in addition to their victims",
        file="services/placement/preemption/plans.py",
        old="self._book.without_room(self.reservations.placeholders_beside(plan))",
        new="self._book.without_room([])",
        tests=(f"{RESERVED_BESIDE}::test_a_place_is_kept_beside_a_victim_that_has_more_than_the_place_needs",),
    ),
    Mutant(
        name="returned-nodes-are-not-planned-for",
        what="on a node that was gone for a moment nothing is preempted until its agent reports its GPUs again",
        file="services/preemptor/cluster.py",
        old="                if seen.metadata.name in self.book.nodes:\n",
        new="                if False:\n",
        tests=(f"{UNIT}/test_core_rounds.py::test_on_a_node_that_comes_back_pods_are_preempted_again",),
    ),
    Mutant(
        name="launchers-keep-their-gang-from-preempting",
        what="a gang of which one member needs no GPU preempts no pod",
        file="services/preemptor/pending_pods.py",
        old="        if found and found[0].request is None:\n",
        new="        if any(state.request is None for state in found):\n",
        tests=("tests/unit/services/preemptor/test_tables.py::test_before_and_after",),
    ),
    Mutant(
        name="launchers-keep-their-gang-from-being-preempted",
        what="a gang of which one member needs no GPU is never preempted",
        file="services/preemptor/planning/victims.py",
        old="                or not (state.grant_id or (state.request is None and state.charged))\n",
        new="                or not state.grant_id\n",
        tests=("tests/unit/services/preemptor/test_tables.py::test_before_and_after",),
    ),
    Mutant(
        name="launchers-only-beside-gpus",
        what="a plan does not know the nodes without GPUs, where a gang's launcher could run",
        file="services/preemptor/planning/areas.py",
        old="        return self._with_gpus if by_gpu else self._all\n",
        new="        return self._with_gpus\n",
        tests=("tests/unit/services/preemptor/test_tables.py::test_before_and_after",),
    ),
    Mutant(
        name="launchers-are-gone-at-once",
        what="a plan goes on while a victim without GPUs still runs",
        file=RESERVATIONS,
        old="        if victim.grant_id:\n",
        new="        if True:\n",
        tests=(LAUNCHER_ENDS,),
    ),
    Mutant(
        name="launchers-need-an-agent",
        what="a plan with a launcher on a node without an agent evicts its victims and never places a pod",
        file=RESERVATIONS,
        old="        return bool(node.agent_trouble) if needs_agent else node.object is None\n",
        new="        return bool(node.agent_trouble)\n",
        tests=("tests/unit/services/preemptor/test_tables.py::test_before_and_after",),
    ),
    Mutant(
        name="launchers-elsewhere-are-awaited",
        what="freed GPUs wait for a launcher on another node, for as long as it takes to end",
        file=RESERVATIONS,
        old="        return state is None or state.ended or all(state.charged != b.node for b in plan.beneficiaries)\n",
        new="        return state is None or state.ended\n",
        tests=(LAUNCHER_ENDS,),
    ),
    Mutant(
        name="reasons-by-age-alone",
        what="nothing is preempted for an important pod before the reasons of all that came earlier are found",
        file="services/placement/scheduling/unplaced.py",
        old="self._by_priority[max(self._by_priority)] if self._important_next else self._unexplained",
        new="self._unexplained",
        tests=(
            "tests/unit/services/placement/scheduling/test_unplaced.py::"
            "test_the_most_important_pod_and_the_oldest_note_take_turns",
        ),
    ),
    Mutant(
        name="reasons-by-importance-alone",
        what="unimportant pods are told no reason while important ones come",
        file="services/placement/scheduling/unplaced.py",
        old="self._important_next = not self._important_next",
        new="pass",
        tests=(
            "tests/unit/services/placement/scheduling/test_unplaced.py::"
            "test_the_most_important_pod_and_the_oldest_note_take_turns",
        ),
    ),
]
