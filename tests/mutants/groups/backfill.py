"""Weakenings of what is reserved for the head of the queue."""

from tests.mutants.mutant import Mutant

_RESERVATIONS = "services/placement/scheduling/backfill/reservations.py"
_CHOOSING = "services/placement/scheduling/backfill/choosing.py"
_SCHEDULER = "services/placement/scheduler.py"
_TESTS = "tests/unit/services/placement/scheduling/backfill/test_reservations.py::"
_CHOOSING_TESTS = "tests/unit/services/placement/scheduling/backfill/test_choosing.py::"
_STARVATION = "tests/unit/services/placement/scheduling/backfill/test_reservations_starvation.py::"

MUTANTS = [
    Mutant(
        name="stuck-pods-hide-the-others",
        what="pods for which no places were found keep others from their reservation",
        file="services/placement/scheduling/backfill/reservations.py",
        old='                continue  # it must not hide those after it\n',
        new='                pass\n',
        tests=(_TESTS + "test_stuck_pods_ahead_do_not_keep_others_from_their_reservation",),
    ),
    Mutant(
        name="reserved-beyond-the-quota",
        what="places are reserved for a pod that its quota never allows",
        file="services/placement/scheduling/backfill/choosing.py",
        old='        place = trial.engine.decide(states[0], fair.rows_within(states[0]))\n',
        new='        place = trial.engine.decide(states[0])\n',
        tests=(_TESTS + "test_nothing_is_reserved_where_the_quota_would_never_allow_it",),
    ),
    Mutant(
        name="gangs-reserved-beyond-the-quota",
        what="places are reserved for a gang that its quota does not allow",
        file="services/placement/scheduling/backfill/choosing.py",
        old='    return found if is_within(found, trial.book, fair) else None\n\n',
        new='    return found\n\n',
        tests=(_TESTS + "test_no_gang_has_places_reserved_that_its_quota_does_not_allow",),
    ),
    Mutant(
        name="too-few-reserved",
        what="a gang that needs more members keeps the reservation for fewer",
        file="services/placement/scheduling/backfill/reservations.py",
        old='            if gang.by_leaf(kept.places) != gang.by_leaf(together):\n',
        new='            if False:\n',
        tests=(_TESTS + "test_a_gang_that_needs_more_members_has_more_reserved",),
    ),
    Mutant(
        name="moved-reservation-untold",
        what="pods that were kept off places which are others now are not tried again",
        file=_RESERVATIONS,
        old=" or accepted[key].places != places",
        new="",
        tests=(_TESTS + "test_pods_that_were_kept_off_places_which_are_others_now_are_tried_again",),
    ),
    Mutant(
        name="moved-instance-untold",
        what="pods that were kept off an instance which is elsewhere on its GPU now are not tried again",
        file=_RESERVATIONS,
        old="accepted[key].places != places",
        new="sum_shares(p.grant for p in accepted[key].places.values() if p.grant) != sum_shares(\n"
        "                p.grant for p in places.values() if p.grant)",
        tests=(_TESTS + "test_pods_that_were_kept_off_an_instance_which_is_elsewhere_now_are_tried_again",),
    ),
    Mutant(
        name="later-pods-take-reserved-gpus",
        what="a pod that comes later is tried on the book without what is reserved",
        file=_SCHEDULER,
        old="        self._backfill.show_to(state.uid)\n        within",
        new="        within",
        tests=(
            _TESTS + "test_a_pod_that_comes_later_gets_no_reserved_gpu_and_is_told_for_which_gang",
            _STARVATION + "test_with_a_reservation_the_gang_starts_within_a_bound",
        ),
    ),
    Mutant(
        name="later-gangs-take-reserved-gpus",
        what="a gang that comes later is tried on the book without what is reserved",
        file=_SCHEDULER,
        old="        self._backfill.show_to(uid)\n        gang.problem",
        new="        gang.problem",
        tests=(_TESTS + "test_a_less_important_gang_is_kept_off_and_told_for_which_one",),
    ),
    Mutant(
        name="reserved-from-more-important-pods",
        what="pods of higher importance are kept off what is reserved",
        file=_RESERVATIONS,
        old="        if self._queue.entry_of(first) is None or self._precedes(first, head):\n",
        new="        if self._queue.entry_of(first) is None:\n",
        tests=(
            _TESTS + "test_a_more_important_pod_takes_reserved_gpus_and_others_are_reserved_instead",
            _TESTS + "test_an_older_pod_of_the_same_priority_is_not_kept_off",
        ),
    ),
    Mutant(
        name="more-important-pod-waits-with-its-shape",
        what="a more important pod waits because a pod of its shape is kept off",
        file=_SCHEDULER,
        old="            if uid in self._queue and not self._backfill.against(uid):\n",
        new="            if False:\n",
        tests=(_TESTS + "test_a_more_important_pod_is_not_held_up_by_a_kept_off_pod_of_its_shape",),
    ),
    Mutant(
        name="reserved-places-stay-booked",
        what="what is reserved is booked after the attempts, too, for all to see",
        file="services/placement/protocol/commit.py",
        old="        self._scheduler.show_all()\n        out += self._batcher.due(term, now)\n",
        new="        out += self._batcher.due(term, now)\n",
        tests=(_TESTS + "test_nothing_is_booked_between_two_inputs",),
    ),
    Mutant(
        name="queue-uses-what-is-reserved",
        what="a queue counts what is reserved for it as used",
        file=_RESERVATIONS,
        old="        with self._book.unwitnessed():  # nothing is used by its queue\n",
        new="        if True:\n",
        tests=(_TESTS + "test_a_queue_does_not_use_what_is_reserved_for_it",),
    ),
    Mutant(
        name="any-share-may-be-reserved",
        what="more of the cluster is reserved than max_reserved_share allows",
        file=_RESERVATIONS,
        old="        if chosen is None or milli > most:\n",
        new="        if chosen is None:\n",
        tests=(_TESTS + "test_no_more_than_the_allowed_share_of_the_cluster_is_reserved",),
    ),
    Mutant(
        name="any-number-is-reserved",
        what="capacity is reserved for more than max_reservations at once",
        file=_RESERVATIONS,
        old="            if len(accepted) == self._config.max_reservations:\n",
        new="            if False:\n",
        tests=(_TESTS + "test_no_more_than_the_allowed_number_is_reserved_the_most_important_first",),
    ),
    Mutant(
        name="reservation-outlives-its-gang",
        what="capacity stays reserved for a gang that is gone, until the next look",
        file=_RESERVATIONS,
        old="            if not waits or (gang is not None",
        new="            if False and (gang is not None",
        tests=(_TESTS + "test_a_snapshot_may_end_the_gang_and_bring_others_at_once",),
    ),
    Mutant(
        name="every-deadline-is-in-time",
        what="pods are let in that end after the gang could start",
        file=_RESERVATIONS,
        old="        return self._unix_s + START_S + deadline_s + grace_s(state.pod) + STUCK_S <= kept.starts_by\n",
        new="        return True\n",
        tests=(_TESTS + "test_a_pod_that_ends_before_the_gang_can_start_is_let_in",),
    ),
    Mutant(
        name="plans-and-reservations-for-one-pod",
        what="capacity is reserved for a pod for which a plan reserves a place already",
        file=_RESERVATIONS,
        old="            and not any(uid in planned for uid in members)\n",
        new="",
        tests=(_TESTS + "test_a_pod_for_which_a_plan_reserves_a_place_has_no_other_reservation",),
    ),
    Mutant(
        name="reserved-twice",
        what="places are chosen that are reserved for a more important pod",
        file=_CHOOSING,
        old="    reserve(trial)\n    lifted",
        new="    lifted",
        tests=(_CHOOSING_TESTS + "test_what_is_reserved_for_a_more_important_pod_is_not_reserved_again",),
    ),
    Mutant(
        name="servers-end-soon",
        what="pods of Deployments are waited for as if they were jobs",
        file="services/placement/scheduling/backfill/ends.py",
        old="controller.kind in _SERVERS else 0.0)",
        new="False else 0.0)",
        tests=(_CHOOSING_TESTS + "test_pods_of_servers_are_waited_for_last",),
    ),
    Mutant(
        name="more-is-waited-for-than-needed",
        what="of the pods that end first more are waited for than needed",
        file=_CHOOSING,
        old="    while many - few > 1:\n",
        new="    while False:\n",
        tests=(_CHOOSING_TESTS + "test_as_few_pods_are_waited_for_as_will_do",),
    ),
    Mutant(
        name="launchers-keep-their-gang-from-reservations",
        what="for a gang of which the oldest pod needs no GPU nothing is reserved, however long it has waited",
        file="services/placement/scheduling/backfill/reservations.py",
        old="self._gangs.needs_gpus(state)",
        new="state.request is not None",
        tests=("tests/unit/services/placement/scheduling/backfill/test_reservations.py::"
               "test_a_gang_of_which_the_oldest_pod_needs_no_gpu_has_them_reserved_too",),
    ),
]  # fmt: skip
