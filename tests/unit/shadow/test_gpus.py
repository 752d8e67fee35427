"""What GPUs have given away, and what is wrong with it."""

from __future__ import annotations

import pytest

from shadow.gpus import Fleet
from shadow.peers import Device, Given, Part
from shared.model.request import GpuAsk


def device(node: str, index: int, **more: object) -> Device:
    fields: dict[str, object] = {"uuid": f"GPU-{node}-{index}", "model": "T4", "memory_mib": 1000} | more
    return Device(node=node, index=index, **fields)  # type: ignore[arg-type]


def fleet(**more: object) -> Fleet:
    made = Fleet()
    made.set_node(
        "n", (device("n", 0, **more), device("n", 1, **({"uuid": "n/gpu-1", **more} if "uuid" in more else more)))
    )
    return made


def given(*parts: Part, node: str = "n") -> Given:
    return Given(peer="hami", node=node, parts=parts)


def share(mib: int, milli: int = 0, uuid: str = "GPU-n-0") -> Part:
    return Part(uuid=uuid, memory_mib=mib, milli=milli)


def test_two_pods_share_a_gpu_up_to_its_memory() -> None:
    gpus = fleet()
    assert gpus.give("a", "team/a", given(share(600))) == ()
    assert gpus.give("b", "team/b", given(share(400))) == ()
    (wrong,) = gpus.give("c", "team/c", given(share(1)))
    assert wrong.startswith("GPU GPU-n-0 of node n: 1001 of 1000 MiB are given away, to team/a (600 MiB, 0 %)")
    gpus.take("a")
    assert gpus.give("d", "team/d", given(share(500))) == ()


def test_compute_and_shares_are_given_away_once_too() -> None:
    gpus = fleet(max_sharers=2)
    assert gpus.give("a", "team/a", given(share(1, 600))) == ()
    assert "110 of 100 % of its compute" in gpus.give("b", "team/b", given(share(1, 500)))[0]
    assert "3 of 2 shares" in gpus.give("c", "team/c", given(share(1)))[0]


def test_a_gpu_that_does_not_exist() -> None:
    gpus = fleet()
    assert gpus.give("a", "team/a", given(share(1, uuid="GPU-x"))) == (
        "GPU GPU-x does not exist on node n, which has GPU-n-0, GPU-n-1",
    )
    assert gpus.give("b", "team/b", given(share(1), node="m")) == ("node m does not exist, or has no GPUs",)


def test_whole_gpus_without_uuids_are_counted() -> None:
    gpus = fleet()
    assert gpus.give("a", "team/a", given(Part(whole=True), Part(whole=True))) == ()
    assert gpus.named("a") == ("GPU-n-0", "GPU-n-1")
    wrong = gpus.give("b", "team/b", given(Part(whole=True)))
    assert wrong[0] == "node n has 2 GPUs, and none of them is left: they are held by team/a"


def test_a_group_takes_the_place_of_a_numbered_gpu_and_frees_it() -> None:
    gpus = Fleet()
    gpus.set_node("n", (device("n", 0, uuid="n/gpu-0", numbered=True), device("n", 1, uuid="n/gpu-1", numbered=True)))
    half = Part(uuid="GPU-a", milli=500, memory_milli=500)
    assert gpus.give("a", "team/a", given(half)) == ()
    assert gpus.give("b", "team/b", given(half)) == ()
    assert gpus.named("a") == gpus.named("b") == ("n/gpu-0",)
    assert gpus.give("c", "team/c", given(Part(whole=True))) == ()
    assert "all are held by others, and GPU-z is one more" in gpus.give("d", "team/d", given(Part(uuid="GPU-z")))[0]
    for uid in "abc":
        gpus.take(uid)
    assert gpus.give("e", "team/e", given(Part(whole=True), Part(whole=True))) == ()


def test_replicas_are_spread_over_the_least_used_gpus() -> None:
    gpus = fleet(max_sharers=2)
    replica = Part(milli=500, memory_milli=500)
    for uid in "abcd":
        assert gpus.give(uid, uid, given(replica)) == ()
    assert [gpus.named(uid) for uid in "abcd"] == [("GPU-n-0",), ("GPU-n-1",)] * 2
    assert gpus.give("e", "e", given(replica)) != ()


def test_a_broken_gpu_counts_by_its_pods_alone() -> None:
    gpus = Fleet()
    gpus.set_node("n", (device("n", 0), device("n", 1, healthy=False)))
    gpus.give("a", "team/a", given(share(600, uuid="GPU-n-1")))
    now = gpus.moment([GpuAsk(count=1, memory_mib=100)])
    assert (now.gpus, now.used, now.free, now.scattered, now.stranded) == (1, 1, 1.0, 0.0, 0.0)


def test_free_memory_that_no_waiting_pod_can_use_is_stranded() -> None:
    gpus = fleet()
    gpus.give("a", "team/a", given(share(600)))
    none = gpus.moment(())
    assert (none.gpus, none.used, none.free, none.scattered, none.stranded) == (2, 1, pytest.approx(1.4), 0.4, 0.0)
    assert gpus.moment([GpuAsk(count=1, memory_mib=500)]).stranded == 0.4
    assert gpus.moment([GpuAsk(count=2, memory_mib=500)]).stranded == pytest.approx(1.4)
    assert gpus.moment([GpuAsk(count=1, whole=True, compute_milli=1000), GpuAsk(count=1, memory_mib=400)]).stranded == 0


def test_a_node_that_is_reported_again_keeps_what_it_has_given() -> None:
    gpus = fleet()
    gpus.give("a", "team/a", given(share(600)))
    gpus.set_node("n", (device("n", 0), device("n", 1), device("n", 2)))
    assert gpus.moment(()).used == 1
    gpus.take("a")
    assert gpus.moment(()).used == 0
    gpus.remove_node("n")
    assert gpus.moment(()).gpus == 0


def test_a_node_that_comes_back_has_given_away_what_its_pods_hold() -> None:
    gpus = fleet()
    gpus.give("a", "team/a", given(share(600)))
    gpus.give("b", "team/b", given(share(300)))
    gpus.remove_node("n")
    gpus.take("b")
    gpus.set_node("n", ())
    gpus.set_node("n", (device("n", 0), device("n", 1)))
    assert gpus.give("c", "team/c", given(share(300))) == ()
    (wrong,) = gpus.give("d", "team/d", given(share(200)))
    assert "1100 of 1000 MiB are given away, to team/a (600 MiB, 0 %), team/c" in wrong


def test_a_numbered_gpu_that_comes_back_is_still_that_of_its_group() -> None:
    gpus, devices = Fleet(), tuple(device("n", index, uuid=f"n/gpu-{index}", numbered=True) for index in (0, 1))
    gpus.set_node("n", devices)
    half = Part(uuid="group:g", milli=500, memory_milli=500)
    gpus.give("a", "team/a", given(half))
    gpus.give("x", "team/x", given(Part(uuid="group:x")))
    gpus.remove_node("n")
    gpus.take("x")
    gpus.set_node("n", devices)
    assert gpus.give("b", "team/b", given(half)) == ()
    assert gpus.named("b") == gpus.named("a")
    assert gpus.give("c", "team/c", given(Part(uuid="group:c"))) == ()
