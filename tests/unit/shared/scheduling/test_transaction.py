"""What is rolled back leaves no trace on the book: free capacity, pods, grants and array columns are as before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.book.book import Book
from shared.book.fork import Fork
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension
from shared.scheduling.transaction import ChangeList, Transaction
from tests.support import build
from tests.support.harness.placement import Placement

STEPS = st.lists(st.tuples(st.sampled_from(("lift", "suspend", "hold", "unhold", "release")), st.integers(0, 9)))


def placement() -> Placement:
    """Two nodes of two GPUs: three bound slices, the slice of a pod that is gone, and one pod that fits nowhere."""
    made = Placement().nodes("a", "b", gpus=2)
    for number in range(4):
        pod = build.gpu_pod(f"p{number}", memory="30Gi", compute=40, requests={"cpu": "1"})
        made.facts(pod)
        bound = made.bind(pod)
        if number == 3:
            made.gone(bound)
    made.facts(build.gpu_pod("waiting", memory="200Gi"))
    return made


def picture(book: Book) -> dict[str, Any]:
    return {
        node.name: (
            [(room.uuid, room.free_mib, room.free_milli, room.containers, room.kept) for room in node.gpus],
            (node.cpu_used, node.memory_used, node.pods_total, sorted(node.pods), sorted(node.grants)),
            [book.arrays.gpu_free_mib[node.row].tolist(), book.arrays.gpu_free_milli[node.row].tolist()],
            [int(book.arrays.cpu_free[node.row]), int(book.arrays.pods_free[node.row])],
        )
        for node in book.nodes.values()
    } | {
        "pods": {state.uid: (state.charged, state.grant_id) for state in book.pods.values()},
        "grants": {key: (held.grant, held.whole, held.suspension, held.phase) for key, held in book.grants.items()},
    }


def grant_on(node: str, uid: str) -> Grant:
    share = GpuShare(node=node, uuid=build.inventory(node, gpus=2).gpus[0].uuid, memory_mib=1, compute_milli=1)
    part = ContainerGrant(strategy="interposer", gpus=(share,))
    return Grant(grant_id=f"tried-{uid}", term=1, containers={"main": part})


def step(transaction: Transaction, what: str, number: int) -> None:
    book = transaction.book
    placed = sorted(uid for uid, state in book.pods.items() if state.charged)
    idle = sorted(uid for uid, state in book.pods.items() if not state.charged and not state.grant_id)
    tried = sorted(held.uid for held in book.grants.values() if held.phase == "holding")
    if what == "lift" and placed:
        transaction.lift(placed[number % len(placed)])
    elif what == "suspend" and book.grants:
        action = Suspension(action="throttle", plan_id="", compute_milli=number)
        transaction.suspend(sorted(book.grants)[number % len(book.grants)], action if number % 3 else None)
    elif what == "hold" and idle:
        uid, node = idle[number % len(idle)], "ab"[number % 2]
        transaction.hold(uid, node, grant_on(node, uid))
    elif what == "unhold" and tried:
        transaction.unhold(tried[number % len(tried)])
    elif what == "release":
        orphans = sorted(key for key, held in book.grants.items() if held.uid not in book.pods)
        if orphans:
            transaction.release(orphans[number % len(orphans)])


@settings(max_examples=150)
@given(STEPS, STEPS)
def test_rolled_back_steps_leave_no_trace(kept: list[tuple[str, int]], tried: list[tuple[str, int]]) -> None:
    transaction = Transaction(Fork(placement().core.book))
    before = picture(transaction.book)
    for what, number in kept:
        step(transaction, what, number)
    mark, middle = transaction.mark, picture(transaction.book)
    for what, number in tried:
        step(transaction, what, number)
    transaction.roll_back(mark)
    assert picture(transaction.book) == middle
    transaction.roll_back()
    assert picture(transaction.book) == before


def test_what_is_committed_stays() -> None:
    transaction = Transaction(Fork(placement().core.book))
    transaction.lift("uid-team-p0")
    transaction.commit()
    transaction.roll_back()
    assert transaction.book.pods["uid-team-p0"].charged == ""


def test_a_pod_that_was_put_back_has_its_grant_and_can_be_lifted_again() -> None:
    transaction = Transaction(Fork(placement().core.book))
    before = picture(transaction.book)
    transaction.lift("uid-team-p1")
    lifted = picture(transaction.book)
    transaction.put_back("uid-team-p1")
    assert picture(transaction.book) == before
    transaction.roll_back(1)
    assert picture(transaction.book) == lifted


def test_the_grant_of_a_pod_that_is_gone_is_released_and_returns() -> None:
    transaction = Transaction(Fork(placement().core.book))
    before = picture(transaction.book)
    (orphan,) = (key for key, held in transaction.book.grants.items() if held.uid not in transaction.book.pods)
    transaction.release(orphan)
    assert picture(transaction.book) != before
    transaction.roll_back()
    assert picture(transaction.book) == before


def test_observed_pods_are_lifted_on_a_fork_only() -> None:
    transaction = Transaction(placement().core.book)
    with pytest.raises(TypeError, match=r"Transaction\(Fork\(book\)\)"):
        transaction.lift("uid-team-p0")


def test_a_change_list_redoes_only_what_differs() -> None:
    transaction, made = Transaction(Book()), list[str]()
    undone: list[str] = []

    def make(name: str) -> None:
        made.append(name)
        transaction._inverses.append(lambda: undone.append(name))

    changes = ChangeList[str](transaction, make)
    changes.set(["a", "b"])
    changes.set(["a", "b", "c"])
    changes.set(["a", "c"])
    assert (made, undone) == (["a", "b", "c", "c"], ["c", "b"])
    changes.set([])
    assert undone == ["c", "b", "c", "a"]
