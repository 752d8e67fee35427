"""The figures of both sides, each small enough to be counted by hand."""

from __future__ import annotations

from shadow.compare import Comparison, compare, fleet_at
from shadow.history import read_history
from shadow.objects import NodeGone
from shadow.peers.hami import REGISTER
from shadow.rerun import rerun
from tests.support import shadow
from tests.support.shadow import BEGAN_S, Recording

ONE, TWO = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}


def compared(recording: Recording, until_s: float) -> Comparison:
    history = read_history(recording.ended(until_s))
    return compare(history, rerun(history))


def test_waits_and_gpus_are_those_that_a_person_would_count() -> None:
    """Two GPUs on each of two nodes. There two pods of one GPU each go to different nodes, and one of two waits."""
    recording = Recording(shadow.node("n1", shadow.gfd(2)), shadow.node("n2", shadow.gfd(2)))
    recording.seen(0, shadow.pod("a", ONE), shadow.pod("b", ONE), shadow.pod("c", TWO), shadow.pod("d", TWO))
    recording.seen(10, shadow.pod("a", ONE, on="n1"), shadow.pod("b", ONE, on="n2"))
    recording.gone(60, "a").seen(60, shadow.pod("c", TWO, on="n1"))
    found = compared(recording, 100)
    there, kerf = found.there, found.kerf
    # a and b hold 2 GPUs from 10 to 60, then b 1 and c 2 until 100: (50 x 2 + 40 x 3) / 100.
    assert (there.gpus_used, there.max_gpus_used, there.pods_started, there.pods_waiting) == (2.2, 3, 3, 1)
    # 2 GPUs are free from 10 to 60 and 1 from 60 to 100, none of which c or d can use.
    assert there.stranded_gpus == 1.4
    assert (there.mean_wait_s, there.max_wait_s) == (45.0, 100.0)
    # Kerf packs a and b on one node and c on the other; d waits for a and b, of which b stays.
    assert (kerf.pods_started, kerf.pods_waiting, kerf.max_gpus_used) == (3, 1, 4)
    assert kerf.gpus_used == 3.6
    assert (kerf.mean_wait_s, kerf.max_wait_s) == (25.0, 100.0)
    kinds = {one.pod: one.kind for one in found.differences}
    assert kinds == {"team/a": "sooner", "team/b": "sooner", "team/c": "sooner"}
    assert found.differences[0].pod == "team/c"
    assert found.differences[0].asks == "2 GPUs, whole"


def test_pods_that_ran_before_count_in_gpus_and_not_in_waits() -> None:
    """The old pod is deleted at 8; the new one came at 4, and was bound there at 9."""
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(0, shadow.pod("old", ONE, on="n1", created_s=BEGAN_S - 50)).seen(4, shadow.pod("new", ONE))
    found = compared(recording.gone(8, "old").seen(9, shadow.pod("new", ONE, on="n1")), 10)
    assert (found.pods, found.ran_before, found.there.mean_wait_s, found.kerf.mean_wait_s) == (2, 1, 5.0, 4.0)
    assert (found.there.gpus_used, found.kerf.gpus_used) == (0.9, 1.0)


def test_numbered_gpus_of_one_node_are_no_difference_but_another_node_is() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2)), shadow.node("n2", shadow.gfd(2)))
    recording.seen(0, shadow.pod("a", ONE), shadow.pod("b", ONE))
    recording.seen(0.5, shadow.pod("a", ONE, on="n1"), shadow.pod("b", ONE, on="n2"))
    (one,) = compared(recording, 10).differences
    assert one.kind == "elsewhere"
    assert {one.there.node, one.kerf.node} == {"n1", "n2"}


def test_a_pod_that_kerf_would_refuse_is_left_out_and_named() -> None:
    refused = shadow.pod(
        "p", {"nvidia.com/gpumem": "3000"}, annotations={"nvidia.com/vgpu-mode": "mps"}, scheduler="hami-scheduler"
    )
    found = compared(Recording(shadow.node("n1", shadow.gfd(1))).seen(1, refused), 5)
    assert (found.pods, found.left_out[0].pod) == (0, "team/p")
    assert "kerf.dev/isolation" in found.left_out[0].why


