"""Facts become lives of pods."""

from __future__ import annotations

import msgspec

from shadow.history import History, NodeIs, Starts, read_history
from shadow.objects import NodeGone, NodeSeen, SeenPod
from shadow.peers.hami import ALLOCATED, REGISTER
from shared.model.objects import Node, SchedulingGate
from tests.support import shadow
from tests.support.shadow import BEGAN_S, Recording

ONE = {"nvidia.com/gpu": "1"}
HAMI_NODE = shadow.node("n1", annotations={REGISTER: "GPU-a,10,16384,100,NVIDIA-T4,0,true,0,hami-core:"})


def at(history: History, name: str) -> tuple[float, float | None, float | None, bool]:
    life = history.lives[f"uid-{name}"]
    return (
        life.created_s - BEGAN_S,
        None if life.bound_s is None else life.bound_s - BEGAN_S,
        None if life.left_s is None else life.left_s - BEGAN_S,
        life.finished,
    )


def hami(name: str, text: str, *, on: str = "n1", phase: str = "") -> SeenPod:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}
    return shadow.pod(name, limits, on=on, phase=phase, scheduler="hami-scheduler", annotations={ALLOCATED: text})


def test_a_pods_life_is_its_creation_binding_and_end() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    recording.seen(1, shadow.pod("done", ONE), shadow.pod("deleted", ONE), shadow.pod("waits", ONE))
    recording.seen(4, shadow.pod("done", ONE, on="n1"), shadow.pod("deleted", ONE, on="n1"))
    recording.seen(9, shadow.pod("done", ONE, on="n1", phase="Succeeded")).gone(12, "done", "deleted")
    history = read_history(recording.ended(20))
    assert at(history, "done") == (1, 4, 9, True)
    assert at(history, "deleted") == (1, 4, 12, False)
    assert at(history, "waits") == (1, None, None, False)
    assert (history.grants_read, history.grants_wrong, history.peers) == (2, (), ("nvidia",))


def test_pods_that_ran_before_are_told_apart() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    recording.seen(0, shadow.pod("old", ONE, on="n1", created_s=BEGAN_S - 100), shadow.pod("new", ONE))
    history = read_history(recording.seen(3, shadow.pod("new", ONE, on="n1")).ended(5))
    assert [life.ran_before for life in history.lives.values()] == [True, False]


def test_a_gate_is_not_a_wait() -> None:
    free = shadow.pod("p", ONE)
    spec = msgspec.structs.replace(free.spec, scheduling_gates=(SchedulingGate(name="quota"),))
    gated = msgspec.structs.replace(free, spec=spec)
    recording = Recording(shadow.node("n1", shadow.gfd(2))).seen(1, gated).seen(8, free)
    assert at(read_history(recording.ended(9)), "p")[0] == 8


def test_a_gpu_that_is_given_away_twice_is_found_at_the_second_pod() -> None:
    recording = Recording(HAMI_NODE).seen(1, hami("a", "GPU-a,NVIDIA,8000,30:;"), hami("b", "GPU-a,NVIDIA,8000,30:;"))
    assert read_history(recording.ended(2)).grants_wrong == ()
    history = read_history(recording.seen(3, hami("c", "GPU-a,NVIDIA,8000,30:;")).ended(4))
    assert history.grants_read == 3
    (wrong,) = history.grants_wrong
    assert wrong.startswith("team/c, after 3.0 s: GPU GPU-a of node n1: 24000 of 16384 MiB")


def test_a_pod_that_is_seen_before_its_node_is_judged_with_it() -> None:
    recording = Recording(shadow.node("n2", shadow.gfd(1))).seen(1, hami("a", "GPU-a,NVIDIA,16000,100:;"))
    recording.facts.append(NodeSeen(at_s=BEGAN_S + 1.5, node=HAMI_NODE))
    history = read_history(recording.ended(4))
    assert (history.grants_read, history.grants_wrong, history.unreadable) == (1, (), ())
    assert history.lives["uid-a"].gpus == ("GPU-a",)
    held = [(step.at_s - BEGAN_S, len(step.given.parts)) for step in history.steps if isinstance(step, Starts)]
    assert held == [(1, 0), (1.5, 1)]
    history = read_history(recording.seen(3, hami("b", "GPU-a,NVIDIA,16000,100:;")).ended(4))
    assert [wrong.split(":")[0] for wrong in history.grants_wrong] == ["team/b, after 3.0 s"]


def test_a_counted_grant_that_is_seen_before_its_node_is_read_with_it() -> None:
    recording = Recording(shadow.node("n2", shadow.gfd(1))).seen(1, shadow.pod("a", ONE, on="n1"))
    recording.facts.append(NodeSeen(at_s=BEGAN_S + 1.5, node=shadow.node("n1", shadow.gfd(1))))
    history = read_history(recording.ended(4))
    assert (history.grants_read, history.lives["uid-a"].gpus) == (1, ("n1/gpu-0",))


def test_grants_on_a_node_without_readable_gpus_are_named_and_not_wrong() -> None:
    broken = shadow.node("n1", annotations={REGISTER: "[{]"})
    recording = Recording(broken).seen(1, hami("a", "GPU-a,NVIDIA,8000,30:;"), hami("b", "GPU-a,NVIDIA,8000,30:;"))
    history = read_history(recording.ended(4))
    assert (history.grants_read, history.grants_wrong) == (0, ())
    assert history.unreadable[1] == (
        "node n1 was not seen with GPUs that can be read; what its pods hold counts nowhere: team/a, team/b"
    )


