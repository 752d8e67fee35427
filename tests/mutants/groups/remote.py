"""GPUs of other nodes: the two nodes of a grant, its book, and its place."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TWO_NODES = "tests/unit/services/placement/protocol/test_remote.py::"
_PLACES = "tests/unit/services/placement/engine/test_remote.py::"
_AGENT = "tests/unit/services/node_agent/test_servers.py::"
_ENDS = "tests/contract/remote/test_ends.py::"
_UNIT = "tests/unit/services/node_agent/remote/"
_UPGRADE = "tests/contract/remote/test_proxy_upgrade.py::"
_BOOK = "tests/unit/shared/book/test_book_remote.py::"
_RELEASES = "services/placement/protocol/releases.py"
_NODES = "services/placement/protocol/nodes.py"
_SERVERS = "services/node_agent/servers.py"
_REMOTE = "services/placement/engine/remote.py"

MUTANTS = [
    Mutant(
        name="restart-gives-running-servers-back",
        what="an agent that starts again asks the start checks for a server that runs, and ends it where they refuse",
        file=_SERVERS,
        old="        if lease == after and not server.is_known:  #",
        new="        if False:  #",
        tests=(_AGENT + "test_a_server_that_runs_stays_although_it_could_not_start_now",),
    ),
    Mutant(
        name="ended-without-a-look",
        what="an agent that cannot see servers says that one has ended, and its GPU is given a second time",
        file="services/node_agent/server_service.py",
        old="            if self._port is None:\n                raise OSError(",
        new="            if self._port is None:\n                return m.ServerEnded(*key, order.grant_id)\n"
        "                raise OSError(",
        tests=(
            "tests/unit/services/node_agent/test_server_service.py::"
            "test_an_agent_that_cannot_see_servers_says_of_none_that_it_has_ended",
        ),
    ),
    Mutant(
        name="stuck-server-does-not-listen",
        what="a server whose queue is full is taken for one that is not there, and is ended",
        file="services/node_agent/remote/serving.py",
        old="        except BlockingIOError:\n            return True\n",
        new="        except BlockingIOError:\n            return False\n",
        tests=(_UNIT + "test_serving.py::test_a_server_whose_queue_is_full_listens",),
    ),
    Mutant(
        name="server-keeps-an-earlier-secret",
        what="after a change of the key no container gets to a server that runs any more",
        file="services/node_agent/remote/serving.py",
        old="tries again\n            self._admit(folder, peer_node)\n",
        new="tries again\n            pass\n",
        tests=(_UNIT + "test_serving.py::test_a_server_that_is_found_lets_its_client_in_by_the_present_key",),
    ),
    Mutant(
        name="secret-comes-back-at-the-end",
        what="the secret of a server that is being ended is written again, and new clients come in",
        file="services/node_agent/remote/serving.py",
        old="            if (folder / programs.SECRET).exists():  #",
        new="            if True:  #",
        tests=(_UNIT + "test_serving.py::test_another_key_reaches_all_servers_but_those_that_are_being_ended",),
    ),
    Mutant(
        name="unanswered-question-deletes-links",
        what="what an agent has measured is deleted when a leader says that it does not know yet",
        file="services/node_agent/remote/remote.py",
        old="        if told.error:\n",
        new="        if False:\n",
        tests=(_UNIT + "test_remote.py::test_what_was_measured_stays_while_placement_names_no_nodes",),
    ),
    Mutant(
        name="unheard-nodes-are-not-measured",
        what="a new leader has agents delete what they have measured of nodes that it has not heard of yet",
        file="services/placement/engine/links.py",
        old='and node.agent_trouble in ("", UNANSWERED)',
        new="and not node.agent_trouble",
        tests=(
            "tests/unit/services/placement/queries/test_remote_peers.py::"
            "test_nodes_that_another_leader_has_not_heard_of_yet_are_measured_on",
        ),
    ),
    Mutant(
        name="proxy-outlives-its-image",
        what="the proxy of an earlier image goes on to take connections after an upgrade",
        file="services/node_agent/remote/remote.py",
        old="(*command, self._digest())",
        new="command",
        tests=(_UPGRADE + "test_an_agent_of_another_image_replaces_the_proxy_and_its_connections_go_on",),
    ),
    Mutant(
        name="replaced-proxy-cuts-its-connections",
        what="the programs of all containers lose their GPU when an upgrade replaces the proxy",
        file="native/remote/proxy.c",
        old="    while (atomic_load(&connections)) usleep(100000);\n",
        new="",
        tests=(
            "tests/remote/test_proxy.py::test_a_proxy_that_is_told_to_end_carries_on_what_it_has_and_takes_nothing_new",
        ),
    ),
    Mutant(
        name="node-that-serves-no-more-has-a-proxy",
        what="the proxy of a node that serves no more is not ended",
        file="services/node_agent/remote/remote.py",
        old="            await self._tidy(self._end_proxies)\n",
        new="",
        tests=(
            _UPGRADE + "test_a_node_that_serves_no_more_has_no_proxy",
            _UNIT + "test_remote.py::test_a_node_that_serves_no_more_keeps_its_proxy_until_its_last_server_has_ended",
        ),
    ),
    Mutant(
        name="server-sees-the-hosts-files",
        what="a server that is taken over reads the memory of another tenant's by the host's /proc",
        file="services/node_agent/remote/programs.py",
        old="*_host_files(host, library), str(len(inside))",
        new='"", "", str(len(inside))',
        tests=(_ENDS + "test_of_the_hosts_files_a_server_sees_the_drivers_alone",),
    ),
    Mutant(
        name="logs-grow-for-ever",
        what="the log of a proxy or a server fills /run",
        file="services/node_agent/log_files.py",
        old=" or min(found.st_size, found.st_blocks * 512) <= LOG_BYTES:",
        new=" or True:",
        tests=(_UNIT + "test_programs.py::test_a_log_that_grows_for_long_is_cut_to_its_last_lines",),
    ),
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
        old="    if folder.exists():  # another one may have seen the container's end, too\n        shutil.rmtree(folder)\n",
        new="    shutil.rmtree(folder)\n",
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
