"""Tracks the nodes whose pods or grants may have changed, so that a round looks at these and not at all nodes."""

from __future__ import annotations

from collections.abc import Iterable

from shared.book.book import Book
from shared.book.states import PodState


def nodes_of(state: PodState, book: Book) -> tuple[str, ...]:
    """Returns the nodes that a pod uses: its own, and that of its GPUs."""
    held = book.grants.get(state.grant_id)
    return (state.charged, *(() if held is None else held.nodes))


class ChangedNodes:
    """What has changed since the last call of `take`. It may name nodes of which nothing has changed."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._cursor = book.arrays.cursor
        """The position up to which the book's changes of capacity were taken."""
        self._noted: set[str] = set()
        self._all = True

    def note(self, names: Iterable[str]) -> None:
        """Records nodes with a pod that is seen in another state: its capacity may be the same."""
        self._noted.update(names)

    def note_all(self) -> None:
        self._all = True

    def take(self) -> set[str] | None:
        """Returns the names of the changed nodes, also of some that are gone; None if any node may have changed."""
        arrays = self._book.arrays
        rows, self._cursor = arrays.since(self._cursor), arrays.cursor
        noted, self._noted = self._noted, set()
        everything, self._all = self._all or rows is None, False
        return None if everything or rows is None else noted.union(self._book.row_names[row] for row in rows)