def test_a_node_that_is_registered_again_hides_no_double_booking() -> None:
    recording = Recording(HAMI_NODE).seen(1, hami("a", "GPU-a,NVIDIA,16000,100:;"))
    recording.facts += [NodeGone(at_s=BEGAN_S + 2, name="n1"), NodeSeen(at_s=BEGAN_S + 3, node=HAMI_NODE)]
    history = read_history(recording.seen(4, hami("b", "GPU-a,NVIDIA,16000,100:;")).ended(5))
    assert [wrong.split(":")[0] for wrong in history.grants_wrong] == ["team/b, after 4.0 s"]


def test_a_node_that_reports_its_gpus_no_longer_has_none_until_it_does() -> None:
    recording = Recording(HAMI_NODE).seen(1, hami("a", "GPU-a,NVIDIA,16000,100:;"))
    recording.facts += [
        NodeSeen(at_s=BEGAN_S + at_s, node=node) for at_s, node in ((2, shadow.node("n1")), (4, HAMI_NODE))
    ]
    history = read_history(recording.seen(5, hami("b", "GPU-a,NVIDIA,16000,100:;")).ended(6))
    steps = [(step.at_s - BEGAN_S, len(step.devices)) for step in history.steps if isinstance(step, NodeIs)]
    assert steps == [(0, 1), (2, 0), (4, 1)]
    assert [wrong.split(":")[0] for wrong in history.grants_wrong] == ["team/b, after 5.0 s"]


def test_a_pod_on_a_broken_gpu_has_no_wrong_grant() -> None:
    broken = shadow.node("n1", annotations={REGISTER: "GPU-a,10,16384,100,NVIDIA-T4,0,false,0,hami-core:"})
    history = read_history(Recording(broken).seen(0, hami("a", "GPU-a,NVIDIA,8000,30:;")).ended(1))
    assert (history.grants_read, history.grants_wrong, history.unreadable) == (1, (), ())
    full = Recording(shadow.node("n1", shadow.gfd(2), None, **{"nvidia.com/gpu": "1"}))
    history = read_history(full.seen(0, shadow.pod("a", ONE, on="n1"), shadow.pod("b", ONE, on="n1")).ended(1))
    assert (history.grants_read, history.grants_wrong) == (2, ())


def test_a_pod_that_has_ended_holds_nothing() -> None:
    recording = Recording(HAMI_NODE).seen(1, hami("a", "GPU-a,NVIDIA,16000,100:;"))
    recording.seen(2, hami("a", "GPU-a,NVIDIA,16000,100:;", phase="Failed"))
    recording.seen(3, hami("b", "GPU-a,NVIDIA,16000,100:;"))
    assert read_history(recording.ended(4)).grants_wrong == ()


def test_what_cannot_be_read_is_named_once_and_is_no_double_booking() -> None:
    broken = shadow.node("n2", annotations={REGISTER: "[{]"})
    recording = Recording(HAMI_NODE, broken).seen(1, hami("a", "GPU-a:;"))
    recording.seen(2, hami("a", "GPU-a:;"))
    history = read_history(recording.ended(3))
    assert len(history.unreadable) == 2
    assert history.grants_wrong == ()
    assert history.grants_read == 0


def test_kais_reservation_pod_may_come_after_its_members() -> None:
    node: Node = shadow.node("n1", shadow.gfd(1))
    labels, notes = {"runai-gpu-group": "g"}, {"gpu-fraction": "0.5"}
    members = [
        shadow.pod(name, on="n1", scheduler="kai-scheduler", labels=labels, annotations=notes) for name in ("a", "b")
    ]
    reservation = shadow.pod(
        "gpu-reservation",
        ONE,
        on="n1",
        namespace="kai-resource-reservation",
        labels=labels,
        annotations={"run.ai/reserve_for_gpu_index": "GPU-x"},
    )
    history = read_history(Recording(node).seen(1, *members).seen(2, reservation).ended(3))
    assert (history.grants_read, history.grants_wrong, sorted(history.lives)) == (2, (), ["uid-a", "uid-b"])
    whole = shadow.pod("w", ONE, on="n1", scheduler="kai-scheduler")
    over = read_history(Recording(node).seen(1, *members, reservation).seen(2, whole).ended(3))
    assert "none of them is left: they are held by team/a, team/b" in over.grants_wrong[0]


def test_pods_without_gpus_are_kept_for_their_cpu() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1))).seen(1, shadow.pod("cpu", {"cpu": "4"}, on="n1"))
    history = read_history(recording.gone(3, "cpu").ended(4))
    assert [(other.at_s - BEGAN_S, other.pod is None) for other in history.others] == [(1, False), (3, True)]
    assert history.lives == {}


def test_a_pending_pod_is_read_by_the_slices_of_the_clusters_nodes() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1, replicas=4))).seen(1, shadow.pod("p", ONE))
    (ask,) = read_history(recording.ended(4)).lives["uid-p"].wanted.asks  # type: ignore[union-attr]
    assert ask.compute_milli == 250


def test_members_of_a_group_hold_their_gpu_until_it_has_a_name() -> None:
    """KAI's reservation pod is seen before its GPU is known."""

    def member(name: str) -> SeenPod:
        notes = {"gpu-fraction": "0.6", "received-resource-type": "Fraction"}
        labels = {"runai-gpu-group": "g"}
        return shadow.pod(name, scheduler="kai-scheduler", annotations=notes, labels=labels, on="n1")

    reservation = shadow.pod(
        "reserves", ONE, on="n1", namespace="kai-resource-reservation", labels={"runai-gpu-group": "g"}
    )
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    found = read_history(recording.seen(1, member("a")).seen(2, reservation).seen(3, member("b")).ended(10))
    assert [wrong.split(",")[0] for wrong in found.grants_wrong] == ["team/b"]
