"""Finds memory that bypasses the interposer: compares NVML's figure of a pod's memory with the control blocks'. Pure.

A static binary, a process that removed what loads the library, a graphics API, a raw ioctl, forged counters: each of
them holds memory that the driver knows of and the control block does not, or more memory than the grant allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent.strategies.slices import Key

MIN_SAMPLES = 2
"""Consecutive samples before an escape is reported. The control block is read shortly before NVML, and the pod may
allocate in between."""


class PodMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's memory on one GPU: as NVML reports it, as its control blocks count it, and as it was granted."""

    uid: str
    uuid: str
    containers: tuple[Key, ...]
    seen_mib: int
    counted_mib: int
    granted_mib: int


class Escape(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's memory on one GPU that is not allowed or not counted. At least one of the two amounts is above 0.

    `over_mib` is beyond the grant. `hidden_mib` is beyond what the control blocks count.
    """

    held: PodMemory
    hidden_mib: int
    over_mib: int

    @property
    def sentence(self) -> str:
        held = self.held
        return (
            f"pod {held.uid} holds {held.seen_mib} MiB on GPU {held.uuid} according to NVML; the interposer counted "
            f"{held.counted_mib} MiB, {held.granted_mib} MiB are granted"
        )


class EscapeDetector:
    def __init__(self, slack_mib: int) -> None:
        """`slack_mib`: memory of contexts that no control block counts."""
        self._slack_mib = slack_mib
        self._times: dict[tuple[str, str], int] = {}

    def update(self, held: Iterable[PodMemory]) -> tuple[Escape, ...]:
        """Records one sample. Returns the escapes that were seen in enough consecutive samples."""
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
    """Sums up memory by pod and GPU.

    `seen_mib` is NVML's figure by (pod, GPU). `control_blocks` holds key, GPU, counted MiB and granted MiB. Pods
    without a known control block are omitted.
    """
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
