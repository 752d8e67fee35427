"""etcd was restored: pods that were bound since the backup are pending again, and their containers run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.placement import messages as m
from services.placement.protocol.hearing import HEARD_FIRST_S, NAMED_MOST, NOTE_EVERY_S
from shared.contracts.events import PlacementRejected
from shared.contracts.log import ReadyRecord
from shared.contracts.node_commands import LiveSlice, NodeSyncAnswer
from shared.model import names
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement, Respond
from tests.support.harness.proposals import Proposals, high, low, refused
from tests.unit.services.placement.core_pods import HALF


def runs(pod: Pod, node: str) -> LiveSlice:
    """What a node tells of a pod that it started by a grant that is no longer in the API server."""
    meta = pod.metadata
    return LiveSlice(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        container="c",
        grant_id=f"1-{node}",
        strategy="interposer",
        gpus={f"{node}-gpu-0": (40960, 500)},
    )


def answer(placement: Placement, node: str, *live: LiveSlice) -> list[m.Command]:
    said = NodeSyncAnswer(node=node, boot_id="boot-1", term=placement.core.term, accepted=True, live=live)
    return placement.send(m.SyncAnswered(said))


def silent(*nodes: str) -> Callable[[m.Command, Respond], list[m.Input]]:
    """Surroundings in which these nodes do not answer syncs."""
    return lambda said, usual: [] if isinstance(said, m.SendSync) and said.sync.node in nodes else usual(said)


def two_nodes(*objects: Any) -> Placement:
    """`free` has answered, `n` and `third` have not, and nothing waits for them any longer."""
    nodes = {name: build.node(name) for name in ("free", "n", "third")}
    placement = Placement(*nodes.values(), respond=silent("n", "third"))
    for name in nodes:
        placement.send(m.InventorySeen(build.inventory(name, gpus=1)))
    placement.tick(HEARD_FIRST_S)
    placement.facts(*objects)
    return placement


def reasons(placement: Placement) -> list[str]:
    return [reason.code for event in placement.events(PlacementRejected) for reason in event.explanation.summary]


def test_a_pending_pod_waits_until_the_node_where_it_still_runs_has_released_it() -> None:
    pod = build.gpu_pod("p", **HALF)
    placement = two_nodes()
    answer(placement, "n", runs(pod, "n"))
    assert placement.place(pod, build.gpu_pod("other", **HALF)).keys() == {"other"}
    assert reasons(placement) == ["still-running"]
    placement.facts(build.newer(pod))
    assert pod.metadata.uid not in placement.binds()
    placement.send(m.ReleaseSeen("n", "1-n"))
    assert pod.metadata.uid in placement.binds()


def test_so_does_one_that_had_been_queued_before_its_node_answered() -> None:
    pod = build.gpu_pod("p", gpus=1, node_selector={"kubernetes.io/hostname": "n"})
    placement = two_nodes(pod)
    answer(placement, "n", runs(pod, "n"))
    assert "still-running" in reasons(placement)
    placement.facts(build.newer(pod))
    placement.send(m.ReleaseSeen("n", "1-n"))
    assert placement.binds()[pod.metadata.uid].node == "n"


def test_it_waits_for_each_node_that_has_a_slice_of_it() -> None:
    pod = build.gpu_pod("p", **HALF)
    placement = two_nodes()
    answer(placement, "n", runs(pod, "n"))
    answer(placement, "third", runs(pod, "third"))
    placement.facts(pod)
    placement.send(m.ReleaseSeen("n", "1-n"))
    assert pod.metadata.uid not in placement.binds()
    placement.send(m.ReleaseSeen("third", "1-third"))
    assert pod.metadata.uid in placement.binds()


def test_a_node_that_is_gone_keeps_its_pods_back_no_longer() -> None:
    pod = build.gpu_pod("p", **HALF)
    placement = two_nodes()
    answer(placement, "n", runs(pod, "n"))
    assert placement.place(pod) == {}
    placement.gone(build.node("n"))
    assert placement.binds()[pod.metadata.uid].node == "free"


def test_a_gang_waits_for_the_member_that_still_runs() -> None:
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    stays, comes = (build.gpu_pod(name, annotations=notes, **HALF) for name in ("stays", "comes"))
    placement = two_nodes()
    answer(placement, "n", runs(stays, "n"))
    assert placement.place(stays, comes) == {}
    placement.send(m.ReleaseSeen("n", "1-n"))
    placement.tick()
    assert {stays.metadata.uid, comes.metadata.uid} <= placement.binds().keys()


def test_no_plan_is_for_a_pod_that_still_runs() -> None:
    pod = high()
    cluster = Proposals(two_nodes())
    cluster.run(low("victim"))
    answer(cluster.placement, "n", runs(pod, "n"))
    cluster.wait(pod)
    assert "still run on node n" in refused(cluster, cluster.plan("victim", to=(pod,)))
    cluster.placement.facts(build.node("n", unschedulable=True))
    cluster.placement.send(m.ReleaseSeen("n", "1-n"))
    assert cluster.propose(cluster.plan("victim", to=(pod,))).ok


def test_without_a_complete_log_nothing_is_placed_until_all_nodes_have_answered_or_some_seconds_have_passed() -> None:
    """The log is deleted where etcd is restored, and a pod may run on any node."""

    def begun() -> Placement:
        pod = build.gpu_pod("p", **HALF)
        placement = Placement(build.node("free"), build.node("n"), pod, respond=silent("n"))
        for node in ("free", "n"):
            placement.send(m.InventorySeen(build.inventory(node)))
        placement.facts(build.newer(pod))
        assert (placement.core.phase, placement.binds()) == ("leading", {})
        return placement

    all_answered = begun()
    answer(all_answered, "n", runs(build.gpu_pod("q"), "n"))
    assert all_answered.binds().keys() == {"uid-team-p"}
    some_time = begun()
    some_time.tick(HEARD_FIRST_S - 0.5)
    assert some_time.binds() == {}
    some_time.tick(1.0)
    assert some_time.binds().keys() == {"uid-team-p"}


def succeed(first: Placement, *pods: Pod, term: int = 200) -> Placement:
    """The next leader, which finds a complete log; `free` answers it, and `n` does not."""
    first.tick(NOTE_EVERY_S)
    nodes = build.node("free"), build.node("n")
    second = Placement(*nodes, *pods, term=term, records=tuple(first.log), respond=silent("n"), begins=False)
    for node in ("free", "n"):
        second.send(m.InventorySeen(build.inventory(node)))
    second.send(second.beginning)
    return second


HAS_GPU = {names.LABEL_GPU_COUNT: "1"}
HAS_AGENT = {**HAS_GPU, names.LABEL_ENROLLED: "true"}


def test_nor_until_the_nodes_with_an_agent_have_told_their_inventories() -> None:
    """Where the store of NATS is new too the agents tell them again."""
    nodes = build.node("free"), build.node("n", labels=HAS_AGENT), build.node("left", labels=HAS_GPU)
    placement = Placement(*nodes)
    placement.send(m.InventorySeen(build.inventory("free")))
    placement.facts(pod := build.gpu_pod("p", **HALF))
    assert placement.binds() == {}
    placement.send(m.InventorySeen(build.inventory("n")))
    assert placement.binds().keys() == {pod.metadata.uid}


def unheard() -> Placement:
    """A leader without the log; `free` has yet to tell anything."""
    return Placement(build.node("free", labels=HAS_AGENT), term=100)


def test_the_successor_of_a_leader_that_had_yet_to_hear_nodes_hears_them_too() -> None:
    second = succeed(unheard(), pod := build.gpu_pod("p", **HALF))
    assert second.binds() == {}
    answer(second, "n", runs(pod, "n"))
    assert (second.binds(), reasons(second)) == ({}, ["still-running"])


def test_where_the_nodes_were_heard_or_waited_for_no_successor_waits_for_them() -> None:
    assert succeed(Placement(term=100).nodes("free")).place(build.gpu_pod("p", **HALF)) == {"p": "free"}
    first = unheard()
    first.tick(HEARD_FIRST_S)
    assert succeed(first).place(build.gpu_pod("p", **HALF)) == {"p": "free"}


@pytest.mark.parametrize("renews", [False, True])
def test_a_successor_hears_the_node_that_keeps_a_pod_back(renews: bool) -> None:
    """Other nodes that do not answer delay it by nothing."""
    pod = build.gpu_pod("p", **HALF)
    first = two_nodes()
    answer(first, "n", runs(pod, "n"))
    first.facts(pod)
    if renews:
        first.send(m.TermRenewed(term=150))
    second = succeed(first, pod)
    assert second.binds() == {}
    second.tick(HEARD_FIRST_S)
    assert second.binds().keys() == {pod.metadata.uid}
    first.send(m.ReleaseSeen("n", "1-n"))
    assert succeed(first, pod).binds().keys() == {pod.metadata.uid}


def test_nor_is_it_forgotten_where_a_term_is_renewed_before_it_has_answered() -> None:
    pod = build.gpu_pod("p", **HALF)
    first = two_nodes()
    answer(first, "n", runs(pod, "n"))
    first.facts(pod)
    second = succeed(first, pod)
    second.send(m.TermRenewed(term=250))
    assert succeed(second, pod, term=300).binds() == {}


def test_a_node_that_keeps_no_pod_back_delays_no_successor() -> None:
    pod = build.gpu_pod("p", **HALF)
    first = two_nodes()
    answer(first, "third", runs(pod, "third"))
    first.facts(pod)
    assert succeed(first, pod).binds().keys() == {pod.metadata.uid}


def readies(placement: Placement) -> list[ReadyRecord]:
    return [record for _, record in placement.log if isinstance(record, ReadyRecord)]


def test_of_very_many_nodes_that_keep_pods_back_all_are_heard() -> None:
    placement = Placement()
    for number in range(NAMED_MOST + 1):
        placement.core._leftovers._found[f"uid-{number}"] = {f"g{number}": f"n{number}"}
    placement.tick(NOTE_EVERY_S)
    assert readies(placement)[-1] == ReadyRecord(term=placement.core.term, hear_first=True)


def test_nodes_that_answer_one_after_the_other_are_written_together() -> None:
    """Decisions wait behind each record."""
    nodes = [f"n{i}" for i in range(30)]
    placement = Placement(*map(build.node, nodes), respond=silent(*nodes))
    for node in nodes:
        placement.send(m.InventorySeen(build.inventory(node, gpus=1)))
    placement.tick(HEARD_FIRST_S)
    before = len(readies(placement))
    for number, node in enumerate(nodes):
        answer(placement, node, runs(build.gpu_pod(f"p{number}"), node))
    placement.tick(NOTE_EVERY_S)
    assert len(readies(placement)) - before <= 2
    assert readies(placement)[-1].hear_nodes == tuple(sorted(nodes))


def test_a_node_that_has_released_all_is_named_no_longer_while_others_have_not() -> None:
    """Its agent may be gone for good by the next takeover."""
    placement = two_nodes()
    for node in ("n", "third"):
        answer(placement, node, runs(build.gpu_pod(f"on-{node}"), node))
    placement.tick(NOTE_EVERY_S)
    assert readies(placement)[-1].hear_nodes == ("n", "third")
    placement.send(m.ReleaseSeen("third", "1-third"))
    placement.tick(NOTE_EVERY_S)
    assert readies(placement)[-1].hear_nodes == ("n",)


def test_where_no_log_was_lost_nodes_with_slices_of_pods_that_are_gone_are_not_named() -> None:
    """Such slices are those of pods that are just ending, and no pod comes back."""
    first = Placement(term=100).nodes("free")
    second = succeed(first)
    answer(second, "n", runs(build.gpu_pod("gone"), "n"))
    second.tick(NOTE_EVERY_S)
    assert all(not record.hear_first and not record.hear_nodes for record in readies(second))


def test_a_node_that_is_to_be_heard_is_awaited_until_it_has_told_its_inventory() -> None:
    pod = build.gpu_pod("p", **HALF)
    nodes = build.node("free"), build.node("n", labels=HAS_AGENT)
    placement = Placement(*nodes, pod, records=((99, ReadyRecord(term=99, hear_nodes=("n",))),), begins=False)
    placement.send(m.InventorySeen(build.inventory("free")))
    placement.send(placement.beginning)
    placement.facts(build.newer(pod))
    assert placement.binds() == {}
    placement.send(m.InventorySeen(build.inventory("n")))
    assert placement.binds().keys() == {pod.metadata.uid}
