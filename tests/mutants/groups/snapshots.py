"""What the cluster looks like: the feed without a gap, fresh snapshots, and how certain an end is."""

from tests.mutants.mutant import Mutant

_FEED = "shared/bus/feed.py"
_PAGES = "shared/bus/snapshot_reader.py"
_FEED_TESTS = "tests/unit/shared/bus/test_feed.py::"
_BOOK_TESTS = "tests/unit/shared/book/test_book.py::"
_REFLECT = "tests/unit/shared/kube/test_reflect.py::"
_REACH = "services/watcher/reach.py"
_REACH_TESTS = "tests/unit/services/watcher/test_reach.py::"
_CORE = "tests/unit/services/watcher/test_core.py::"

MUTANTS = [
    Mutant(
        name="any-snapshot",
        what="readers of the feed ask for any snapshot, not for a fresh one",
        file=_PAGES,
        old="SnapshotRequest(fresh=True)",
        new="SnapshotRequest()",
        tests=(_FEED_TESTS + "test_a_reader_requests_a_fresh_snapshot_and_gets_it_completely",),
    ),
    Mutant(
        name="first-page-is-all",
        what="of a snapshot of several pages the first is taken for all",
        file=_PAGES,
        old="range(1, first.pages)",
        new="range(1, 1)",
        tests=(_FEED_TESTS + "test_a_reader_requests_a_fresh_snapshot_and_gets_it_completely",),
    ),
    Mutant(
        name="fresh-is-not-listed-anew",
        what="the watcher answers the wish for a fresh snapshot with what it knows",
        file="services/watcher/service.py",
        old="                    await self.source.refresh()\n",
        new="                    pass\n",
        tests=("tests/unit/services/watcher/test_service.py::test_a_fresh_snapshot_is_listed_again",),
    ),
    Mutant(
        name="the-fresh-snapshot-of-whichever",
        what="a reader asks for a fresh snapshot without knowing that a watcher answers",
        file=_PAGES,
        old="self._request(subjects.snapshot_of(epoch), request, PAGE_TIMEOUT_S)",
        new="self._request(subjects.QUERY_SNAPSHOT, request, PAGE_TIMEOUT_S)",
        tests=(_FEED_TESTS + "test_a_watcher_that_hangs_costs_no_more_than_an_answer",),
    ),
    Mutant(
        name="a-page-of-one-that-ended",
        what="a page is awaited of a watcher that no longer works, though another one does",
        file=_PAGES,
        old="            if working and epoch not in working:\n",
        new="            if False:\n",
        tests=(_FEED_TESTS + "test_a_page_is_awaited_for_as_long_as_its_watcher_works",),
    ),
    Mutant(
        name="the-quickest-watcher-instead",
        what="a page is given up as soon as another watcher works, though its own does too",
        file=_PAGES,
        old="            if working and epoch not in working:\n",
        new="            if working:\n",
        tests=(_FEED_TESTS + "test_a_page_is_awaited_for_as_long_as_its_watcher_works",),
    ),
    Mutant(
        name="requests-outlive-their-connection",
        what="a request from before a reconnection is waited for to its end",
        file="shared/bus/connection.py",
        old="        loop.call_later(REPLACED_S, self._give_up, tuple(self._waiting.values()), loop.time())\n",
        new="        del loop\n",
        tests=(
            "tests/unit/shared/bus/test_nats_bus_faults.py::"
            "test_a_request_that_is_lost_with_its_connection_is_given_up_soon_after_the_next_one",
        ),
    ),
    Mutant(
        name="alone-it-leaves",
        what="a watcher that is cut off leaves though no other one reaches the API server",
        file=_REACH,
        old="(other := await self._another()) and",
        new='((other := await self._another()) or True) and',
        tests=(_REACH_TESTS + "test_in_an_outage_of_the_api_server_all_stay",),
    ),
    Mutant(
        name="one-that-has-left-answers",
        what="a watcher that has left, or is cut off, says to another one that it may leave",
        file=_REACH,
        old='asked.epoch != self._epoch and self.state == "serves" and await self._looks()',
        new="asked.epoch != self._epoch",
        tests=(_REACH_TESTS + "test_one_that_has_left_says_to_none_that_it_may_leave",),
    ),
    Mutant(
        name="its-own-successor",
        what="a watcher answers its own question for another one",
        file=_REACH,
        old="asked.epoch != self._epoch and ",
        new="",
        tests=(_REACH_TESTS + "test_no_watcher_is_another_one_to_itself",),
    ),
    Mutant(
        name="cut-off-and-followed",
        what="a watcher that has left goes on with its feed",
        file="services/watcher/service.py",
        old="        self.feed.mute = True\n",
        new="",
        tests=(_REACH_TESTS + "test_a_watcher_that_is_cut_off_leaves_the_work_to_the_other_one_until_it_is_not",),
    ),
    Mutant(
        name="large-batch-in-one-message",
        what="a batch of the feed that is larger than a message is published in one",
        file="services/watcher/feed.py",
        old="self._bus.publish_in_parts(",
        new="self._bus.publish(",
        tests=(_FEED_TESTS + "test_objects_larger_than_a_message_are_followed_like_any_other",),
    ),
    Mutant(
        name="gap-is-passed-over",
        what="a missing batch of the feed is passed over",
        file=_FEED,
        old='            raise Gap(f"batch {batch.number} of epoch {batch.epoch} came after {self.number}")\n',
        new="            pass\n",
        tests=(_FEED_TESTS + "test_a_missing_batch_is_a_gap",),
    ),
    Mutant(
        name="foreign-batches-are-applied",
        what="a reader applies the batches of other watchers",
        file=_FEED,
        old="        if batch.epoch != self.epoch or batch.number <= self.number:\n",
        new="        if batch.number <= self.number:\n",
        tests=(_FEED_TESTS + "test_another_watchers_batches_are_not_applied",),
    ),
    Mutant(
        name="batches-meanwhile-are-lost",
        what="what comes while a snapshot is taken is forgotten",
        file=_FEED,
        old="            self._kept.append(batch)\n",
        new="            pass\n",
        tests=(_FEED_TESTS + "test_batches_that_come_while_a_snapshot_is_taken_follow_it",),
    ),
    Mutant(
        name="snapshot-before-what-is-pending",
        what="a snapshot has the number of a batch before what it shows",
        file="services/watcher/core.py",
        old=(
            "            if self._pending:\n"
            "                self._flush(commands, now)\n"
            "            objects ="
        ),
        new="            objects =",
        tests=(_CORE + "test_a_snapshot_is_the_state_after_its_number",),
    ),
    Mutant(
        name="watcher-takes-older-versions",
        what="the watcher tells an older version of an object after a newer one",
        file="services/watcher/core.py",
        old="if known is not None and version(known.metadata) >= version(seen.metadata):",
        new="if known is not None and version(known.metadata) == version(seen.metadata):",
        tests=(_CORE + "test_a_version_that_was_already_seen_is_not_reported",),
    ),
    Mutant(
        name="watcher-makes-ends-certain",
        what="the watcher tells every end as one that was seen",
        file="services/watcher/core.py",
        old="certain=fact.certain)",
        new="certain=True)",
        tests=(_CORE + "test_an_end_is_reported_once_and_keeps_its_certainty",),
    ),
    Mutant(
        name="grants-on-pods-tell-no-sequence",
        what="the watcher does not remember the sequences that grants on pods name",
        file="services/watcher/core.py",
        old="                self.saw_sequence(int(found[1]))\n",
        new="                pass\n",
        tests=(_CORE + "test_the_highest_sequence_is_remembered_from_orders_and_from_grants",),
    ),
    Mutant(
        name="missing-in-a-list-is-certain",
        what="what a list lacks is told as seen to go",
        file="shared/kube/reflect.py",
        old="return [self._drop(seen, certain=False) for uid, seen",
        new="return [self._drop(seen, certain=True) for uid, seen",
        tests=(_REFLECT + "test_a_new_list_reports_missing_objects_as_not_certainly_deleted",),
    ),
    Mutant(
        name="succeeded-name-is-certain",
        what="the end of an object whose name has a new bearer is told as seen",
        file="shared/kube/reflect.py",
        old="facts.append(self._drop(self._known[before], certain=False))",
        new="facts.append(self._drop(self._known[before], certain=True))",
        tests=(_REFLECT + "test_a_name_with_a_new_bearer_ends_the_old_one_first",),
    ),
    Mutant(
        name="missing-in-a-snapshot-is-certain",
        what="a pod that a snapshot lacks was certainly never bound",
        file="shared/book/book.py",
        old="changes += self.apply(Gone(object=obj, certain=False))",
        new="changes += self.apply(Gone(object=obj, certain=True))",
        tests=(_BOOK_TESTS + "test_a_hold_of_a_pod_that_a_snapshot_lacks_waits_for_its_node",),
    ),
    Mutant(
        name="missing-in-a-snapshot-stays",
        what="what a snapshot lacks stays in the book",
        file="shared/book/book.py",
        old="            if _identity(obj) not in seen:\n",
        new="            if False:\n",
        tests=(_BOOK_TESTS + "test_objects_that_a_snapshot_lacks_are_removed",),
    ),
    Mutant(
        name="uncertain-end-frees-the-hold",
        what="a hold whose pod vanished unseen is free at once",
        file="shared/book/book.py",
        old="        if certain and not last.spec.node_name and",
        new="        if not last.spec.node_name and",
        tests=(
            "tests/unit/services/placement/test_core_releases.py::"
            "test_a_hold_of_a_pod_that_vanished_unseen_is_released_only_by_the_node",
        ),
    ),
    Mutant(
        name="book-takes-older-versions",
        what="the book takes an older version of a pod for news",
        file="shared/book/book.py",
        old=(
            "        if old is not None and version(pod.metadata) <= version(old.pod.metadata):\n"
            "            return []\n"
        ),
        new="",
        tests=(_BOOK_TESTS + "test_an_older_version_of_an_object_changes_nothing",),
    ),
]  # fmt: skip
