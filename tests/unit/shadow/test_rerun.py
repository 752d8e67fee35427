"""The pods of a history through placement's real core."""

from __future__ import annotations

import msgspec
import pytest

from services.placement.scheduling.pauses import PAUSE_MOST_S
from shadow.history import Starts, read_history
from shadow.objects import NodeGone, NodeSeen, SeenPod
from shadow.rerun import Lost, Rerun, rerun
from tests.support import shadow
from tests.support.shadow import BEGAN_S, Recording

ONE, TWO = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}


def run(recording: Recording, until_s: float) -> Rerun:
    return rerun(read_history(recording.ended(until_s)))


def starts(made: Rerun) -> dict[str, tuple[float, str]]:
    return {uid.removeprefix("uid-"): (placed.at_s - BEGAN_S, placed.node) for uid, placed in made.placed.items()}


def test_a_pod_that_ended_by_itself_runs_as_long_as_there() -> None:
    """There the first pod ran from 5 to 15; with Kerf it starts at 1 and makes room at 11."""
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    recording.seen(1, shadow.pod("first", TWO)).seen(2, shadow.pod("second", ONE))
    recording.seen(5, shadow.pod("first", TWO, on="n1"))
    recording.seen(15, shadow.pod("first", TWO, on="n1", phase="Succeeded"), shadow.pod("second", ONE, on="n1"))
    made = run(recording, 30)
    assert starts(made) == {"first": (1, "n1"), "second": (11, "n1")}
    assert "0 of 1 nodes can take the pod" in made.waits["uid-second"]


def test_a_deleted_pod_leaves_when_it_did_there() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(1, shadow.pod("served", ONE)).seen(5, shadow.pod("served", ONE, on="n1"))
    recording.seen(6, shadow.pod("next", ONE)).gone(20, "served").seen(21, shadow.pod("next", ONE, on="n1"))
    assert starts(run(recording, 30)) == {"served": (1, "n1"), "next": (20, "n1")}


def test_a_pod_that_was_deleted_before_it_ran_leaves_then_too() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(1, shadow.pod("tried", ONE)).gone(4, "tried").seen(5, shadow.pod("next", ONE))
    assert starts(run(recording, 30)) == {"tried": (1, "n1"), "next": (5, "n1")}


def test_pods_without_gpus_take_cpu_with_kerf_too() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    recording.seen(0, shadow.pod("cpu", {"cpu": "60"}, on="n1"))
    recording.seen(1, shadow.pod("p", ONE | {"cpu": "8"})).gone(9, "cpu")
    assert starts(run(recording, 30)) == {"p": (9, "n1")}


def test_nodes_come_and_go() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(1, shadow.pod("a", ONE), shadow.pod("b", ONE))
    recording.facts.append(NodeSeen(at_s=BEGAN_S + 7, node=shadow.node("n2", shadow.gfd(1))))
    recording.facts.append(NodeGone(at_s=BEGAN_S + 9, name="n1"))
    made = run(recording, 30)
    assert starts(made) == {"a": (1, "n1"), "b": (7, "n2")}
    assert [step.uid for step in made.steps if type(step).__name__ == "Leaves"] == ["uid-a"]


def test_no_pod_starts_on_gpus_that_are_gone_and_those_that_run_there_run_on() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2))).seen(1, shadow.pod("a", ONE))
    recording.facts.append(NodeSeen(at_s=BEGAN_S + 5, node=shadow.node("n1")))
    recording.seen(7, shadow.pod("b", ONE), shadow.pod("c", ONE))
    recording.facts.append(NodeSeen(at_s=BEGAN_S + 20, node=shadow.node("n1", shadow.gfd(2))))
    assert starts(run(recording, 30)) == {"a": (1, "n1"), "b": (20, "n1")}


def test_no_pod_starts_on_a_broken_gpu() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2), None, **{"nvidia.com/gpu": "1"}))
    recording.seen(1, shadow.pod("a", ONE), shadow.pod("b", ONE))
    assert starts(run(recording, 30)) == {"a": (1, "n1")}


def test_a_pod_whose_node_leaves_comes_anew_for_the_rest_of_its_time() -> None:
    """There it runs from 2 to 42, on the other node. With Kerf its node leaves at 10, and the other one is in use."""
    recording = Recording(shadow.node("n1", shadow.gfd(1)), shadow.node("n2", shadow.gfd(1)))
    recording.seen(1, shadow.pod("job", ONE)).seen(2, shadow.pod("job", ONE, on="n2"))
    recording.seen(3, shadow.pod("other", ONE))
    recording.facts.append(NodeGone(at_s=BEGAN_S + 10, name="n1"))
    recording.gone(15, "other").seen(42, shadow.pod("job", ONE, on="n2", phase="Succeeded"))
    made = run(recording, 100)
    job = [(type(step).__name__, step.at_s - BEGAN_S) for step in made.steps if getattr(step, "uid", "") == "uid-job"]
    # It has run for 9 of its 40 seconds by 10, and runs on from 15.
    assert job == [("Arrives", 1), ("Starts", 1), ("Leaves", 10), ("Arrives", 10), ("Starts", 15), ("Leaves", 46)]
    assert starts(made)["job"] == (1, "n1")
    assert made.lost == {"uid-job": Lost(node="n1", since_s=BEGAN_S + 10, waited_s=5.0, waits=False)}


