"""Which nodes are in one class, and for how long that is remembered."""

from __future__ import annotations

import msgspec
import pytest

from services.placement.engine.node_classes import NodeClasses
from shared.book.book import Book
from shared.contracts.facts import Put
from shared.model.gpu import Inventory
from tests.support import build


def test_equivalence_classes_without_a_node_are_dropped_and_never_reused_for_another() -> None:
    book = Book()
    for name in ("a", "b", "c"):
        book.apply(Put(object=build.node(name, labels={"checked-at": "0"})))
    classes = NodeClasses(book)
    first = classes.by_row()[[book.nodes[name].row for name in "abc"]].tolist()
    assert len(set(first)) == 1
    given = set(first)
    for time in range(1, 100):
        book.apply(Put(object=build.node("a", labels={"checked-at": str(time)})))
        a, b, c = classes.by_row()[[book.nodes[name].row for name in "abc"]].tolist()
        assert b == c == first[0]
        assert a not in given
        given.add(a)
        assert len(classes._numbers) <= 2 * len(book.nodes)


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("dra", True, False),
        ("simulated", True, False),
        ("driver_version", "615.1", False),
        ("strategies", ("exclusive",), False),
        ("boot_id", "another", True),
        ("checkpoint_id", "another", True),
        ("generation", 7, True),
    ],
)
def test_nodes_of_one_class_agree_in_all_that_filters_read(field: str, value: object, same: bool) -> None:
    """Else the verdict on one node would hold for another that differs."""
    book = Book()
    for name in ("a", "b"):
        book.apply(Put(object=build.node(name)))
    book.put_inventory(build.inventory("a"))
    book.put_inventory(msgspec.structs.replace(build.inventory("b"), **{field: value}))
    a, b = NodeClasses(book).by_row()[[book.nodes[name].row for name in "ab"]].tolist()
    assert field in Inventory.__struct_fields__
    assert (a == b) == same