def test_free_memory_on_used_gpus_is_scattered() -> None:
    half = {"scheduler": "kai-scheduler", "annotations": {"gpu-fraction": "0.5"}}
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    recording.seen(0, *(shadow.pod(name, on="n1", labels={"runai-gpu-group": name}, **half) for name in "ab"))  # type: ignore[arg-type]
    found = compared(recording, 10)
    assert (found.there.scattered_percent, found.there.gpus_used) == (100.0, 2.0)
    assert (found.kerf.scattered_percent, found.kerf.gpus_used) == (0.0, 1.0)


def test_a_bound_pod_whose_grant_cannot_be_read_waits_no_more() -> None:
    """HAMi bound it without saying on which GPU. The other node's GPU is too small for it, and would be stranded."""
    registered = "GPU-{},10,{},100,NVIDIA-T4,0,true,0,hami-core:"
    nodes = (
        shadow.node(name, annotations={REGISTER: registered.format(name, mib)})
        for name, mib in (("n1", 16_384), ("n2", 4096))
    )
    limits = ONE | {"nvidia.com/gpumem": "8000"}
    recording = Recording(*nodes).seen(1, shadow.pod("a", limits, scheduler="hami-scheduler"))
    found = compared(recording.seen(51, shadow.pod("a", limits, on="n1", scheduler="hami-scheduler")), 101)
    assert found.there.stranded_gpus == 0.5


def test_what_each_gpu_held_at_a_time() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(1))).seen(1, shadow.pod("a", ONE, on="n1")).gone(5, "a")
    history = read_history(recording.ended(9))
    for at_s, holders in ((0.5, set()), (1, {"uid-a"}), (5, set())):
        assert set(fleet_at(history, history.steps, BEGAN_S + at_s)["n1"]["n1/gpu-0"].holders) == holders


def test_a_pod_whose_node_leaves_with_kerf_is_named_and_waits() -> None:
    """There both run on n2, with Kerf first on n1, which leaves at 10 as it is empty there."""
    recording = Recording(shadow.node("n1", shadow.gfd(2)), shadow.node("n2", shadow.gfd(4)))
    recording.seen(1, shadow.pod("a", TWO)).seen(1, shadow.pod("b", TWO)).seen(2, shadow.pod("c", TWO))
    recording.seen(4, shadow.pod("a", TWO, on="n2"), shadow.pod("b", TWO, on="n2"))
    recording.facts.append(NodeGone(at_s=BEGAN_S + 10, name="n1"))
    found = compared(recording, 30)
    (anew,) = found.came_anew
    assert anew.what == "node n1 left, and it waits 20.0 s for another place"
    assert (found.kerf.pods_started, found.kerf.pods_waiting, found.kerf.max_wait_s) == (3, 1, 20.0)
    # 4 GPUs from 1 to 2, 6 until 10, then 4 until 30.
    assert found.kerf.gpus_used == 4.4


def test_pods_that_wait_there_are_listed_with_what_became_of_them_with_kerf() -> None:
    recording = (
        Recording(shadow.node("n1", shadow.gfd(2))).seen(0, shadow.pod("could", TWO)).seen(4, shadow.pod("not", ONE))
    )
    pending = compared(recording, 10).pending
    assert [(one.pod, one.wait_s) for one in pending] == [("team/could", 10.0), ("team/not", 6.0)]
    assert pending[0].kerf == "runs on n1 since 0.0 s after it came"
    assert pending[1].kerf.startswith("waits: 0 of 1 nodes can take the pod")


def test_a_pod_that_has_ended_there_and_never_started_with_kerf_still_waits() -> None:
    """With Kerf the older pod has the GPU; there the job was faster."""
    recording = Recording(shadow.node("n1", shadow.gfd(1)))
    recording.seen(0, shadow.pod("serves", ONE, created_s=BEGAN_S - 100))
    recording.seen(1, shadow.pod("job", ONE, on="n1")).seen(2, shadow.pod("job", ONE, on="n1", phase="Succeeded"))
    found = compared(recording.seen(3, shadow.pod("serves", ONE, on="n1")), 3600)
    assert (found.kerf.pods_waiting, found.kerf.max_wait_s) == (1, 3599.0)
    assert (found.there.pods_waiting, found.there.max_wait_s) == (0, 3.0)
