"""Grants whose GPU is on another node than their pod: CPU is charged where the pod is, the GPU where it serves."""

from __future__ import annotations

from shared.book.book import Book
from shared.book.fork import Fork
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.scheduling.transaction import Transaction
from tests.support import build

POD = build.gpu_pod("p", memory="1Gi", requests={"cpu": "2"})


def remote(grant_id: str = "g", *, server: str = "s", mib: int = 1024, milli: int = 100) -> Grant:
    share = GpuShare(node=server, uuid=f"{server}-gpu-0", memory_mib=mib, compute_milli=milli)
    part = ContainerGrant(strategy="remote", serving="advisory", gpus=(share,))
    return Grant(grant_id=grant_id, term=1, containers={"main": part})


def book(*facts: object) -> Book:
    made = Book()
    for fact in build.put(build.node("c"), build.node("s"), *facts):
        made.apply(fact)
    made.put_inventory(build.inventory("s", gpus=1))
    made.put_inventory(build.inventory("c", gpus=0))
    return made


def free(made: Book) -> tuple[int, int]:
    (room,) = made.nodes["s"].gpus
    return room.free_mib, room.free_milli


def test_the_gpu_is_charged_on_its_node_and_the_rest_on_the_pods() -> None:
    made = book(POD)
    made.hold(POD.metadata.uid, "c", remote())
    assert free(made) == (81920 - 1024, 900)
    assert (made.nodes["c"].cpu_used, made.nodes["s"].cpu_used) == (2000, 0)
    held = made.grants["g"]
    assert (held.node, held.client) == ("s", "c")
    assert set(made.nodes["c"].clients) == set(made.remote) == {"g"}
    assert made.nodes["c"].grants == {}


def test_a_bound_pods_grant_counts_where_its_gpu_is() -> None:
    made = book(build.bound(POD, "c", remote()))
    assert (made.grants["g"].node, made.grants["g"].client, made.grants["g"].phase) == ("s", "c", "bound")
    assert free(made) == (81920 - 1024, 900)


def test_a_pod_that_is_gone_frees_its_cpu_and_not_the_gpu() -> None:
    bound = build.bound(POD, "c", remote())
    made = book(bound)
    made.apply(build.gone(bound)[0])
    assert made.nodes["c"].cpu_used == 0
    assert made.grants["g"].phase == "leaving"
    assert free(made) == (81920 - 1024, 900)
    made.release("g")
    assert free(made) == (81920, 1000)
    assert made.remote == made.nodes["c"].clients == {}


def test_the_end_of_the_clients_node_frees_no_gpu_of_another_one() -> None:
    bound = build.bound(POD, "c", remote())
    made = book(bound)
    made.apply(build.gone(bound)[0])
    made.apply(build.gone(build.node("c"))[0])
    assert free(made) == (81920 - 1024, 900)
    made.apply(build.gone(build.node("s"))[0])
    assert made.grants == {}


def test_a_pod_that_had_ended_before_the_book_began_still_holds_the_gpu() -> None:
    made = book(build.newer(build.bound(POD, "c", remote()), phase="Succeeded"))
    assert (made.grants["g"].phase, made.grants["g"].node) == ("leaving", "s")
    assert free(made) == (81920 - 1024, 900)


def test_a_void_hold_gives_both_nodes_back() -> None:
    made = book(POD)
    made.hold(POD.metadata.uid, "c", remote())
    made.unhold(POD.metadata.uid)
    assert free(made) == (81920, 1000)
    assert made.nodes["c"].cpu_used == 0
    assert made.nodes["c"].clients == made.remote == {}


def test_more_than_the_gpu_has_is_reported_whoever_uses_it() -> None:
    local = Grant(
        grant_id="l",
        term=1,
        containers={
            "main": ContainerGrant(
                strategy="advisory",
                gpus=(GpuShare(node="s", uuid="s-gpu-0", memory_mib=81920, compute_milli=0),),
            )
        },
    )
    made = book(build.bound(POD, "c", remote()), build.bound(build.gpu_pod("q", memory="80Gi"), "s", local))
    assert made.overbooked() == ["s/s-gpu-0"]


def test_what_is_tried_on_a_fork_does_not_reach_the_book() -> None:
    made = book(build.bound(POD, "c", remote()))
    fork = Fork(made)
    trial = Transaction(fork)
    trial.lift(POD.metadata.uid)
    assert free(fork) == (81920, 1000)
    assert fork.nodes["c"].clients == fork.remote == {}
    assert set(made.nodes["c"].clients) == set(made.remote) == {"g"}
    assert free(made) == (81920 - 1024, 900)
    trial.roll_back()
    assert free(fork) == free(made)
    assert set(fork.nodes["c"].clients) == {"g"}
    assert fork.digest() == made.digest()
