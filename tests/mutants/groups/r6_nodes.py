"""R6, placement's side: when a node is used, whose word counts, and what nodes are told."""

from tests.mutants.mutant import Mutant

NODES = "services/placement/protocol/nodes.py"
CORE = "services/placement/core.py"
SESSION = "services/placement/leader/session.py"
UNIT = "tests/unit/services/placement"
TEST = f"{UNIT}/protocol/test_nodes.py"
RECOVERY = f"{UNIT}/protocol/test_recovery_order.py"
BAD = "tests/contract/test_bad_input.py"

LEFTOVERS = "services/placement/protocol/leftovers.py"
LEFTOVER_TESTS = f"{UNIT}/protocol/test_leftovers.py"

MUTANTS = [
    # --- answers and releases come by two ways ----------------------------------------------------------------------
    Mutant(
        name="sync-answer-books-what-was-released-since",
        what="a slice in an answer that its release has overtaken is booked again, beside the pod that got its GPU",
        file=NODES,
        old=" and slice_.grant_id not in ended and",
        new=" and",
        tests=(f"{TEST}::test_a_release_that_overtakes_the_answer_to_a_sync_ends_its_slice_there_too",),
    ),
    # --- pods that are pending again and still run -----------------------------------------------------------------
    Mutant(
        name="still-running-pod-placed",
        what="a pod that a node still runs is placed on another",
        file="services/placement/scheduling/unsupported_fields.py",
        old="    if state.runs_on and not state.pod.spec.node_name:",
        new="    if False:",
        tests=(f"{LEFTOVER_TESTS}::test_a_pending_pod_waits_until_the_node_where_it_still_runs_has_released_it",),
    ),
    Mutant(
        name="still-running-pod-seen-late-placed",
        what="a pod that a watcher tells of after the sync of the node that runs it is placed on another",
        file=LEFTOVERS,
        old=" and (state is not None or held.uid not in self._book.pods):",
        new=" and state is not None:",
        tests=(f"{LEFTOVER_TESTS}::test_a_pending_pod_waits_until_the_node_where_it_still_runs_has_released_it",),
    ),
    Mutant(
        name="still-running-pod-waits-for-one-node-alone",
        what="a pod that two nodes still run is placed when the first has released it",
        file=LEFTOVERS,
        old="            if not nodes:\n",
        new="            if len(nodes) < 2:\n",
        tests=(f"{LEFTOVER_TESTS}::test_it_waits_for_each_node_that_has_a_slice_of_it",),
    ),
    Mutant(
        name="successor-places-at-once",
        what="the successor of a leader without the log does not hear the nodes first",
        file="services/placement/protocol/recovery.py",
        old="self.to_hear = None if record.hear_first else",
        new="self.to_hear = None if False else",
        tests=(f"{LEFTOVER_TESTS}::test_the_successor_of_a_leader_that_had_yet_to_hear_nodes_hears_them_too",),
    ),
    Mutant(
        name="successor-forgets-kept-pods",
        what="a leader does not say that a pod still waits for a node",
        file="services/placement/protocol/hearing.py",
        old="nodes = still | self._leftovers.nodes(gone=self._after_loss)",
        new="nodes = still",
        tests=(f"{LEFTOVER_TESTS}::test_a_successor_hears_the_node_that_keeps_a_pod_back[False]",),
    ),
    Mutant(
        name="late-inventories-not-awaited",
        what="a leader that found the log incomplete hears only the nodes of which it knows the inventory",
        file="services/placement/protocol/hearing.py",
        old="(self._book.nodes if to_hear is None else to_hear)",
        new="(() if to_hear is None else to_hear)",
        tests=(f"{LEFTOVER_TESTS}::test_nor_until_the_nodes_with_an_agent_have_told_their_inventories",),
    ),
    Mutant(
        name="each-successor-hears-all-nodes",
        what="that the nodes have been heard is not said before the term is renewed: hours of slow takeovers",
        file=CORE,
        old="        self._hearing.note(self.term, now)\n",
        new="",
        tests=(
            f"{LEFTOVER_TESTS}::test_where_the_nodes_were_heard_or_waited_for_no_successor_waits_for_them",
            f"{LEFTOVER_TESTS}::test_a_successor_hears_the_node_that_keeps_a_pod_back[False]",
        ),
    ),
    Mutant(
        name="each-answer-is-noted",
        what="what the next session is to hear is written at each answer of a node, before all decisions",
        file="services/placement/protocol/hearing.py",
        old="        self._look_at = now + NOTE_EVERY_S\n",
        new="",
        tests=(f"{LEFTOVER_TESTS}::test_nodes_that_answer_one_after_the_other_are_written_together",),
    ),
    Mutant(
        name="named-nodes-not-awaited",
        what="a node that is to be heard is not awaited while its inventory is unknown",
        file="services/placement/protocol/hearing.py",
        old="(self._book.nodes if to_hear is None else to_hear)",
        new="(self._book.nodes if to_hear is None else ())",
        tests=(f"{LEFTOVER_TESTS}::test_a_node_that_is_to_be_heard_is_awaited_until_it_has_told_its_inventory",),
    ),
    Mutant(
        name="ending-pods-delay-failovers",
        what="nodes on which a deleted pod is ending are heard first by the next session",
        file="services/placement/protocol/hearing.py",
        old="gone=self._after_loss",
        new="gone=True",
        tests=(f"{LEFTOVER_TESTS}::test_where_no_log_was_lost_nodes_with_slices_of_pods_that_are_gone_are_not_named",),
    ),
    Mutant(
        name="one-node-to-hear-is-all",
        what="where one node keeps a pod back a successor waits for all",
        file="services/placement/protocol/hearing.py",
        old="not self._are_heard(self._to_hear)",
        new="not self._are_heard(self._to_hear and None)",
        tests=(f"{LEFTOVER_TESTS}::test_a_node_that_keeps_no_pod_back_delays_no_successor",),
    ),
    Mutant(
        name="lost-log-places-at-once",
        what="a leader that found the log incomplete does not hear the nodes first",
        file=CORE,
        old="        if self._hearing.delays_all(now):\n",
        new="        if False:\n",
        tests=(
            f"{LEFTOVER_TESTS}::test_without_a_complete_log_nothing_is_placed_until_all_nodes_have_answered_or_some_"
            "seconds_have_passed",
        ),
    ),
    # --- when a node is used ---------------------------------------------------------------------------------------
    Mutant(
        name="rebooted-node-used",
        what="a node that has rebooted is used before its sync",
        file=NODES,
        old=(
            "            self._unsync(node)\n"
            "            self.book.set_agent_trouble(node, UNANSWERED)\n"
            "            out += self._sync"
        ),
        new="            out += self._sync",
        tests=(f"{TEST}::test_a_rebooted_node_gets_nothing_before_it_has_answered_a_sync",),
    ),
    Mutant(
        name="rebooted-node-not-marked",
        what="a node that has rebooted has to be synced, and gets pods all the same",
        file=NODES,
        old="            self.book.set_agent_trouble(node, UNANSWERED)\n",
        new="",
        tests=(f"{TEST}::test_a_rebooted_node_gets_nothing_before_it_has_answered_a_sync",),
    ),
    Mutant(
        name="deleted-node-keeps-its-sync",
        what="a node that was deleted and comes back is used on its old sync",
        file=NODES,
        old="            self._unsync(name)  # should it come back, its agent is asked again what runs there\n",
        new="",
        tests=(f"{TEST}::test_a_deleted_node_that_returns_must_sync_before_it_is_used",),
    ),
    Mutant(
        name="lost-agent-keeps-its-sync",
        what="an agent whose inventory was lost counts as synced when it is back",
        file=NODES,
        old="        self._eras.pop(node, None)\n        self._unsync(node)\n",
        new="        self._eras.pop(node, None)\n",
        tests=(f"{TEST}::test_a_lost_agent_must_sync_when_it_returns_even_with_the_same_boot",),
        survives="an inventory that comes back finds no era, so the node is unsynced then (rebooted-node-used)",
    ),
    Mutant(
        name="lost-checkpoint-unnoticed",
        what="an agent that has lost its checkpoint counts as synced in the same boot",
        file=NODES,
        old="        if self._eras.get(node) != inventory.era:\n",
        new="        if self._eras.get(node, NO_ERA).boot_id != inventory.boot_id:\n",
        tests=(f"{TEST}::test_an_agent_that_has_lost_its_checkpoint_must_sync_even_in_the_same_boot",),
    ),
    Mutant(
        name="sync-before-the-touching",
        what="nodes are synced before pending pods were touched",
        file=NODES,
        old="if not self.open or self.book.nodes[node].object is None:",
        new="if self.book.nodes[node].object is None:",
        tests=(f"{RECOVERY}::test_no_node_is_synced_before_every_pending_pod_has_been_touched",),
    ),
    Mutant(
        name="absent-node-asked",
        what="a node without a Node object is asked what runs there",
        file=NODES,
        old="if not self.open or self.book.nodes[node].object is None:",
        new="if not self.open:",
        tests=(f"{TEST}::test_a_node_without_a_node_object_is_not_synced",),
    ),
    Mutant(
        name="absent-node-believed",
        what="the answer of a node without a Node object counts",
        file=NODES,
        old="            or node.object is None\n",
        new="",
        tests=(f"{RECOVERY}::test_a_removed_node_is_neither_asked_nor_believed",),
        survives="when its object goes the node has no first number any more, and gets none before the object is back "
        "(deleted-node-keeps-its-sync, absent-node-asked)",
    ),
    Mutant(
        name="heartbeat-opens-unsynced-node",
        what="a silent node whose heartbeat comes back is used though it has not synced",
        file=NODES,
        old="if silent and self.is_synced(node):",
        new="if silent:",
        tests=(f"{TEST}::test_a_heartbeat_alone_does_not_open_a_node_that_has_not_answered",),
    ),
    Mutant(
        name="silent-node-used",
        what="a silent agent goes on getting pods",
        file=NODES,
        old='                self.book.set_agent_trouble(node, f"its agent has been silent for more than {SILENT_S:g} s")',
        new="                pass",
        tests=(f"{UNIT}/test_core_sessions.py::test_a_silent_agent_gets_nothing_new_until_it_beats_again",),
    ),
    Mutant(
        name="refusing-node-used",
        what="a node that follows a higher term and refuses this one goes on getting pods",
        file=NODES,
        old="            self.book.set_agent_trouble(answer.node, trouble)\n",
        new="",
        tests=(f"{TEST}::test_a_node_that_refuses_this_term_gets_nothing_before_it_has_accepted_it",),
    ),
    Mutant(
        name="higher-term-not-looked-up",
        what="a node's word of a higher term does not make the leader look at the log",
        file=NODES,
        old='return [m.CheckTerm(f"node {answer.node}: {trouble}")]',
        new="return []",
        tests=(f"{UNIT}/test_core_sessions.py::test_a_node_that_follows_a_newer_term_makes_the_leader_check_the_log",),
    ),
    # --- whose answers count ---------------------------------------------------------------------------------------
    Mutant(
        name="answer-of-another-term",
        what="a late answer to a sync of another term counts",
        file=NODES,
        old="            answer.term != self.term\n            or self.is_synced(answer.node)",
        new="            self.is_synced(answer.node)",
        tests=(f"{RECOVERY}::test_an_answer_under_another_term_does_not_open_a_node",),
    ),
    Mutant(
        name="answer-of-another-boot",
        what="an answer of an earlier boot counts",
        file=NODES,
        old=(
            "        return answer.boot_id == self._eras.get(answer.node, NO_ERA).boot_id and (\n"
            "            not answer.number or answer.number >= self.first_number[answer.node]\n"
            "        )\n"
        ),
        new="        return not answer.number or answer.number >= self.first_number[answer.node]\n",
        tests=(f"{TEST}::test_an_answer_that_does_not_count_is_of_the_present_boot_or_of_none",),
    ),
    Mutant(
        name="answer-to-an-earlier-sync",
        what="the answer to a sync of the time before the node had to be synced counts",
        file=NODES,
        old=(
            "        return answer.boot_id == self._eras.get(answer.node, NO_ERA).boot_id and (\n"
            "            not answer.number or answer.number >= self.first_number[answer.node]\n"
            "        )\n"
        ),
        new="        return answer.boot_id == self._eras.get(answer.node, NO_ERA).boot_id\n",
        tests=(f"{RECOVERY}::test_an_answer_of_the_time_before_the_node_was_deleted_does_not_open_it",),
    ),
    Mutant(
        name="first-number-kept",
        what="the number of the first sync that counts stays when the node has to be synced anew",
        file=NODES,
        old="        self.first_number.pop(node, None)\n",
        new="",
        tests=(f"{RECOVERY}::test_an_answer_of_the_time_before_the_node_was_deleted_does_not_open_it",),
    ),
    Mutant(
        name="second-answer-counts",
        what="a second answer to a sync is booked, too",
        file=NODES,
        old="            or self.is_synced(answer.node)\n",
        new="",
        tests=(f"{TEST}::test_a_repeated_sync_answer_books_nothing_that_has_ended_since",),
    ),
    Mutant(
        name="unknown-slices-not-booked",
        what="a slice that runs and is unknown occupies nothing",
        file=NODES,
        old="            self.book.book_leaving(stranger(slices, answer.node))",
        new="            pass",
        tests=(f"{UNIT}/test_core_sessions.py::test_a_slice_that_runs_and_is_unknown_occupies_its_gpu_until_released",),
    ),
    Mutant(
        name="unknown-slices-have-no-cards",
        what="a slice that runs and is unknown occupies none of its network cards",
        file="services/placement/protocol/strangers.py",
        old=", nics=first.nics)",
        new=")",
        tests=(
            "tests/unit/shared/scheduling/filters/test_nics.py"
            "::test_a_new_leader_counts_what_a_container_has_whose_pod_is_gone",
        ),
    ),
    Mutant(
        name="tombstones-of-anothers-grants",
        what="a node's sync ends another node's grant",
        file=NODES,
        old=" is not None and answer.node in held.nodes\n",
        new=" is not None\n",
        tests=(f"{TEST}::test_a_node_has_released_none_but_its_own_grants",),
    ),
    Mutant(
        name="suspension-of-anothers-grants",
        what="a node's sync says what another node's pod has given up",
        file="services/placement/protocol/suspension.py",
        old="for grant_id in answer.suspension if grant_id in own]",
        new="for grant_id in answer.suspension]",
        tests=(f"{TEST}::test_a_node_reports_suspensions_only_of_its_own_pods",),
    ),
    Mutant(
        name="late-sync-answer-suspends",
        what="an answer that does not count says all the same what pods have given up",
        file=CORE,
        old="        if said is None:\n            return\n",
        new="        said = said or []\n",
        tests=(f"{TEST}::test_suspensions_in_an_outdated_answer_are_ignored",),
    ),
    Mutant(
        name="dead-word-of-another-node",
        what="a node's refusal ends another node's grant",
        file=CORE,
        old="if held is not None and event.node not in held.nodes:",
        new="if False:",
        tests=(f"{TEST}::test_no_node_refuses_grants_of_another_node_for_good",),
    ),
    Mutant(
        name="any-refusal-is-for-good",
        what="a refusal that says nothing of the grant, such as one of an old term, frees it",
        file=CORE,
        old="        if event.dead:\n",
        new="        if not event.ok:\n",
        tests=(f"{TEST}::test_a_refusal_that_is_not_for_good_frees_nothing",),
    ),
    Mutant(
        name="own-word-not-asked",
        what="an agent is believed about other nodes than that of its subject",
        file="shared/contracts/subjects.py",
        old="if any(node != sender(subject) for node in nodes):",
        new="if False:",
        tests=(
            f"{UNIT}/leader/test_session.py::test_an_agent_reports_only_on_its_own_node",
            f"{BAD}::test_a_malformed_message_is_logged_and_ignored[sync answer: of another node]",
        ),
    ),
    Mutant(
        name="own-word-of-grants-not-asked",
        what="an agent answers grants of other nodes",
        file=SESSION,
        old="        subjects.check_sender(incoming.subject, answer.node)\n        if not answer.ok:",
        new="        if not answer.ok:",
        tests=(f"{BAD}::test_a_malformed_message_is_logged_and_ignored[grant answer: of another node]",),
    ),
    Mutant(
        name="heartbeat-for-another-node-counts",
        what="an agent gives signs of life for other nodes",
        file=SESSION,
        old="            subjects.check_sender(incoming.subject, *nodes)\n",
        new="            pass\n",
        tests=(f"{BAD}::test_a_malformed_message_is_logged_and_ignored[heartbeat: of another node]",),
    ),
    Mutant(
        name="releases-by-anyone",
        what="another service than the agents may say that a grant was released",
        file="k8s/nats.conf",
        old='          "kerf.v1.feed.*"\n          "kerf.v1.query.reach"\n',
        new='          "kerf.v1.feed.*", "kerf.v1.release.*"\n          "kerf.v1.query.reach"\n',
        tests=(
            "tests/contract/test_nats_permissions.py::"
            "test_messages_on_subjects_of_other_services_reach_no_subscriber[watcher-kerf.v1.release.n1]",
        ),
    ),
    Mutant(
        name="inventory-of-another-node",
        what="an inventory counts for another node than that of its key",
        file=SESSION,
        old="if entry.key != subjects.token(inventory.node):",
        new="if False:",
        tests=(f"{BAD}::test_a_malformed_inventory_is_logged_and_ignored[another node's name]",),
    ),
    # --- what nodes are told ---------------------------------------------------------------------------------------
    Mutant(
        name="sync-leaves-out-what-is-decided",
        what="a sync does not name grants whose pods were not seen bound, so the node buries them",
        file=NODES,
        old='if held.phase != "reserved"]',
        new='if held.phase == "bound"]',
        tests=(f"{TEST}::test_a_sync_names_decided_grants_as_not_seen_bound",),
    ),
    Mutant(
        name="unbound-not-said",
        what="a sync does not say that a grant's pod was not seen bound",
        file=NODES,
        old='unbound=held.phase == "holding",',
        new="unbound=False,",
        tests=(f"{TEST}::test_a_sync_names_decided_grants_as_not_seen_bound",),
    ),
    Mutant(
        name="orders-without-numbers",
        what="orders to nodes are not numbered",
        file=NODES,
        old="            number=self._number,\n",
        new="            number=0,\n",
        tests=(f"{TEST}::test_orders_to_a_node_have_rising_numbers",),
    ),
    Mutant(
        name="grant-with-the-syncs-number",
        what="a grant has the number of the sync before it",
        file=NODES,
        old="        self._next_number()\n        return [self._order(held.grant_id, m.SendGrant(node,",
        new="        return [self._order(held.grant_id, m.SendGrant(node,",
        tests=(f"{TEST}::test_orders_to_a_node_have_rising_numbers",),
    ),
    Mutant(
        name="void-grant-stays-at-its-node",
        what="a node that has heard of a grant is not told that it is void",
        file=CORE,
        old="                        self._out += self.nodes.voided(hold.decision, now)\n",
        new="                        pass\n",
        tests=(f"{TEST}::test_a_void_grant_that_a_node_knows_is_revoked_there_until_it_answers",),
    ),
    Mutant(
        name="void-grant-not-remembered",
        what="placement does not note which grants nodes have heard of before their pods were seen bound",
        file=NODES,
        old='self._named_unbound.update(held.grant_id for held in known if held.phase == "holding")',
        new="pass",
        tests=(f"{TEST}::test_a_void_grant_that_a_node_knows_is_revoked_there_until_it_answers",),
    ),
    Mutant(
        name="void-grant-said-once",
        what="the word that a grant is void is not said again when it was lost",
        file=NODES,
        old="        return [self._order(grant_id, m.SendRelease(node, release), now) for node in sorted(nodes)]\n",
        new="        return [m.SendRelease(node, release) for node in sorted(nodes)]\n",
        tests=(f"{TEST}::test_a_void_grant_that_a_node_knows_is_revoked_there_until_it_answers",),
    ),
    Mutant(
        name="grant-under-the-old-term",
        what="a grant that was not answered is said again under the term before, which the node refuses",
        file=NODES,
        old="if (grant.term, grant.number) < (self.term, self._sync_number.get(node, 0)):",
        new="if False:",
        tests=(f"{TEST}::test_an_unanswered_grant_is_sent_again_under_the_renewed_term",),
    ),
    Mutant(
        name="release-under-the-old-term",
        what="a release that was not answered is said again under the term before, which the node refuses",
        file=NODES,
        old="            case m.SendRelease(node, release) if release.term != self.term:",
        new="            case m.SendRelease(node, release) if False:",
        tests=(
            f"{UNIT}/test_core_sessions.py::test_unanswered_messages_to_a_node_are_sent_again_under_the_renewed_term",
        ),
    ),
    Mutant(
        name="asked-for-a-grant-that-is-only-decided",
        what="an agent that asks is told of a grant whose pod was not seen bound",
        file="services/placement/queries/reader.py",
        old='    if held is None or held.phase != "bound":\n',
        new="    if held is None:\n",
        tests=(f"{TEST}::test_an_agent_that_asks_gets_its_own_grants_that_were_seen_bound",),
    ),
    Mutant(
        name="asked-for-a-grant-of-another-node",
        what="an agent that asks is told of a grant of another node",
        file="services/placement/queries/reader.py",
        old="    if query.node not in held.nodes:\n",
        new="    if False:\n",
        tests=(f"{TEST}::test_an_agent_that_asks_gets_its_own_grants_that_were_seen_bound",),
    ),
    Mutant(
        name="unhealthy-gpu-given-out",
        what="the health of a GPU is not looked at",
        file="shared/book/states.py",
        old='trouble = node.agent_trouble or ("" if gpu.state == "healthy" else',
        new='trouble = node.agent_trouble or ("" if True else',
        tests=(f"{UNIT}/engine/test_engine.py::test_an_unhealthy_gpu_gets_nothing_new",),
    ),
]
