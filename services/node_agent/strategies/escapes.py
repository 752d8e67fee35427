"""What gets past the interposer: NVML's word on a pod's memory against the pages'. Pure.

A static binary, a process that unset what loads the library, a graphics API, a raw ioctl, counters that were forged: all of them
hold memory that the driver knows of and the page does not, or more of it than was granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent.strategies.slices import Key

MIN_SAMPLES = 2
"""Samples in a row: the page is read a moment before NVML, and an allocation may come between."""


class PodMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's memory on one GPU: what NVML sees, what its pages admit, what it was granted."""

    uid: str
    uuid: str
    containers: tuple[Key, ...]
    seen_mib: int
    counted_mib: int
    granted_mib: int


class Escape(msgspec.Struct, frozen=True, kw_only=True):
    """`over_mib`: beyond the grant. `hidden_mib`: beyond what the pages admit. One of them is above 0."""

    held: PodMemory
    hidden_mib: int
    over_mib: int

    @property
    def sentence(self) -> str:
        held = self.held
        return (
            f"pod {held.uid} holds {held.seen_mib} MiB of GPU {held.uuid} by NVML; {held.counted_mib} MiB of it passed the interposer, "
            f"{held.granted_mib} MiB are granted"
        )


class EscapeDetector:
    def __init__(self, slack_mib: int) -> None:
        """`slack_mib`: what contexts take that no page counts."""
        self._slack_mib = slack_mib
        self._times: dict[tuple[str, str], int] = {}

    def update(self, held: Iterable[PodMemory]) -> tuple[Escape, ...]:
        """Those that have been seen often enough."""
        found = {(h.uid, h.uuid): escape for h in held if (escape := self._escape(h)) is not None}
        self._times = {key: self._times.get(key, 0) + 1 for key in found}
        return tuple(escape for key, escape in sorted(found.items()) if self._times[key] >= MIN_SAMPLES)

    def _escape(self, held: PodMemory) -> Escape | None:
        hidden = max(0, held.seen_mib - held.counted_mib - self._slack_mib)
        over = max(0, held.seen_mib - held.granted_mib - self._slack_mib)
        return Escape(held=held, hidden_mib=hidden, over_mib=over) if hidden or over else None


def pod_memory(
    seen_mib: Mapping[tuple[str, str], int], control_blocks: Iterable[tuple[Key, str, int, int]]
) -> list[PodMemory]:
    """`seen_mib` by (pod, GPU); `control_blocks`: key, GPU, counted and granted MiB. Pods of which a page is not known are left out."""
    grouped: dict[tuple[str, str], list[tuple[Key, int, int]]] = {}
    for key, uuid, counted, granted in control_blocks:
        grouped.setdefault((key[0], uuid), []).append((key, counted, granted))
    return [
        PodMemory(
            uid=uid,
            uuid=uuid,
            containers=tuple(key for key, _, _ in group),
            seen_mib=seen_mib[uid, uuid],
            counted_mib=sum(counted for _, counted, _ in group),
            granted_mib=sum(granted for _, _, granted in group),
        )
        for (uid, uuid), group in sorted(grouped.items())
        if (uid, uuid) in seen_mib
    ]
