"""Amounts that the API server accepts and no array of integers holds."""

from __future__ import annotations

import msgspec
import pytest

from shared.book.book import Book
from shared.book.demand import MOST, demand_of
from shared.model.objects import Node
from tests.support import build


@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage"])
def test_a_bound_pod_that_requests_9e_fills_its_node_and_is_released_exactly(resource: str) -> None:
    book = Book()
    for fact in build.put(build.node("n")):
        book.apply(fact)
    before = [column.copy() for column in (book.arrays.cpu_free, book.arrays.memory_free, book.arrays.ephemeral_free)]
    giants = [build.pod(f"giant-{i}", node="n", requests={resource: "9E"}) for i in range(100)]
    for fact in build.put(*giants):
        book.apply(fact)
    assert (
        min(int(column[0]) for column in (book.arrays.cpu_free, book.arrays.memory_free, book.arrays.ephemeral_free))
        < 0
    )
    for fact in build.gone(*giants):
        book.apply(fact)
    after = (book.arrays.cpu_free, book.arrays.memory_free, book.arrays.ephemeral_free)
    assert [int(column[0]) for column in after] == [int(column[0]) for column in before]


def test_demand_is_cut_where_sums_of_it_still_fit() -> None:
    assert demand_of(build.pod(requests={"cpu": "9E"})).cpu_milli == MOST
    assert MOST * 10_000 < 2**63


def test_a_negative_request_counts_as_none() -> None:
    """The API server refuses it; in the book it would be room that no node has."""
    demand = demand_of(build.pod(requests={"cpu": -(2**63) - 1, "memory": "-1Gi", "example.com/x": "-1"}))
    assert (demand.cpu_milli, demand.memory_bytes, demand.extended) == (0, 0, ())


@pytest.mark.parametrize("amount", ["-5", "many", "1e999999999", "-9E"])
def test_a_node_with_an_invalid_offer_offers_nothing(amount: str) -> None:
    node = build.node("n")
    odd = msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, allocatable=node.status.allocatable | {"cpu": amount})
    )
    assert isinstance(odd, Node)
    book = Book()
    for fact in build.put(odd):
        book.apply(fact)
    assert book.nodes["n"].cpu_total == 0
    assert book.nodes["n"].memory_total == 256 * 2**30
