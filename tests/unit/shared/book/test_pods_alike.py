"""The index of placed pods by what makes them alike: what is in it after pods came, went and changed, and in twins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.pods_alike import PodsAlike
from shared.contracts.facts import Gone, Put
from shared.model.objects import Pod, PodSpec
from tests.support import build

APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}


def pod(name: str, app: str = "a", *, namespace: str = "team", **spec: Any) -> Pod:
    """On node n."""
    made = build.pod(name)
    meta = msgspec.structs.replace(
        made.metadata, namespace=namespace, labels={"app": app}, resource_version=build.next_version()
    )
    body = {"containers": [{"name": "c"}], "nodeName": "n", "schedulerName": "kerf", **spec}
    return msgspec.structs.replace(made, metadata=meta, spec=msgspec.convert(body, PodSpec))


def book_of(*pods: Pod) -> Book:
    book = Book()
    for thing in (build.node("n"), *pods):
        book.apply(Put(object=thing))
    return book


def groups(index: PodsAlike, namespace: str = "team") -> list[list[str]]:
    """By name, sorted."""
    return sorted(sorted(state.pod.metadata.name for state in group.values()) for group in index.within(namespace))


def test_pods_with_the_same_labels_are_alike() -> None:
    book = book_of(pod("p"), pod("q"), pod("r", "b"), pod("s", namespace="other"))
    assert groups(book.placed) == [["p", "q"], ["r"]]
    assert groups(book.placed, "other") == [["s"]]
    assert sorted(book.placed.namespaces()) == ["other", "team"]


def test_a_pod_with_other_labels_is_found_by_them_alone() -> None:
    book = book_of(pod("p"), pod("q"))
    book.apply(Put(object=pod("q", "b")))
    assert groups(book.placed) == [["p"], ["q"]]
    book.apply(Put(object=pod("q", "a")))
    assert groups(book.placed) == [["p", "q"]]


def test_what_keeps_others_away_is_alike_by_its_terms_too() -> None:
    book = book_of(pod("p", affinity=APART), pod("q", affinity=APART), pod("r"), pod("s", "b", affinity=APART))
    assert groups(book.exclusive) == [["p", "q"], ["s"]]
    book.apply(Put(object=pod("p", "b", affinity=APART)))
    assert groups(book.exclusive) == [["p", "s"], ["q"]]


def test_nothing_is_left_of_pods_that_are_gone() -> None:
    """Namespaces come and go for ever."""
    gone = pod("p", affinity=APART)
    book = book_of(gone)
    book.apply(Gone(object=gone))
    assert list(book.placed) == book.placed.namespaces() == book.exclusive.namespaces() == []


@pytest.mark.parametrize("parted", [False, True], ids=["shared", "parted"])
def test_a_fork_changes_by_itself(parted: bool) -> None:
    book = book_of(pod("p", affinity=APART), pod("q", affinity=APART), pod("s", namespace="other"))
    fork = Fork(book).part() if parted else Fork(book)
    fork.lift("uid-team-p")
    assert (groups(fork.placed), groups(fork.exclusive)) == ([["q"]], [["q"]])
    assert (groups(book.placed), groups(book.exclusive)) == ([["p", "q"]], [["p", "q"]])
    assert groups(fork.placed, "other") == [["s"]]


def test_a_parted_fork_keeps_what_its_origin_loses() -> None:
    last = pod("p")
    book = book_of(last)
    fork = Fork(book).part()
    book.apply(Gone(object=last))
    assert groups(fork.placed) == [["p"]]
    assert all(state is fork.pods[state.uid] for state in fork.placed), "the fork's own state"


def test_a_placed_pod_with_other_terms_leaves_nothing_behind() -> None:
    book = book_of(pod("p", affinity=APART), pod("q", affinity=APART))
    (term,) = APART["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    other = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{**term, "topologyKey": "rack"}]}}
    changed = pod("p", affinity=other)
    book.apply(Put(object=changed))
    assert groups(book.exclusive) == [["p"], ["q"]]
    book.apply(Gone(object=changed))
    assert groups(book.exclusive) == [["q"]]


def test_a_namespace_that_a_fork_empties_and_fills_again_is_its_own() -> None:
    book = book_of(pod("p"))
    fork = Fork(book)
    for _ in range(2):
        fork.lift("uid-team-p")
        assert groups(fork.placed) == []
        fork.return_lifted("uid-team-p", "n", None)
        assert groups(fork.placed) == [["p"]]
    assert groups(fork.part().placed) == groups(book.placed) == [["p"]]
    assert next(iter(book.placed)) is book.pods["uid-team-p"]
