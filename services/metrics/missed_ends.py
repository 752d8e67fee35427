"""Ends of grants of which no event has come: the stream was away for longer than events are repeated, or had dropped
them before they were read. Without this their slices would be counted for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class MissedEnds:
    """What placement's book does not have at two looks in a row has ended by the first of them. An end whose event is
    only late is counted with its own, earlier time when it comes."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        """By grant: the look at which it was over first."""

    def look(self, over: Iterable[str], now_s: float) -> dict[str, float]:
        """`over`: of the grants with slices that are counted, those that placement does not have. Returns which ended,
        and when, in seconds since 1970."""
        before, self._first = self._first, {}
        ended = {}
        for grant_id in over:
            if grant_id in before:
                ended[grant_id] = before[grant_id]
            else:
                self._first[grant_id] = now_s
        return ended


def parts(grant_ids: list[str], most: int) -> Iterator[tuple[str, ...]]:
    """Questions that fit into messages."""
    for start in range(0, len(grant_ids), most):
        yield tuple(grant_ids[start : start + most])
