"""Topology levels by node label: which value a node has, and where a gang that must be in one domain has begun."""

from __future__ import annotations

from collections.abc import Mapping

from shared.book.book import Book
from shared.book.gangs import GangState
from shared.model.subgroup import Subgroup


def value_on(book: Book, node: str, label: str) -> str:
    """The node's value of a label; empty where it has none, or there is no such node."""
    known = book.nodes.get(node)
    return "" if known is None or known.object is None else known.object.metadata.labels.get(label, "")


def begun_in(gang: GangState, book: Book, subgroup: Subgroup | None = None) -> frozenset[str]:
    """Values of the required level's label where members of the gang have places, or a plan keeps some: the others go
    there too. Empty for a gang that has not begun, or requires no level; several only where labels have been changed
    since. `subgroup`: of this part of the gang alone."""
    of = gang.tree if subgroup is None else subgroup
    if not of.required:
        return frozenset()
    places = {uid: book.pods[uid].charged for uid in gang.placed} | gang.kept
    return frozenset(value_on(book, node, of.required) for node in _of(gang, of, places).values()) - {""}


def topology_violation(gang: GangState, places: Mapping[str, str], book: Book) -> str:
    """Why these nodes, by pod, are no places for members of this gang; empty where they are."""
    for subgroup in gang.tree.all():
        nodes = _of(gang, subgroup, places).values()
        if not subgroup.required or not nodes:
            continue
        name = f"gang {gang.name}" + (f", subgroup {subgroup.name}," if subgroup.name else "")
        values = {value_on(book, node, subgroup.required) for node in nodes}
        begun = begun_in(gang, book, subgroup)
        if begun and not values <= begun:
            return f"{name} has begun in {subgroup.required}={'|'.join(sorted(begun))}"
        if (len(values) > 1 and not begun) or "" in values:
            return f"{name} must be in one {subgroup.required}"
    return ""


def _of(gang: GangState, subgroup: Subgroup, places: Mapping[str, str]) -> dict[str, str]:
    """Those of the places that are of pods of the subgroup."""
    leaves = {leaf.name for leaf in subgroup.leaves()}
    return {uid: node for uid, node in places.items() if not subgroup.name or gang.leaf(uid) in leaves}
