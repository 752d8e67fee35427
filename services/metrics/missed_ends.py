"""Finds grants that have ended without an event: the stream was away for longer than events are repeated, or had
dropped the event before it was read. Without this their slices would be counted for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class MissedEnds:
    """A grant that placement's book lacks at two checks in a row ended before the first of them. If its event is only
    late, the event's own time is counted when it arrives: always that of its node, of placement's the earlier one."""

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
