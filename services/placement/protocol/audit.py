"""What is booked on GPUs in total, and whether it is more than there is: all grants added up, independently of the
book's own running sums; and other counts over all pods."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import msgspec

from shared.book.book import Book

_PART = 20
"""No new sum is made for this many times as long as the last one took: with 100,000 grants one takes a second, and
metrics ask each few seconds."""
_MOST_S = 60.0
"""The process may have been stopped meanwhile, as a sleeping machine's are."""


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    memory_mib: int
    compute_milli: int
    overbooked: tuple[str, ...]
    """GPUs of which more is booked than there is, as node/uuid."""
    pods_bound: int
    """Kerf's pods that are on a node and have not ended."""
    pods_gated: int
    """Kerf's pods with scheduling gates."""


class Audit:
    """`stopwatch` returns seconds."""

    def __init__(self, book: Book, stopwatch: Callable[[], float]) -> None:
        self._book, self._stopwatch = book, stopwatch
        self._last: Sums | None = None
        self._again_at = 0.0

    @property
    def overbooked(self) -> tuple[str, ...]:
        """As of the last sums."""
        return () if self._last is None else self._last.overbooked

    def sums(self, unsynced: Callable[[], Container[str]]) -> Sums:
        """`unsynced`: the nodes that have not yet said which grants they released. On a large cluster the sums may be
        some seconds old."""
        began = self._stopwatch()
        if self._last is not None and began < self._again_at:
            return self._last
        memory_mib = compute_milli = 0
        for held in self._book.grants.values():
            # A reserved share may still be in use; it counts as allocated when that pod has released it.
            for container in () if held.phase == "reserved" else held.grant.containers.values():
                memory_mib += sum(s.memory_mib for s in container.gpus)
                compute_milli += sum(s.compute_milli for s in container.gpus)
        ours = [state for state in self._book.pods.values() if state.ours]
        self._last = Sums(
            memory_mib=memory_mib,
            compute_milli=compute_milli,
            overbooked=tuple(self._book.overbooked(unsynced())),
            pods_bound=sum(1 for state in ours if state.pod.spec.node_name and not state.ended),
            pods_gated=sum(1 for state in ours if state.pod.spec.scheduling_gates),
        )
        ended = self._stopwatch()
        self._again_at = ended + min(_PART * (ended - began), _MOST_S)
        return self._last

    def grants_on(self, gpus: Iterable[str]) -> dict[str, list[str]]:
        """What is booked on these GPUs, each node/uuid, in words for the log: phase, grant, pod and amounts."""
        found: dict[str, list[str]] = {gpu: [] for gpu in gpus}
        for held in self._book.grants.values():
            for share in (share for container in held.grant.containers.values() for share in container.gpus):
                if (told := found.get(f"{share.node}/{share.uuid}")) is not None:
                    amounts = f"{share.memory_mib} MiB, {share.compute_milli} milli"
                    told.append(f"{held.phase} {held.grant_id} of {held.namespace}/{held.name}: {amounts}")
        return found
