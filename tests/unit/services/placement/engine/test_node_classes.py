"""Which nodes look alike, and for how long that is remembered."""

from __future__ import annotations

from services.placement.engine.node_classes import NodeClasses
from shared.book.book import Book
from shared.contracts.facts import Put
from tests.support import build


def test_equivalence_classes_without_a_node_are_dropped_and_never_reused_for_another() -> None:
    book = Book()
    for name in ("a", "b", "c"):
        book.apply(Put(object=build.node(name, labels={"checked-at": "0"})))
    looks = NodeClasses(book)
    first = looks.by_row()[[book.nodes[name].row for name in "abc"]].tolist()
    assert len(set(first)) == 1
    given = set(first)
    for time in range(1, 100):
        book.apply(Put(object=build.node("a", labels={"checked-at": str(time)})))
        a, b, c = looks.by_row()[[book.nodes[name].row for name in "abc"]].tolist()
        assert b == c == first[0]
        assert a not in given
        given.add(a)
        assert len(looks._numbers) <= 2 * len(book.nodes)
