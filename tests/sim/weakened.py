"""Rules left out of the real code, for tests that show that a world without them is seen."""

from __future__ import annotations

import pytest

from shared.book.book import Book


def free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: capacity is free when the pod is deleted."""
    ended = Book._end

    def frees(self: Book, state: object) -> object:
        changes = ended(self, state)  # type: ignore[arg-type]
        for change in changes:
            self.release(change.grant_id)
        return changes

    monkeypatch.setattr(Book, "_end", frees)
