"""GPUs of other nodes: the two nodes of a grant, its book, and its place."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TWO_NODES = "tests/unit/services/placement/protocol/test_remote.py::"
_PLACES = "tests/unit/services/placement/engine/test_remote.py::"
_AGENT = "tests/unit/services/node_agent/test_servers.py::"
_ENDS = "tests/contract/remote/test_ends.py::"
_BOOK = "tests/unit/shared/book/test_book_remote.py::"
_RELEASES = "services/placement/protocol/releases.py"
_NODES = "services/placement/protocol/nodes.py"
_SERVERS = "services/node_agent/servers.py"
_REMOTE = "services/placement/engine/remote.py"

MUTANTS = [
    Mutant(
        name="driver-upgrade-waits-for-served-pods",
        what="a driver upgrade evicts what runs on the node and not what uses its GPUs from other nodes",
        file="services/preemptor/driver_upgrades.py",
        old="for held in node.grants.values()]",
        new="for held in (*node.grants.values(), *node.clients.values()) if held.uid in node.pods]",
        tests=(
            "tests/unit/services/preemptor/test_driver_upgrades.py::"
            "test_the_pods_that_use_its_gpus_are_evicted_wherever_they_run",
        ),
    ),
    Mutant(
        name="server-that-runs-on-is-forgotten",
        what="a server that does not end is not known any more, and its GPU is released",
        file="services/node_agent/remote/serving.py",
        old="            if not cgroup.pids():  #",
        new="            if True:  #",
        tests=(_ENDS + "test_a_server_that_does_not_end_is_not_forgotten",),
    ),
    Mutant(
        name="server-without-a-cgroup-for-its-limits",
        what="limits of the driver's are set before there is a cgroup to set them for",
        file="services/node_agent/remote/serving.py",
        old="            cgroup.make()  # limits of the driver's are set for it\n",
        new="",
        tests=(_ENDS + "test_a_servers_cgroup_is_there_before_its_slice",),
    ),
    Mutant(
        name="way-taken-down-twice",
        what="the agent ends because two of its tasks take down the way of one container",
        file="services/node_agent/remote/clients.py",
        old="                    if folder.exists():\n                        shutil.rmtree(folder)\n",
        new="                    shutil.rmtree(folder)\n",
        tests=(_ENDS + "test_a_way_is_taken_down_once_when_two_notice_its_end",),
    ),
    Mutant(
        name="client-returns-the-gpu",
        what="the client's release frees the GPU while its server runs",
        file=_RELEASES,
        old="        if held is not None and event.node == held.client:\n",
        new="        if False:\n",
        tests=(_TWO_NODES + "test_the_gpu_is_free_when_its_node_has_released_it_and_not_before",),
    ),
    Mutant(
        name="dead-client-frees-the-gpu",
        what="a client that will never hand a grant over frees the GPU while its server runs",
        file=_RELEASES,
        old="        if node == held.client:\n",
        new="        if False:\n",
        tests=(_TWO_NODES + "test_a_client_that_gives_back_a_living_pods_grant_has_it_released_where_it_is_served",),
    ),
    Mutant(
        name="void-client-is-told-once",
        what="the release that a void client causes is ordered once, and the GPU stays taken if that is lost",
        file=_NODES,
        old="for one in self._void if one in self.book.grants]:\n",
        new="for one in ()]:\n",
        tests=(_TWO_NODES + "test_a_client_that_gives_back_a_living_pods_grant_has_it_released_where_it_is_served",),
    ),
    Mutant(
        name="unknown-client-is-booked",
        what="a client's slice is booked as its grant, and its end frees the GPU while the server runs",
        file=_NODES,
        old=" and not slice_.is_client:\n",
        new=":\n",
        tests=(_TWO_NODES + "test_a_new_leader_books_unknown_servers_and_no_unknown_clients",),
    ),
    Mutant(
        name="clients-node-is-not-synced",
        what="a sync does not name the grants of pods here on GPUs of other nodes, so their clients end",
        file=_NODES,
        old="(*state.grants.values(), *state.clients.values())",
        new="(*state.grants.values(),)",
        tests=(_TWO_NODES + "test_a_void_hold_is_revoked_at_both_nodes_that_heard_of_it",),
    ),
    Mutant(
        name="server-for-an-unbound-pod",
        what="a server starts by a decision whose pod was not seen bound",
        file=_SERVERS,
        old="            if known.is_serving and not known.unbound:\n",
        new="            if known.is_serving:\n",
        tests=(_AGENT + "test_a_decision_whose_pod_was_not_seen_bound_starts_no_server",),
    ),
    Mutant(
        name="server-ends-by-the-kubelet",
        what="the lease of a server ends because its pod has no cgroup on this node",
        file="services/node_agent/core.py",
        old="        if lease is None or known is None or known.is_serving:\n",
        new="        if lease is None or known is None:\n",
        tests=(_AGENT + "test_the_kubelet_of_this_node_ends_no_server",),
    ),
    Mutant(
        name="own-end-for-the-ordered-one",
        what="the end of an earlier process of a server is taken for the end that was ordered",
        file=_SERVERS,
        old="        if event.by_itself:\n",
        new="        if event.by_itself and not known.releasing:\n",
        tests=(_AGENT + "test_an_end_by_itself_is_not_taken_for_the_end_that_was_ordered",),
    ),
    Mutant(
        name="overtaken-sync-ends-a-client",
        what="a sync that was overtaken by a grant ends the grant's client",
        file="services/node_agent/syncs.py",
        old="            if (sync.term, sync.number) > unnamed.order:\n",
        new="            if True:\n",
        tests=(_AGENT + "test_a_sync_that_a_grant_has_overtaken_ends_no_client",),
    ),
    Mutant(
        name="client-is-live-on-its-node",
        what="a container with another node's GPU is reported as a slice of its own node",
        file="services/node_agent/grant_store.py",
        old="            if not self._known_by(lease).is_client\n",
        new="",
        tests=(_AGENT + "test_a_client_is_handed_the_address_and_takes_nothing_of_its_own_node",),
    ),
    Mutant(
        name="gpu-goes-with-the-clients-node",
        what="the deletion of the client's node frees the GPU of another one",
        file="shared/book/states.py",
        old="serving or pod_node, phase, client=client)",
        new="pod_node, phase, client=client)",
        tests=(_BOOK + "test_the_end_of_the_clients_node_frees_no_gpu_of_another_one",),
    ),
    Mutant(
        name="too-slow-is-taken",
        what="a pod gets a GPU of another node however slow that makes it",
        file=_REMOTE,
        old="if best[1].slowdown <= limit else",
        new="if True else",
        tests=(_PLACES + "test_at_5_ms_it_is_refused_and_told_why",),
    ),
    Mutant(
        name="far-before-near",
        what="of two GPUs of other nodes the farther one is taken",
        file=_REMOTE,
        old="if best is None or rank < best[0]:",
        new="if best is None or rank > best[0]:",
        tests=(_PLACES + "test_no_pair_of_nodes_is_nearer_than_the_one_that_is_taken",),
    ),
    Mutant(
        name="remote-before-local",
        what="a pod that agrees to a GPU of another node gets one although a local one is free",
        file="services/placement/scheduler.py",
        old="        if place is None and state.request is not None and state.request.remote is not None:\n",
        new="        if state.request is not None and state.request.remote is not None:\n",
        tests=(_PLACES + "test_a_local_gpu_wins_always",),
    ),
    Mutant(
        name="cordoned-node-serves",
        what="a cordoned node gives its GPUs to pods of other nodes",
        file="services/placement/engine/links.py",
        old="        and not node.object.spec.unschedulable\n",
        new="",
        tests=(_PLACES + "test_a_cordoned_node_serves_nothing_new",),
    ),
    Mutant(
        name="node-that-answers-is-cut-off",
        what="a connection ends when the server reads nothing for half a minute, as while a kernel runs",
        file="native/remote/proxy.c",
        old="(now.tcpi_unacked && now.tcpi_last_ack_recv > GONE_MS) ||",
        new="(now.tcpi_probes || now.tcpi_unacked || now.tcpi_notsent_bytes) ||",
        tests=("tests/remote/test_network.py::test_a_server_that_reads_nothing_for_long_is_waited_for",),
    ),
    Mutant(
        name="cut-off-node-is-waited-for",
        what="a program waits for a quarter of an hour for a node that is cut off",
        file="native/remote/proxy.c",
        old="&& (ended || is_cut_off(tcp))) break;",
        new="&& ended) break;",
        tests=("tests/remote/test_network.py::test_a_node_that_is_cut_off_ends_the_connection",),
    ),
]
