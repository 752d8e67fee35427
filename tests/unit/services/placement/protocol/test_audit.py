"""Sums over all grants: what they say, and how often they are made."""

from __future__ import annotations

import msgspec
import pytest

from services.placement.protocol.audit import Audit
from shared.book.book import Book
from tests.support import build
from tests.unit.shared.book.test_book import grant


class Watch:
    """A clock on which adding up takes `took_s`: it goes on by that each time that it is read while a sum is made."""

    def __init__(self, took_s: float) -> None:
        self.now, self.took_s, self.reads = 0.0, took_s, 0

    def __call__(self) -> float:
        self.reads += 1
        if self.reads % 2 == 0:
            self.now += self.took_s
        return self.now


def book_of(*grants: str) -> Book:
    book = Book()
    pods = [build.bound(build.gpu_pod(f"p-{g}", gpus=1), "n", grant(g, mib=81920, milli=1000)) for g in grants]
    for fact in build.put(build.node("n"), *pods):
        book.apply(fact)
    book.put_inventory(build.inventory("n", gpus=1))
    return book


def test_it_adds_up_all_grants_and_names_the_gpus_that_are_booked_twice() -> None:
    one = Audit(book_of("a"), lambda: 0.0).sums(tuple)
    assert (one.memory_mib, one.compute_milli, one.overbooked) == (81920, 1000, ())
    two = Audit(book_of("a", "b"), lambda: 0.0).sums(tuple)
    assert (two.memory_mib, two.compute_milli, two.overbooked) == (163840, 2000, ("n/n-gpu-0",))


def test_it_names_what_is_booked_on_a_gpu_that_is_booked_twice() -> None:
    audit = Audit(book_of("a", "b"), lambda: 0.0)
    assert audit.overbooked == ()
    audit.sums(tuple)
    assert audit.grants_on(audit.overbooked) == {
        "n/n-gpu-0": [f"bound {g} of team/p-{g}: 81920 MiB, 1000 milli" for g in ("a", "b")]
    }


def test_it_counts_kerfs_pods_that_are_bound_and_those_that_are_gated() -> None:
    book = book_of("a", "b")
    gated = build.gpu_pod("gated", gpus=1)
    gated = msgspec.structs.replace(gated, spec=msgspec.structs.replace(gated.spec, scheduling_gates=({"name": "g"},)))
    ended = build.bound(build.gpu_pod("ended", gpus=1), "n", grant("c", mib=81920, milli=1000))
    ended = msgspec.structs.replace(ended, status=msgspec.structs.replace(ended.status, phase="Succeeded"))
    other = build.gpu_pod("other", gpus=1)
    other = msgspec.structs.replace(other, spec=msgspec.structs.replace(other.spec, scheduler_name="x", node_name="n"))
    for fact in build.put(gated, ended, other, build.gpu_pod("waits", gpus=1)):
        book.apply(fact)
    sums = Audit(book, lambda: 0.0).sums(tuple)
    assert (sums.pods_bound, sums.pods_gated) == (2, 1)


@pytest.mark.parametrize("took_s", [0.001, 0.5])
def test_a_sum_is_kept_for_twenty_times_as_long_as_it_took(took_s: float) -> None:
    book, watch = book_of("a"), Watch(took_s)
    audit = Audit(book, watch)
    assert audit.sums(tuple).compute_milli == 1000
    for fact in build.put(build.bound(build.gpu_pod("late", gpus=1), "n", grant("late", mib=81920, milli=1000))):
        book.apply(fact)
    watch.reads, watch.now = 0, took_s + 19 * took_s
    assert audit.sums(tuple).overbooked == ()
    watch.reads, watch.now = 0, took_s + 21 * took_s
    assert audit.sums(tuple).overbooked == ("n/n-gpu-0",)
