"""R6 for the two nodes of a grant on another node's GPU: both are told, and the GPU's node alone returns it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.protocol.hearing import HEARD_FIRST_S
from shared.contracts.commands import DeletePod
from shared.contracts.node_commands import LiveSlice, NodeGrant, NodeSyncAnswer, RemoteEnd
from shared.model.grant import decode_grant
from shared.model.kube_object import OwnerReference
from shared.model.network import RemoteAbility
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement, only
from tests.unit.services.placement.engine.test_remote import NEAR, pod, site

GPU = 81920


def owned(one: Pod) -> Pod:
    owner = OwnerReference(uid="o", kind="ReplicaSet", name="o", controller=True)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, owner_references=(owner,)))


def bound(placement: Placement, one: Pod | None = None) -> tuple[Pod, str]:
    """A pod on c with a GPU of s, and its grant's id."""
    one = owned(pod(gpus=1)) if one is None else one
    placement.facts(one)
    seen = placement.bind(one)
    return seen, decode_grant(placement.binds()[one.metadata.uid].grant).grant_id


def grants(commands: list[m.Command]) -> dict[str, NodeGrant]:
    return {command.node: command.grant for command in only(commands, m.SendGrant)}


def releases(commands: list[m.Command]) -> list[tuple[str, str]]:
    return [(command.node, command.release.grant_id) for command in only(commands, m.SendRelease)]


def free(placement: Placement) -> int:
    return placement.core.book.nodes["s"].gpus[0].free_mib


def deleted(placement: Placement) -> list[str]:
    return [patch.uid for patch in placement.patches() if isinstance(patch, DeletePod)]


def release(placement: Placement, node: str, grant_id: str) -> list[m.Command]:
    return placement.send(m.ReleaseSeen(node, grant_id, "why"))


def restarted(placement: Placement, *objects: Any) -> Placement:
    """A successor with the same log, whose nodes answer nothing by themselves."""
    after = Placement(*objects, term=placement.sequence + 10, records=tuple(placement.log), begins=False)
    after._respond = lambda command, answers: [] if isinstance(command, m.SendSync) else answers(command)
    after.send(after.beginning)
    for name in ("s", "t", "c"):
        ability = RemoteAbility(client=True, network={"s": NEAR, "t": NEAR})
        if name != "c":
            ability = RemoteAbility(address=f"{name}:14833")
        seen = build.inventory(name, gpus=0 if name == "c" else 1)
        after.send(m.InventorySeen(msgspec.structs.replace(seen, remote=ability)))
    return after


def answer(placement: Placement, node: str, **what: Any) -> list[m.Command]:
    return placement.send(
        m.SyncAnswered(NodeSyncAnswer(node=node, boot_id="boot-1", term=placement.core.term, accepted=True, **what))
    )


def test_grant_and_binding_are_one_record() -> None:
    placement = site()
    bound(placement)
    (record,) = [record for _, record in placement.log if getattr(record, "decisions", ())]
    (decision,) = record.decisions
    assert decision.node == "c"
    (part,) = decision.grant.containers.values()
    assert part.gpus[0].node == "s"


def test_both_nodes_are_told_what_they_are_when_the_pod_is_seen_bound() -> None:
    placement = site()
    one = pod(gpus=1)
    placement.facts(one)
    assert grants(placement.commands) == {}
    placement.bind(one)
    told = grants(placement.commands)
    assert {node: grant.remote for node, grant in told.items()} == {
        "c": RemoteEnd(role="client", peer="s", address="s:14833"),
        "s": RemoteEnd(role="serving", peer="c"),
    }
    assert not any(grant.unbound for grant in told.values())


def test_each_nodes_answer_counts_for_itself() -> None:
    placement = site()
    placement.answer = False
    one = pod(gpus=1)
    placement.facts(one)
    placement.send(m.Appended(500))
    placement.bind(one)
    (grant_id,) = placement.core.book.remote
    placement.send(m.GrantAcknowledged("c", grant_id))
    assert set(grants(placement.tick(4.0))) == {"s"}
    placement.send(m.GrantAcknowledged("t", grant_id, dead=True))  # not its grant
    assert free(placement) == 0
    placement.send(m.GrantAcknowledged("s", grant_id))
    assert grants(placement.tick(4.0)) == {}


def test_the_gpu_is_free_when_its_node_has_released_it_and_not_before() -> None:
    placement = site()
    seen, grant_id = bound(placement)
    commands = placement.gone(seen)
    assert sorted(releases(commands)) == [("c", grant_id), ("s", grant_id)]
    acknowledged = release(placement, "c", grant_id)
    assert [command.node for command in only(acknowledged, m.SendReleasesSeen)] == ["c"]
    assert free(placement) == 0
    release(placement, "s", grant_id)
    assert free(placement) == GPU
    assert releases(placement.tick(10.0)) == []
    assert placement.core.book.nodes["c"].clients == {}


def test_releases_are_ordered_until_each_node_has_answered() -> None:
    placement = site()
    seen, grant_id = bound(placement)
    placement.gone(seen)
    assert sorted(releases(placement.tick(4.0))) == [("c", grant_id), ("s", grant_id)]
    release(placement, "s", grant_id)
    assert releases(placement.tick(4.0)) == [("c", grant_id)]
    release(placement, "c", grant_id)
    assert releases(placement.tick(4.0)) == []


def test_a_client_that_gives_back_a_living_pods_grant_has_it_released_where_it_is_served() -> None:
    placement = site()
    seen, grant_id = bound(placement)
    commands = placement.send(m.GrantAcknowledged("c", grant_id, ok=False, reason="released", dead=True))
    assert releases(commands) == [("s", grant_id)]
    assert (free(placement), deleted(placement)) == (0, [])
    placement.send(m.GrantAcknowledged("s", grant_id))  # a late answer to the grant itself ends no release
    assert releases(placement.tick(0.1)) == [("s", grant_id)]
    release(placement, "s", grant_id)
    assert (free(placement), deleted(placement)) == (GPU, [seen.metadata.uid])


