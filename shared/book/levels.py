"""Topology levels by node label: which value a node has, and where a gang that must be in one domain has begun."""

from __future__ import annotations

from shared.book.book import Book
from shared.book.gangs import GangState


def value_on(book: Book, node: str, label: str) -> str:
    """The node's value of a label; empty where it has none, or there is no such node."""
    known = book.nodes.get(node)
    return "" if known is None or known.object is None else known.object.metadata.labels.get(label, "")


def begun_in(gang: GangState, book: Book) -> frozenset[str]:
    """Values of the required level's label where members of the gang have places, or a plan keeps some: the others go
    there too. Empty for a gang that has not begun, or requires no level; several only where labels have been changed
    since."""
    if not gang.required:
        return frozenset()
    nodes = {book.pods[uid].charged for uid in gang.placed} | set(gang.kept.values())
    return frozenset(value_on(book, node, gang.required) for node in nodes) - {""}


def topology_violation(gang: GangState, nodes: frozenset[str], book: Book) -> str:
    """Why places on these nodes are none for this gang; empty where they are."""
    if not gang.required:
        return ""
    values, begun = {value_on(book, node, gang.required) for node in nodes}, begun_in(gang, book)
    if begun and not values <= begun:
        return f"gang {gang.name} has begun in {gang.required}={'|'.join(sorted(begun))}"
    return f"gang {gang.name} must be in one {gang.required}" if (len(values) > 1 and not begun) or "" in values else ""
