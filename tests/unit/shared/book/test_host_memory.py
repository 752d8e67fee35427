"""What is taken of a node's host memory, and from when to when."""

from __future__ import annotations

from shared.book import host_memory
from shared.book.book import Book
from shared.book.fork import Fork
from shared.contracts.facts import Put
from shared.model import names
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension, encode_suspension
from shared.scheduling.transaction import Transaction
from tests.support import build

CHECKPOINT = Suspension(action="checkpoint", plan_id="p")


def book_with_two_pods(park_mib: int) -> Book:
    """One node with two pods, `a` and `b`, of 100 MiB each."""
    book = Book()
    book.apply(Put(object=build.node("n")))
    book.put_inventory(build.inventory("n", gpus=1, park_mib=park_mib))
    book.set_agent_trouble("n", "")
    for name in ("a", "b"):
        share = GpuShare(node="n", uuid="n-gpu-0", memory_mib=100, compute_milli=500)
        grant = Grant(grant_id=name, term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
        book.apply(Put(object=build.bound(build.gpu_pod(name, memory="100Mi"), "n", grant)))
    return book


def test_an_annotated_checkpoint_is_counted_until_the_node_has_confirmed_that_all_is_back() -> None:
    book = book_with_two_pods(150)
    node, pod = book.nodes["n"], book.pods["uid-team-a"].pod
    assert host_memory.free_mib(node) == 150
    notes = pod.metadata.annotations | {names.ANNOTATION_SUSPENDED: encode_suspension(CHECKPOINT)}
    book.apply(Put(object=build.newer(pod, annotations=notes)))
    assert host_memory.free_mib(node) == 50
    assert host_memory.lacking(book, [book.grants["a"]]) == "", "it is counted already"
    assert "50 MiB free" in host_memory.lacking(book, [book.grants["b"]])
    book.suspend("a", CHECKPOINT)
    book.suspend("a", None)
    assert host_memory.free_mib(node) == 50, "booked on the GPU again, and still on the host"
    book.park("a", parked=False)
    assert host_memory.free_mib(node) == 150


def test_what_a_pod_may_have_beyond_its_request_is_counted_too() -> None:
    """All of it goes to the host."""
    book = book_with_two_pods(500)
    share = GpuShare(node="n", uuid="n-gpu-0", memory_mib=100, compute_milli=0, memory_limit_mib=400)
    grant = Grant(grant_id="c", term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
    book.apply(Put(object=build.bound(build.gpu_pod("c", memory="100Mi"), "n", grant)))
    assert host_memory.needed_mib(book.grants["c"]) == {"n": 400}
    book.park("c")
    assert host_memory.free_mib(book.nodes["n"]) == 100


def test_a_released_grant_takes_no_host_memory() -> None:
    book = book_with_two_pods(150)
    book.park("a")
    book.release("a")
    assert host_memory.free_mib(book.nodes["n"]) == 150


def test_two_that_fit_alone_do_not_fit_together() -> None:
    book = book_with_two_pods(150)
    assert host_memory.lacking(book, [book.grants["a"]]) == ""
    assert host_memory.lacking(book, [book.grants["a"], book.grants["b"]])


def test_nothing_is_free_while_the_node_has_not_answered() -> None:
    book = book_with_two_pods(150)
    book.set_agent_trouble("n", "its agent has not answered this leader yet")
    assert host_memory.lacking(book, [book.grants["a"]])


def test_a_smaller_host_than_is_taken_is_overbooked() -> None:
    book = book_with_two_pods(150)
    book.park("a")
    assert host_memory.overbooked(book) == []
    smaller = build.inventory("n", gpus=1, park_mib=50, generation=2)
    book.put_inventory(smaller)
    assert host_memory.overbooked(book) == ["n"]
    assert host_memory.free_mib(book.nodes["n"]) == -50


def test_a_trial_takes_and_returns_host_memory_and_keeps_what_was_taken_before() -> None:
    book = book_with_two_pods(200)
    book.park("b")
    fork = Fork(book)
    trial = Transaction(fork)
    trial.suspend("a", CHECKPOINT)
    assert host_memory.free_mib(fork.nodes["n"]) == 0
    trial.suspend("a", None)
    assert host_memory.free_mib(fork.nodes["n"]) == 100
    trial.suspend("a", CHECKPOINT)
    trial.roll_back()
    assert host_memory.free_mib(fork.nodes["n"]) == host_memory.free_mib(book.nodes["n"]) == 100
