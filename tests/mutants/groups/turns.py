"""Turns: who yields, what is booked on hosts, and which orders may still be written."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_POLICY = "shared/queues/turns.py"
_HOST = "services/placement/protocol/host_memory.py"
_HOLDS = "services/placement/preemption/gang_holds.py"
_SUSPENSION = "services/placement/protocol/suspension.py"
_MOVES = "services/placement/protocol/moves.py"
_OF_MOVES = "tests/unit/services/placement/protocol/test_moves.py::"
_TESTS = "tests/unit/services/placement/preemption/test_turns.py::"
_PLANNER = "tests/unit/services/preemptor/turns/test_planner.py::"
_BOTH = "tests/unit/services/preemptor/test_turns_both_cores.py::"
_CIRCLE = "tests/unit/shared/queues/test_turns.py::"
_REHEARSALS = "tests/unit/services/node_agent/strategies/test_suspension_rehearsals.py::"
_AGENT_HOLDS = "tests/unit/services/node_agent/strategies/test_holds.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="paused-in-an-overdue-jobs-way",
        what="jobs take turns by pauses although their memory keeps an overdue one from ever running",
        file="services/preemptor/turns/options.py",
        old='                if action == "checkpoint" or not self._stays_in_the_way(victims):\n',
        new="                if True:\n",
        tests=(
            "tests/unit/services/preemptor/turns/test_planner.py::"
            "test_jobs_are_not_paused_in_the_way_of_an_overdue_one",
        ),
    ),
    Mutant(
        name="checkpointed-where-the-host-has-no-room",
        what="jobs are checkpointed in the way of an overdue one although the host has no room for all of them",
        file="services/preemptor/turns/options.py",
        old="            if self._has_host_memory(needed):\n                self._in_the_way",
        new="            if True:\n                self._in_the_way",
        tests=(
            "tests/unit/services/preemptor/turns/test_planner.py::"
            "test_jobs_in_the_way_are_paused_where_the_host_has_no_room_for_all_of_them",
        ),
    ),
    Mutant(
        name="watchdog-forgotten",
        what="a suspended job is not served before its watchdog ends it",
        file="shared/turns/rules.py",
        old="    if now >= due_back_at(waiting, rules):\n",
        new="    if now > due_back_at(waiting, rules) + waiting.bound_s:\n",
        tests=(
            "tests/unit/services/preemptor/turns/test_planner.py::"
            "test_a_gang_is_back_before_its_watchdog_ends_it_however_much_it_has_had",
        ),
    ),
    Mutant(
        name="watchdogs-without-number",
        what="more jobs with watchdogs take turns on a GPU than can be back in time",
        file=_POLICY,
        old="        if bound_s == inf or beneficiary.seen_bound:\n",
        new="        if bound_s < inf:\n",
        tests=(_CIRCLE + "test_no_more_jobs_with_watchdogs_take_turns_on_a_gpu_than_can_be_back_in_time",),
    ),
    Mutant(
        name="crowded-gpu-searched",
        what="the search for a turn ends at a GPU that has enough jobs with watchdogs",
        file="services/preemptor/turns/options.py",
        old="                near = [one for one in near if not self._watchdogs.is_crowded(waiting, one.job)]\n",
        new="                pass\n",
        tests=(
            "tests/unit/services/preemptor/turns/test_planner.py::"
            "test_a_new_gang_goes_where_its_watchdog_leaves_it_a_place_among_the_turns",
        ),
    ),
    Mutant(
        name="host-filled",
        what="a turn leaves no room on the host for those that yield when a job comes back for its watchdog",
        file=_POLICY,
        old="        why = host_memory.lacking(self._book, parked, kept)\n",
        new="        why = host_memory.lacking(self._book, parked)\n",
        tests=(_TESTS + "test_a_host_keeps_room_for_those_that_yield_when_a_gang_comes_back",),
    ),
    Mutant(
        name="kept-and-freed",
        what="what a job frees that comes back does not count as room for those that yield to the next one",
        file=_POLICY,
        old="                found[name] = found.get(name, 0) - mib\n",
        new="                found[name] = found.get(name, 0)\n",
        tests=(
            "tests/unit/services/preemptor/turns/test_planner.py::"
            "test_what_a_gang_frees_that_comes_back_counts_as_room_for_the_next_return",
        ),
    ),
    Mutant(
        name="workers-think-the-agent-is-gone",
        what="processes are unlocked while others of their pod are copied",
        file="services/node_agent/strategies/lock_pool.py",
        old="        await self._of(pid).lock(pid, within_ms)\n        self._keep_beating()\n",
        new="        await self._of(pid).lock(pid, within_ms)\n",
        tests=(
            "tests/unit/services/node_agent/strategies/test_lock_pool.py::"
            "test_a_process_stays_locked_while_others_are_copied_for_longer_than_the_patience",
        ),
    ),
    Mutant(
        name="gang-overtaken",
        what="a gang that waits for several GPUs is overtaken by those that want a part of them",
        file="services/node_agent/strategies/alone.py",
        old="            busy |= wanted\n",
        new="",
        tests=(
            "tests/unit/services/node_agent/strategies/test_alone.py::"
            "test_who_wants_much_is_not_overtaken_by_those_that_want_a_part_of_it",
        ),
    ),
    Mutant(
        name="room-seen-twice",
        what="two pods that are copied at once take the same free memory of the host",
        file="services/node_agent/strategies/checkpointing.py",
        old="            self._copying[uid] = sum(bytes_of)\n",
        new="            pass\n",
        tests=(
            "tests/unit/services/node_agent/strategies/test_checkpointing.py::"
            "test_two_pods_that_are_copied_at_once_do_not_take_the_same_room",
        ),
    ),
    Mutant(
        name="lifted-by-a-watchdog",
        what="a job that comes back for its watchdog begins again at level 0",
        file="services/placement/protocol/gpu_times.py",
        old="        if self._turns.takes_turns(state) and is_overdue(self._turns.job(state, at), self._turns.rules, at):\n",
        new="        if self._turns.takes_turns(state) and self._turns.rank(state, at)[0] < 0:\n",
        tests=(_TESTS + "test_a_job_that_comes_back_for_its_watchdog_keeps_its_level_and_says_if_it_is_late",),
    ),
    Mutant(
        name="withdrawn-by-a-refusal",
        what="a node that refuses an order of an earlier term ends the suspension",
        file="services/placement/core.py",
        old='        cannot = event.reason if event.ok else ""',
        new="        cannot = event.reason",
        tests=(_TESTS + "test_an_order_that_is_refused_as_such_withdraws_no_suspension",),
    ),
    Mutant(
        name="plans-of-an-untrusted-log",
        what="a leader that does not trust the log leaves its plans open in it",
        file="services/placement/takeover.py",
        old="            out += self._preemption.readopt(self.recovery, self.term, now, goes_on=False)\n",
        new="",
        tests=(_TESTS + "test_a_leader_that_does_not_trust_the_log_gives_its_plans_up",),
    ),
    Mutant(
        name="places-of-a-plan-given-up",
        what="a plan that was given up keeps its places for as long as its order may be written",
        file="services/placement/preemption/plans.py",
        old="            self.reservations.release_all(found)\n            self._capacity_changes.note()\n",
        new="            self._capacity_changes.note()\n",
        tests=(_TESTS + "test_a_plan_that_was_given_up_keeps_no_place_and_no_pod_waiting_for_another_plan",),
    ),
    Mutant(
        name="plan-for-an-excluded-pod",
        what="a plan is reserved for a pod that a forgotten Binding may still bind",
        file="services/placement/preemption/reservations.py",
        old="            if state.excluded:",
        new="            if False:",
        tests=(
            "tests/unit/services/placement/preemption/test_reservations.py::"
            "test_no_plan_is_for_a_pod_that_cannot_be_updated",
        ),
    ),
    Mutant(
        name="plans-within-the-largest-gpu",
        what="a plan is compared with a limit by the largest GPU, and a queue exceeds it on a smaller one",
        file="services/placement/preemption/reservations.py",
        old='        over = "" if plan.turn else self._over_quota_on(plan, places)\n',
        new='        over = ""\n',
        tests=(
            "tests/unit/services/placement/preemption/test_reservations.py::"
            "test_a_quota_is_compared_by_the_gpus_of_the_plan",
        ),
    ),
    Mutant(
        name="turns-on-nodes-that-do-not-admit",
        what="a turn ends on a node that the pending pod may not use, again and again",
        file="services/preemptor/turns/options.py",
        old="        return self._admits[state.uid](node)\n",
        new="        return True\n",
        tests=(_PLANNER + "test_no_turn_ends_on_a_node_that_the_pending_pod_may_not_use",),
    ),
    Mutant(
        name="turns-where-placement-refuses",
        what="a job whose plan was refused gets the same plan again",
        file="services/preemptor/turns/planner.py",
        old="                self._elsewhere.setdefault(one.uid, {})[one.node] = now + ELSEWHERE_S\n",
        new="",
        tests=(_PLANNER + "test_a_node_that_placement_has_refused_is_not_tried_again",),
    ),
    Mutant(
        name="equal-gpus-fit-nowhere",
        what="a job is left out because another one that asks for the same GPUs, and more CPU, found nothing",
        file="services/preemptor/turns/planner.py",
        old='union(("demand", "request"), *(one.reads for one in filters().node))',
        new='union(("request",))',
        tests=(_PLANNER + "test_a_job_that_fits_nowhere_keeps_no_other_from_its_turn",),
    ),
    Mutant(
        name="queues-in-any-order",
        what="the queue whose jobs were seen first takes all plans for turns that may be proposed",
        file="services/preemptor/turns/planner.py",
        old="in sorted(due.items(), key=lambda one: rank(one[1][0].known, rules, now)):",
        new="in due.items():",
        tests=(_PLANNER + "test_the_first_jobs_of_all_queues_are_served_in_order_of_their_waits",),
    ),
    Mutant(
        name="gangs-resume-in-part",
        what="pods of a gang that was suspended as a whole resume one by one when its queue has turns no more",
        file="services/placement/protocol/resumption_order.py",
        old="if self._turns.takes_turns(state) or any(map(_turn_of, waiting)) else",
        new="if self._turns.takes_turns(state) else",
        tests=(
            _BOTH + "test_a_gang_that_was_suspended_as_a_whole_resumes_as_a_whole_though_its_queue_has_turns_no_more",
        ),
    ),
    Mutant(
        name="watchdog-loads-for-each-victim",
        what="what watchdogs load is looked up for each victim of a gang: seconds of the leader's loop",
        file="services/placement/preemption/turns.py",
        old="self._loads = cache(self._policy.watchdog_loads)",
        new="self._loads = self._policy.watchdog_loads",
        tests=(_BOTH + "test_a_plan_for_a_gang_looks_up_what_watchdogs_load_once",),
    ),
    Mutant(
        name="restored-after-a-success",
        what="the agent restores a pod whose suspension failed in part and then succeeded",
        file="services/node_agent/suspensions.py",
        old="applied=task.suspension, restore_pending=False, on_host=on_host",
        new="applied=task.suspension, on_host=on_host",
        tests=(
            "tests/unit/services/node_agent/test_suspensions.py::"
            "test_a_pod_whose_suspension_failed_in_part_and_then_succeeded_is_not_restored",
        ),
    ),
    Mutant(
        name="answer-with-an-earlier-number",
        what="the answer to an order that changes nothing names an earlier one",
        file="services/node_agent/core.py",
        old="            self.store.note_order(known, received.number)\n",
        new="",
        tests=(
            "tests/unit/services/node_agent/test_suspensions.py::"
            "test_the_answer_to_an_order_that_changes_nothing_names_its_number",
        ),
    ),
    Mutant(
        name="overdue-job-passed-over",
        what="a job behind an overdue one ends the turn for which that one waits",
        file="services/preemptor/turns/options.py",
        old="            self._kept |= {one.uid for one in self._too_short}\n",
        new="            pass\n",
        tests=(
            "tests/unit/services/preemptor/test_turns.py::test_no_job_ends_the_turn_for_which_an_overdue_one_waits",
        ),
    ),
    Mutant(
        name="finished-pods-hold-gpus",
        what="a preemptor that begins counts the GPUs of finished pods whose objects exist",
        file="services/preemptor/cluster.py",
        old="                self._release_ended(known)\n",
        new="",
        tests=(
            "tests/unit/services/preemptor/test_core.py::"
            "test_a_pod_that_had_finished_before_the_preemptor_began_holds_no_gpu",
        ),
    ),
    Mutant(
        name="turn-of-half-a-gang",
        what="the turn of some members of a gang ends, and the others run on",
        file=_POLICY,
        old="            if left is not None:\n",
        new="            if False:\n",
        tests=(_CIRCLE + "test_a_gang_yields_as_a_whole_and_is_weighed_as_a_whole",),
    ),
    Mutant(
        name="turn-between-queues",
        what="a job takes the turn of one of another queue or priority",
        file=_POLICY,
        old="        if self.circle(beneficiary) != self.circle(victim):\n",
        new="        if False:\n",
        tests=(_CIRCLE + "test_jobs_take_turns_within_their_queue_and_priority",),
    ),
    Mutant(
        name="host-memory-of-the-next-plan",
        what="a checkpoint is reserved though the host has no room",
        file="services/placement/preemption/reservations.py",
        old="        return self._refuses(plan, waiting, going, now) or host_memory.lacking(self.book, to_host)\n",
        new="        return self._refuses(plan, waiting, going, now)\n",
        tests=("tests/unit/services/placement/preemption/test_reservations.py::test_a_full_host_takes_no_victim[0]",),
    ),
    Mutant(
        name="host-taken-while-paused",
        what="host memory of a pod that is back stays booked while the pod is paused for another plan",
        file=_HOST,
        old="held.grant_id in open_checkpoints or goes_to_host(held.suspension)",
        new="held.grant_id in open_checkpoints or held.suspension is not None",
        tests=(_TESTS + "test_host_memory_of_a_pod_that_is_back_is_free_though_the_pod_is_paused_again",),
    ),
    Mutant(
        name="host-memory-of-a-paused-pod-is-not-asked-for",
        what="a node is not asked again for the host memory of a pod that is paused by now",
        file=_HOST,
        old='            if state is None or held.phase != "bound":\n',
        new='            if state is None or state.suspension is not None or held.phase != "bound":\n',
        tests=(_TESTS + "test_host_memory_of_a_pod_that_is_back_is_free_though_the_pod_is_paused_again",),
    ),
    Mutant(
        name="host-free-by-an-earlier-answer",
        what="an answer to an earlier order frees host memory",
        file=_HOST,
        old="        if held is None or asked is None or not event.whole or event.number < asked:\n",
        new="        if held is None or asked is None or not event.whole:\n",
        tests=(_TESTS + "test_an_answer_to_an_earlier_order_frees_no_host_memory",),
    ),
    Mutant(
        name="plan-over-while-its-order-may-be-written",
        what="a plan that is given up ends while its order to checkpoint a pod may still be written",
        file="services/placement/preemption/plans.py",
        old="        if not self.reservations.settled(found):\n",
        new="        if False:\n",
        tests=(
            _TESTS + "test_a_plan_that_was_given_up_keeps_its_host_memory_until_its_order_cannot_be_written_any_more",
        ),
    ),
    Mutant(
        name="confirmed-by-the-order-before",
        what="an answer to the same plan's order before it was withdrawn confirms a suspension",
        file=_SUSPENSION,
        old="        elif suspension == state.suspension and 0 < number < self._told_number.get(state.uid, 0):\n",
        new="        elif False:\n",
        tests=(_TESTS + "test_an_answer_to_the_same_plans_order_before_it_was_withdrawn_books_nothing",),
    ),
    Mutant(
        name="move-not-taken-over",
        what="a new leader does not book the moves in the log",
        file=_MOVES,
        old="                self._open[state.uid] = Move(found, self._reserve(state, held, found), gpus, None, logged=True)\n",
        new="                continue\n",
        tests=(_OF_MOVES + "test_a_new_leader_keeps_the_place_until_the_pod_is_seen_at_another_version",),
    ),
    Mutant(
        name="move-not-logged-again",
        what="a new leader does not write the moves that it has taken over",
        file=_MOVES,
        old="        return [move.amendment for move in self._open.values() if move.logged and not move.void]\n",
        new="        return []\n",
        tests=(_OF_MOVES + "test_the_leader_after_the_next_one_knows_the_move_too",),
    ),
    Mutant(
        name="move-not-feared",
        what="a leader without a complete log gives what a pod may still move to",
        file=_MOVES,
        old="            elif not recovery.ready or recovery.was_excluded(state):\n",
        new="            elif False:\n",
        tests=(_OF_MOVES + "test_without_a_complete_log_nothing_of_the_node_is_given_until_the_pod_has_moved",),
    ),
    Mutant(
        name="fear-not-logged",
        what="the leader after one without a complete log trusts the log",
        file="services/placement/takeover.py",
        old="        excluded = self.recovery.excluded | self._suspender.moves.feared\n",
        new="        excluded = self.recovery.excluded\n",
        tests=(_OF_MOVES + "test_without_a_complete_log_nothing_of_the_node_is_given_until_the_pod_has_moved",),
    ),
    Mutant(
        name="node-told-before-the-move-is-booked",
        what="a pod that moved is told to its node as still suspended",
        file="services/placement/core.py",
        old="                    self.suspension.amended(self.book.pods[change.name])\n",
        new="",
        tests=(
            _OF_MOVES + "test_the_move_is_booked_and_logged_before_it_is_ordered_and_the_node_is_told_when_it_is_seen",
        ),
    ),
    Mutant(
        name="half-a-gang-resumes",
        what="a member of a gang resumes when there is room for it alone",
        file="services/placement/protocol/resumption_order.py",
        old="        if gang is None or not is_waiting(state):\n",
        new="        if True:\n",
        tests=(_TESTS + "test_gangs_take_turns_as_a_whole_and_resume_together",),
    ),
    Mutant(
        name="resumption-over-before-it-is-seen",
        what="a plan is over when its suspended pods were ordered to resume",
        file="services/placement/preemption/plans.py",
        old="        if left:\n",
        new="        if left and not found.resuming:\n",
        tests=(_TESTS + "test_a_suspended_pod_resumes_by_a_plan_when_the_victims_are_suspended",),
    ),
    Mutant(
        name="gang-checkpointed-while-it-runs",
        what="members of a gang are checkpointed though not all of them stand still",
        file=_HOLDS,
        old="            if not holds[key].held:\n",
        new="            if not holds[key].attempt:\n",
        tests=(_TESTS + "test_a_gang_is_checkpointed_when_all_of_its_members_stand_still",),
    ),
    Mutant(
        name="hold-by-the-answer-before",
        what="an answer to an earlier attempt counts for the next one",
        file=_HOLDS,
        old="        if hold is None or event.attempt != hold.attempt or event.node not in hold.waits_for:\n",
        new="        if hold is None or event.node not in hold.waits_for:\n",
        tests=(_TESTS + "test_a_gang_that_does_not_stand_still_goes_on_and_is_asked_again_a_moment_later",),
    ),
    Mutant(
        name="gang-held-for-no-plan",
        what="a gang stands still on, though the plan has ended",
        file=_HOLDS,
        old="        return [order for key, hold in ended.items() for order in _orders(plan_id, key, hold, term, 0)]\n",
        new="        return [] if ended else []\n",
        tests=(_TESTS + "test_a_plan_that_ends_while_its_gang_is_held_lets_it_go_on",),
    ),
    Mutant(
        name="gang-asked-for-ever",
        what="a gang that never stands still is stopped again and again",
        file=_HOLDS,
        old="            if hold.refused and not hold.waits_for and hold.attempt >= MOST_ATTEMPTS:\n",
        new="            if False:\n",
        tests=(_TESTS + "test_a_gang_that_never_stands_still_ends_the_plan_and_runs_on",),
    ),
    Mutant(
        name="idle-yields-late",
        what="an idle job keeps its GPU for the shortest turn",
        file="shared/turns/rules.py",
        old="        running.idle or now - running.since >= rules.min_turn_s",
        new="        now - running.since >= rules.min_turn_s",
        tests=("tests/unit/shared/turns/test_rules.py::test_who_yields",),
    ),
    Mutant(
        name="idle-resumes",
        what="an idle pod resumes although nothing of it wants the GPU",
        file="services/placement/protocol/resumption_order.py",
        old="            idle = is_waiting(state) and self._turns.is_idle(state, now)\n",
        new="            idle = False\n",
        tests=(_TESTS + "test_an_idle_pod_is_suspended_at_once_and_resumes_when_it_wants_the_gpu",),
    ),
    Mutant(
        name="idle-for-ever",
        what="a suspended job whose wait nobody sees is never served",
        file=_POLICY,
        old=" and now - since < self.rules.max_wait_s",
        new="",
        tests=(_CIRCLE + "test_a_suspended_job_stays_idle_until_its_wait_might_have_been_missed",),
    ),
    Mutant(
        name="half-a-gang-idle",
        what="a gang of which half runs counts as idle, so that its other half stays suspended",
        file=_POLICY,
        old="        return all(map(is_waiting, members)) and now",
        new="        return now",
        tests=(_CIRCLE + "test_a_gang_is_idle_only_as_a_whole",),
    ),
    Mutant(
        name="idle-time-waited",
        what="a job waits since its suspension, although it wants the GPU only now",
        file=_POLICY,
        old="since = max(state.gpu_time.since, min(self._woken_at(state), now))",
        new="since = state.gpu_time.since",
        tests=(_CIRCLE + "test_a_job_that_wants_the_gpu_again_waits_from_that_moment_on",),
    ),
    Mutant(
        name="idle-by-ignorance",
        what="a pod whose use of the GPU NVML cannot tell counts as idle",
        file="services/node_agent/idle.py",
        old="one.kernels is not False",
        new="one.kernels",
        tests=("tests/unit/services/node_agent/test_idle.py::test_work_and_what_cannot_be_read_end_idleness",),
    ),
    Mutant(
        name="idle-victims-cost",
        what="a busy job of a high level yields before an idle one",
        file="services/preemptor/turns/planner.py",
        old="            at = end_level(job.known, rules)\n",
        new="            at = level(job.known, rules)\n",
        tests=(
            "tests/unit/services/preemptor/turns/test_planner.py::"
            "test_an_idle_job_yields_before_one_of_a_higher_level_however_short_its_turn",
        ),
    ),
    Mutant(
        name="sync-resumes",
        what="a sync that was overtaken by a suspension resumes the pod",
        file="services/node_agent/syncs.py",
        old="if known is not None and received.number and (term, received.number) < known.order:",
        new="if False:",
        tests=(
            "tests/unit/services/node_agent/test_core_late_orders.py::"
            "test_a_sync_resumes_no_pod_whose_suspension_has_overtaken_it",
        ),
    ),
    Mutant(
        name="back-before-it-went",
        what="memory counts as back on the GPU although a later order moves it to the host",
        file="services/node_agent/suspensions.py",
        old="        goes_on = store.under_way[task.grant_id] > 0",
        new="        goes_on = False",
        tests=(
            "tests/unit/services/node_agent/test_suspensions.py::"
            "test_memory_that_later_orders_move_to_the_host_is_not_reported_as_back",
        ),
    ),
    Mutant(
        name="narrow-subgroup-last",
        what="a gang's subgroup that needs one domain is never tried before one of equal size that needs none",
        file="services/placement/scheduling/gangs/placing.py",
        old="        orders = [by_size] if narrow_first == by_size else [by_size, narrow_first]",
        new="        orders = [by_size]",
        tests=(
            "tests/unit/services/placement/scheduling/gangs/test_gangs_subgroups.py::"
            "test_a_subgroup_without_a_domain_leaves_the_only_rack_to_the_one_that_needs_it",
        ),
    ),
    Mutant(
        name="failed-repeat-restores-all",
        what="a checkpoint that is ordered again and fails brings the memory back to a GPU that another pod has",
        file="services/node_agent/strategies/checkpointing.py",
        old="if moved and await self.restore(uid, only=moved):",
        new="if await self.restore(uid):",
        tests=(
            "tests/unit/services/node_agent/strategies/test_checkpointing.py::"
            "test_what_was_on_the_host_stays_there_when_the_checkpoint_is_ordered_again_and_fails",
        ),
    ),
    Mutant(
        name="failed-repeat-is-not-applied",
        what="the gate counts a checkpointed pod whole when a repeated order fails, and a new leader resumes it",
        file="services/node_agent/suspensions.py",
        old="            if goes_to_host(task.suspension) and goes_to_host(known.applied):\n                applied = known.applied\n",
        new="",
        tests=(
            "tests/unit/services/node_agent/test_suspensions.py::"
            "test_a_repeated_checkpoint_that_fails_leaves_the_pod_on_the_host",
        ),
    ),
    Mutant(
        name="resumes-from-the-host-without-a-gate",
        what="a pod that may be on the host comes back although other slices have its place",
        file="services/node_agent/suspensions.py",
        old="(before.applied is None and not before.on_host)",
        new="before.applied is None",
        tests=(
            "tests/unit/services/node_agent/test_suspensions.py::"
            "test_a_pod_that_may_be_on_the_host_comes_back_only_where_its_place_is_free",
        ),
    ),
    Mutant(
        name="hook-of-whoever-is-oldest",
        what="a repeated order tells the sandbox to sleep",
        file="services/node_agent/strategies/hooks.py",
        old="if await self._processes.running(uid) else None",
        new="if True else None",
        tests=(
            "tests/unit/services/node_agent/strategies/test_hooks.py::"
            "test_a_pod_that_has_nothing_on_gpus_yet_is_told_nothing",
        ),
    ),
    Mutant(
        name="wakes-the-oldest-alone",
        what="a program that left the GPU asleep is not woken up by an agent that began anew",
        file="services/node_agent/strategies/hooks.py",
        old="[(pid, since) for since, pid in sorted(min(group) for group in begun if group)]",
        new="[(pid, since) for since, pid in sorted(min(group) for group in begun if group)][:1]",
        tests=(
            "tests/unit/services/node_agent/strategies/test_hooks.py::"
            "test_an_agent_that_began_anew_wakes_the_program_that_sleeps",
        ),
    ),
    Mutant(
        name="pending-member-before-suspended-ones",
        what="a pending member of a gang takes a turn that the suspended ones wait for",
        file="services/preemptor/turns/circles.py",
        old="(*self._suspended_pods(), *self._pending_pods(now))",
        new="(*self._pending_pods(now), *self._suspended_pods())",
        tests=(
            "tests/unit/services/preemptor/test_turns.py::"
            "test_a_suspended_gang_gets_its_turn_although_another_member_is_pending",
        ),
    ),
    Mutant(
        name="turn-of-a-pod-that-ends",
        what="a member that is being deleted is proposed in place of the others",
        file="services/preemptor/turns/circles.py",
        old="if state.pod.metadata.deletion_timestamp is None:",
        new="if True:",
        tests=("tests/unit/services/preemptor/test_turns.py::test_a_member_that_is_being_deleted_hides_no_other",),
    ),
    Mutant(
        name="always-the-same-jobs-are-tried",
        what="jobs on a full host keep all others from their turn",
        file="services/preemptor/turns/planner.py",
        old="return [*jobs[begin:], *jobs[:begin]]",
        new="return jobs",
        tests=(
            "tests/unit/services/preemptor/test_turns.py::"
            "test_many_suspended_jobs_on_a_host_without_room_keep_no_other_from_its_turn",
        ),
    ),
    Mutant(
        name="every-host-has-room-or-none",
        what="a host that a plan overfills blocks the turns of all nodes",
        file="services/preemptor/turns/host_room.py",
        old="for name in hosts)",
        new="for name in need)",
        tests=(
            "tests/unit/services/preemptor/test_turns.py::"
            "test_a_host_that_a_plan_overfills_keeps_no_turn_from_other_nodes",
        ),
    ),
    Mutant(
        name="record-from-the-future",
        what="a clock that was ahead delays the turn of a job that a watchdog ends",
        file="shared/queues/turns.py",
        old="            return min(since, now)\n",
        new="            return since\n",
        tests=("tests/unit/shared/queues/test_turns.py::test_a_record_of_a_clock_that_was_ahead_delays_no_turn",),
    ),
    Mutant(
        name="resuming-plan-for-ever",
        what="a plan of which a beneficiary never resumes stays open",
        file="services/placement/preemption/reservations.py",
        old='                if now >= reservation.until:\n                    found.append((reservation, "not all of its beneficiaries have resumed", ()))\n',
        new="",
        tests=(
            "tests/unit/services/placement/preemption/test_turns.py::"
            "test_a_pod_that_no_update_resumes_keeps_no_plan_open",
        ),
    ),
    Mutant(
        name="resuming-plan-waits-for-the-dead",
        what="a node that died keeps the other members of a gang suspended",
        file="services/placement/preemption/reservations.py",
        old="        if not found.resuming:\n            return list(found.plan.beneficiaries)\n",
        new="        if True:\n            return list(found.plan.beneficiaries)\n",
        tests=(
            "tests/unit/services/placement/preemption/test_turns.py::"
            "test_a_node_that_dies_while_a_gang_resumes_keeps_no_plan_open",
        ),
    ),
    Mutant(
        name="failed-hold-undoes-a-suspension",
        what="a hold that fails writes old overrides over a suspension that came meanwhile",
        file="services/node_agent/strategies/holds.py",
        old='                await self._released(uids)\n                return str(error)\n            until_s = asyncio.get_running_loop().time() + hold_s\n            self._held |= {uid: _Held(pids[uid], gate, until_s) for uid, gate in gates.items()}\n            return ""\n',
        new='                failed = str(error)\n            else:\n                until_s = asyncio.get_running_loop().time() + hold_s\n                self._held |= {uid: _Held(pids[uid], gate, until_s) for uid, gate in gates.items()}\n                return ""\n        await self._let_go(uids)\n        return failed\n',
        tests=("tests/unit/services/node_agent/strategies/test_holds.py",),
    ),
    Mutant(
        name="failed-rehearsal-stays-locked",
        what="a rehearsal that fails before its first copy leaves the pod locked by the driver",
        file="services/node_agent/strategies/suspension.py",
        old="                        await self._checkpointer.let_go(stopped)\n",
        new="                        pass\n",
        tests=(_REHEARSALS + "test_a_rehearsal_that_fails_after_the_pod_was_stopped_lets_it_go_on",),
    ),
    Mutant(
        name="room-asked-for-while-all-is-locked",
        what="a host that is filled while a pod is being stopped makes its program one that cannot be checkpointed",
        file="services/node_agent/strategies/checkpointing.py",
        old='why = "" if has_room else await self.take_room(uid, bytes_of)',
        new="why = await self.take_room(uid, bytes_of, waits=not has_room)",
        tests=(_REHEARSALS + "test_a_rehearsal_asks_for_room_once_and_before_the_pod_stands_still",),
    ),
    Mutant(
        name="gate-that-fails-keeps-locks",
        what="a container that ends while its pod settles leaves the pod's other processes locked",
        file="services/node_agent/strategies/stopping.py",
        old="except (LockError, OSError, ValueError, KeyError, asyncio.CancelledError):",
        new="except (LockError, asyncio.CancelledError):",
        tests=(_REHEARSALS + "test_a_container_that_ends_while_the_pod_settles_leaves_no_process_locked",),
    ),
    Mutant(
        name="failed-hold-keeps-locks",
        what="a hold that fails after all were stopped unlocks none of them",
        file="services/node_agent/strategies/holds.py",
        old="_Held(stopped, gate, 0.0)",
        new="_Held((), gate, 0.0)",
        tests=(_AGENT_HOLDS + "test_a_hold_that_fails_after_all_were_stopped_unlocks_all_of_them",),
    ),
    Mutant(
        name="pause-in-a-hold-keeps-locks",
        what="a pod that is paused or throttled while it is held stays locked by the driver",
        file="services/node_agent/strategies/holds.py",
        old="if held is not None and not goes_to_host(suspension):",
        new="if False:",
        tests=(_AGENT_HOLDS + "test_an_order_ends_the_hold_of_a_pod_and_what_it_has_changed_stays",),
    ),
    Mutant(
        name="ended-hold-undoes-an-order",
        what="a hold that ends writes the override from before it over that of a later order",
        file="services/node_agent/strategies/holds.py",
        old="            self._held[uid] = msgspec.structs.replace(held, gate=None)\n",
        new="            self._held[uid] = held\n",
        tests=(_AGENT_HOLDS + "test_a_hold_of_which_the_time_is_over_during_an_order_does_not_undo_it",),
    ),
    Mutant(
        name="turns-of-the-first-jobs-alone",
        what="a job that needs more turns than are tried first never gets one",
        file="services/preemptor/turns/options.py",
        old="                if found is None and len(those) > MAX_YIELDING:\n",
        new="                if False:\n",
        tests=(_PLANNER + "test_a_gang_gets_the_turns_of_as_many_jobs_as_it_has_members",),
    ),
    Mutant(
        name="turns-behind-full-hosts",
        what="nodes without room on their hosts hide one that has",
        file="services/preemptor/turns/options.py",
        old="            if any(self._may_be_enough(waiting, [node], near, action) for action in _ACTIONS):\n",
        new="            if near:\n",
        tests=(_PLANNER + "test_nodes_whose_hosts_are_full_hide_no_other_node",),
    ),
    Mutant(
        name="turns-without-time-for-copies",
        what="a plan is given up in the middle of a slow copy, again and again",
        file="services/preemptor/core.py",
        old="deadline_s=self._copies.within_s(plan)",
        new="deadline_s=plan.deadline_s",
        tests=(_PLANNER + "test_a_plan_has_time_for_slow_copies",),
    ),
    Mutant(
        name="turns-bar-the-innocent",
        what="one pod that cannot be suspended bars those that were to be suspended with it",
        file="services/preemptor/messages.py",
        old="executed=False, failed=event.failed",
        new="executed=False",
        tests=("tests/unit/services/preemptor/test_messages.py",),
    ),
    Mutant(
        name="turns-of-a-member-alone",
        what="a new member of a suspended gang takes a turn without it",
        file="services/preemptor/turns/circles.py",
        old="            elif job.key in suspended:\n                continue\n",
        new="",
        tests=(_PLANNER + "test_a_new_member_of_a_suspended_gang_takes_no_turn_without_it",),
    ),
    Mutant(
        name="host-memory-of-requests-alone",
        what="a host is promised more checkpoints than it holds",
        file="shared/book/host_memory.py",
        old="max(share.memory_mib, share.memory_limit_mib)",
        new="share.memory_mib",
        tests=("tests/unit/shared/book/test_host_memory.py",),
    ),
    Mutant(
        name="host-memory-free-too-early",
        what="a pod that waits on the host is reported as back, and its host memory given to another",
        file="services/node_agent/suspensions.py",
        old=" or goes_to_host(task.suspension) or result.on_host)",
        new=" or goes_to_host(task.suspension))",
        tests=("tests/unit/services/node_agent/test_suspensions.py",),
    ),
)