def test_a_serving_node_that_gives_it_back_ends_the_pod() -> None:
    """Its boot, its GPU or its server is lost for good: as a pod whose GPU vanished (R6.6)."""
    placement = site()
    seen, grant_id = bound(placement)
    commands = release(placement, "s", grant_id)
    assert (free(placement), deleted(placement)) == (GPU, [seen.metadata.uid])
    assert releases(commands) == [("c", grant_id)]  # no container of it starts again
    (patch,) = [patch for patch in placement.patches() if isinstance(patch, DeletePod)]
    assert "node s, which has its GPU, says: why" in patch.reason


def test_the_deletion_of_the_clients_node_frees_nothing_by_itself() -> None:
    placement = site()
    seen, grant_id = bound(placement)
    placement.gone(build.node("c"))
    assert releases(placement.tick(0.1)) == [("s", grant_id)]
    placement.gone(seen)
    assert free(placement) == 0
    release(placement, "s", grant_id)
    assert free(placement) == GPU
    assert releases(placement.tick(10.0)) == []  # none for the node that is gone


def test_the_deletion_of_the_serving_node_frees_it_and_ends_the_pod() -> None:
    placement = site()
    seen, grant_id = bound(placement)
    placement.gone(build.node("s"))
    commands = placement.tick(0.1)
    assert grant_id not in placement.core.book.grants
    assert deleted(placement) == [seen.metadata.uid]
    assert releases(commands) == [("c", grant_id)]


def test_a_served_address_that_changes_reaches_the_client() -> None:
    placement = site()
    bound(placement)
    assert grants(placement.tick(0.1)) == {}
    ability = RemoteAbility(address="s:9")
    seen = msgspec.structs.replace(build.inventory("s", gpus=1, generation=2), remote=ability)
    placement.send(m.InventorySeen(seen))
    (told,) = grants(placement.tick(0.1)).values()
    assert told.remote == RemoteEnd(role="client", peer="s", address="s:9")
    assert grants(placement.tick(0.1)) == {}


def test_a_void_hold_is_revoked_at_both_nodes_that_heard_of_it() -> None:
    first = site()
    one = pod(gpus=1)
    first.facts(one)  # decided and logged; its Binding is under way
    nodes = [build.node(name, cpu="64" if name == "c" else "0") for name in ("s", "t", "c")]
    after = restarted(first, one, *nodes)
    synced = {command.sync.node: command.sync for command in only(after.commands, m.SendSync)}
    assert [grant.unbound for node in ("s", "c") for grant in synced[node].grants] == [True, True]
    (grant_id,) = after.core.book.remote
    commands = after.facts(build.newer(one))
    assert sorted(releases(commands))[:2] == [("c", grant_id), ("s", grant_id)]


def test_a_new_leader_books_unknown_servers_and_no_unknown_clients() -> None:
    """A pod was deleted by force before the new leader listed. Were its client booked under the grant, the client's end
    would free the GPU while the server runs."""
    first = site()
    seen, grant_id = bound(first)
    nodes = [build.node(name, cpu="64" if name == "c" else "0") for name in ("s", "t", "c")]
    after = restarted(first, *nodes)
    common = {"uid": seen.metadata.uid, "namespace": "team", "name": "p", "container": "main", "grant_id": grant_id}
    client = LiveSlice(strategy="remote", remote=RemoteEnd(role="client", peer="s"), **common)
    server = LiveSlice(
        strategy="exclusive", gpus={"s-gpu-0": (GPU, 1000)}, remote=RemoteEnd(role="serving", peer="c"), **common
    )
    answer(after, "c", live=(client,))
    assert after.core.book.grants == {}
    answer(after, "s", live=(server,))
    assert free(after) == 0
    assert ("s", grant_id) in releases(after.tick(0.1))
    release(after, "c", grant_id)
    assert free(after) == 0
    release(after, "s", grant_id)
    assert free(after) == GPU


def test_nothing_of_a_serving_node_is_given_before_it_has_synced() -> None:
    first = site()
    nodes = [build.node(name, cpu="64" if name == "c" else "0") for name in ("s", "t", "c")]
    after = restarted(first, *nodes)
    for node in ("c", "t"):
        answer(after, node)
    after.tick(HEARD_FIRST_S)
    a, b = pod("a", gpus=1), pod("b", gpus=1)
    after.facts(a, b)
    assert len(after.binds()) == 1  # by t
    answer(after, "s")
    after.tick(1.0)
    assert len(after.binds()) == 2


@pytest.mark.parametrize("node", ["s", "c"])
def test_a_tombstone_in_a_sync_voids_a_living_pods_grant(node: str) -> None:
    first = site()
    seen, grant_id = bound(first)
    nodes = [build.node(name, cpu="64" if name == "c" else "0") for name in ("s", "t", "c")]
    after = restarted(first, seen, *nodes)
    assert {
        one.sync.node: [g.remote.role for g in one.sync.grants if g.remote] for one in only(after.commands, m.SendSync)
    } == {
        "s": ["serving"],
        "c": ["client"],
        "t": [],
    }
    commands = answer(after, node, tombstones=(grant_id,))
    if node == "c":
        assert (free(after), deleted(after)) == (0, [])
        assert ("s", grant_id) in releases(commands)
        answer(after, "s")
        release(after, "s", grant_id)
    assert (grant_id in after.core.book.grants, deleted(after)) == (False, [seen.metadata.uid])