def test_a_pod_that_was_deleted_as_its_node_left_does_not_come_anew() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)), shadow.node("n2", shadow.gfd(1)))
    recording.seen(1, shadow.pod("a", ONE)).seen(2, shadow.pod("a", ONE, on="n1"))
    recording.facts.append(NodeGone(at_s=BEGAN_S + 10, name="n1"))
    made = run(recording.gone(10, "a"), 30)
    assert [step.at_s - BEGAN_S for step in made.steps if isinstance(step, Starts)] == [1]
    assert made.lost["uid-a"].waits is False


def test_two_halves_share_a_gpu() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    for name in "abc":
        recording.seen(1, shadow.pod(name, scheduler="kai-scheduler", annotations={"gpu-fraction": "0.5"}))
    made = run(recording, 30)
    assert sorted(starts(made)) == ["a", "b"]
    assert {placed.gpus for placed in made.placed.values()} == {("n1/gpu-0",)}
    assert made.placed["uid-a"].why.startswith("1 of 1 nodes had room")


def test_all_nodes_take_part_in_the_first_decision() -> None:
    recording = Recording(*(shadow.node(f"n{i}", shadow.gfd(1)) for i in range(5)))
    recording.seen(0, shadow.pod("a", scheduler="kai-scheduler", annotations={"gpu-fraction": "0.5"}))
    assert run(recording, 5).placed["uid-a"].why.startswith("5 of 5 nodes had room")


def avoiding(pod: SeenPod, node: str = "n1") -> SeenPod:
    """On this node alone, and beside no other pod with its label."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    manifest = msgspec.to_builtins(pod)
    manifest["spec"] |= {"affinity": apart, "nodeSelector": {"kubernetes.io/hostname": node}}
    return msgspec.convert(manifest | {"kind": "Pod"}, SeenPod)


def two_that_avoid_each_other(ends: int) -> Recording:
    """The second one waits for the end of the first. Others come and go meanwhile, and it is tried with each."""
    labels = {"app": "x"}
    recording = Recording(shadow.node("n1", shadow.gfd(2)), shadow.node("n2", shadow.gfd(8)))
    recording.seen(0, avoiding(shadow.pod("first", ONE, labels=labels, on="n1", created_s=BEGAN_S - 10)))
    recording.seen(1, avoiding(shadow.pod("second", ONE, labels=labels)))
    for at in range(2, ends):
        recording.seen(at, shadow.pod(f"short{at}", ONE, on="n2"))
        recording.seen(at + 0.5, shadow.pod(f"short{at}", ONE, on="n2", phase="Succeeded"))
    first = shadow.pod("first", ONE, labels=labels, on="n1", phase="Succeeded", created_s=BEGAN_S - 10)
    recording.seen(ends, avoiding(first))
    return recording


@pytest.mark.parametrize("ends", [20, 24, 28])
def test_a_pod_that_pauses_is_tried_again_when_its_pause_ends(ends: int) -> None:
    """And not when something else happens, which may be hours later."""
    at_s, node = starts(run(two_that_avoid_each_other(ends), 3600))["second"]
    assert node == "n1"
    assert ends <= at_s <= ends + PAUSE_MOST_S


@pytest.mark.parametrize("ends", [20, 24, 28])
def test_a_pod_that_pauses_may_be_deleted(ends: int) -> None:
    recording = two_that_avoid_each_other(ends).gone(ends + 0.5, "second").seen(600, shadow.pod("next", ONE))
    assert starts(run(recording, 3600))["next"][0] == 600


def test_pods_that_ran_before_are_placed_before_those_that_waited() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    waits = shadow.pod("waits", TWO, created_s=BEGAN_S - 5000)
    recording.seen(0, waits, shadow.pod("runs", ONE, on="n1", created_s=BEGAN_S - 1000))
    assert starts(run(recording, 600)) == {"runs": (0, "n1")}


def test_a_pod_that_comes_as_another_leaves_is_tried_with_those_that_wait() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(1, shadow.pod("first", ONE), shadow.pod("waits", ONE))
    important = shadow.pod("important", ONE)
    important = msgspec.structs.replace(important, spec=msgspec.structs.replace(important.spec, priority=1000))
    made = run(recording.gone(9, "first").seen(9, important), 60)
    assert starts(made) == {"first": (1, "n1"), "important": (9, "n1")}


def test_a_pod_that_comes_with_a_node_is_tried_with_those_that_wait() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(1, shadow.pod("first", ONE), shadow.pod("waits", ONE))
    important = shadow.pod("important", ONE)
    important = msgspec.structs.replace(important, spec=msgspec.structs.replace(important.spec, priority=1000))
    recording.facts.append(NodeSeen(at_s=BEGAN_S + 9, node=shadow.node("n2", shadow.gfd(1))))
    assert starts(run(recording.seen(9, important), 60)) == {"first": (1, "n1"), "important": (9, "n2")}


def test_no_pod_starts_on_a_node_that_leaves_at_that_moment() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(1, shadow.pod("first", ONE), shadow.pod("waits", ONE))
    recording.facts.append(NodeGone(at_s=BEGAN_S + 9, name="n1"))
    assert starts(run(recording, 60)) == {"first": (1, "n1")}
