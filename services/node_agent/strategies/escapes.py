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
ACT_SAMPLES = 6
"""Consecutive samples before a pod is locked, evicted or killed for an escape: half a minute."""
MAX_PROCESSES = 16
"""The slack is for so many processes of a pod on a GPU at most, so that a pod gets no more by starting processes."""
MIN_PODS, KEPT_PODS = 5, 100
"""The slack is learned from the last so many pods, if there are enough."""
MIN_SLACK_MIB = 256
"""The learned slack of a process is never lower: what the driver itself takes varies."""


class PodMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's memory on one GPU: as NVML reports it, as its control blocks count it, and as it was granted."""

    uid: str
    uuid: str
    containers: tuple[Key, ...]
    seen_mib: int
    counted_mib: int
    granted_mib: int
    processes: int = 1
    """Its processes on the GPU, by NVML."""
    is_hidden: bool = False
    """The pod could open the GPU and has no part of it: an honest process has nothing there."""

    @property
    def slack_processes(self) -> int:
        """The number of processes for which there is a slack."""
        return max(1, min(self.processes, MAX_PROCESSES))


class Escape(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's memory on one GPU that is not allowed or not counted. At least one of the two amounts is above 0.

    `over_mib` is beyond the grant. `hidden_mib` is beyond what the control blocks count.
    """

    held: PodMemory
    hidden_mib: int
    over_mib: int
    slack_mib: int = 0
    """What is tolerated for all its processes together."""
    is_proven: bool = False
    """It was seen often enough, and is large enough, to act on it."""

    @property
    def sentence(self) -> str:
        held = self.held
        return (
            f"pod {held.uid} holds {held.seen_mib} MiB on GPU {held.uuid} according to NVML; the interposer counted "
            f"{held.counted_mib} MiB, {held.granted_mib} MiB are granted, and {self.slack_mib} MiB for its "
            f"{held.processes} {'process' if held.processes == 1 else 'processes'} are tolerated"
        )


class HiddenMemory:
    """Learns how much memory of an honest process no control block counts: code of libraries, local memory.

    The figure is a quarter more than what nine tenths of the pods hide for each process, so one pod that hides more
    does not raise it, and it is never more than the setting, however many do.
    """

    def __init__(self, max_mib: int) -> None:
        """`max_mib`: the slack of a process until it is learned, and the maximum afterwards."""
        self._max_mib = max_mib
        self._by_pod: dict[str, int] = {}

    @property
    def per_process_mib(self) -> int:
        if len(self._by_pod) < MIN_PODS:
            return self._max_mib
        sizes = sorted(self._by_pod.values())
        usual = sizes[-(-len(sizes) * 9 // 10) - 1]
        return min(self._max_mib, max(MIN_SLACK_MIB, usual * 5 // 4))

    def update(self, held: Iterable[PodMemory]) -> None:
        """Records one sample. A pod whose control blocks count nothing bypasses them, and teaches nothing."""
        for one in held:
            if one.counted_mib:
                hidden = max(0, one.seen_mib - one.counted_mib) // one.slack_processes
                self._by_pod[one.uid] = max(hidden, self._by_pod.pop(one.uid, 0))
        for uid in list(self._by_pod)[:-KEPT_PODS]:
            del self._by_pod[uid]


class EscapeDetector:
    def __init__(self, slack_mib: int) -> None:
        """`slack_mib`: memory of one process that no control block counts. A pod is reported beyond what was learned,
        which is less, and acted upon beyond this."""
        self._slack_mib = slack_mib
        self.hidden = HiddenMemory(slack_mib)
        self._times: dict[tuple[str, str], int] = {}
        self._act_times: dict[tuple[str, str], int] = {}

    def update(self, held: Iterable[PodMemory]) -> tuple[Escape, ...]:
        """Records one sample. Returns the escapes that were seen in enough consecutive samples."""
        seen = list(held)
        self.hidden.update(seen)
        found = _escapes(seen, self.hidden.per_process_mib)
        self._times = {key: self._times.get(key, 0) + 1 for key in found}
        self._act_times = {key: self._act_times.get(key, 0) + 1 for key in _escapes(seen, self._slack_mib)}
        return tuple(
            msgspec.structs.replace(escape, is_proven=self._act_times.get(key, 0) >= ACT_SAMPLES)
            for key, escape in sorted(found.items())
            if self._times[key] >= MIN_SAMPLES
        )


def _escapes(seen: Iterable[PodMemory], slack_mib: int) -> dict[tuple[str, str], Escape]:
    """Returns what is beyond a slack for each process, by pod and GPU."""
    found = {}
    for held in seen:
        slack = 0 if held.is_hidden else slack_mib * held.slack_processes
        hidden = max(0, held.seen_mib - held.counted_mib - slack)
        over = max(0, held.seen_mib - held.granted_mib - slack)
        if hidden or over:
            found[held.uid, held.uuid] = Escape(held=held, hidden_mib=hidden, over_mib=over, slack_mib=slack)
    return found


def pod_memory(
    seen_mib: Mapping[tuple[str, str], int],
    control_blocks: Iterable[tuple[Key, str, int, int]],
    processes: Mapping[tuple[str, str], int] = {},
) -> list[PodMemory]:
    """Sums up memory by pod and GPU.

    `seen_mib` is NVML's figure by (pod, GPU), `processes` the number of processes. `control_blocks` holds key, GPU,
    counted MiB and granted MiB. Pods without a known control block are omitted.
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
            processes=processes.get((uid, uuid), 1),
            is_hidden=not any(granted for _, _, granted in group),
        )
        for (uid, uuid), group in sorted(grouped.items())
        if (uid, uuid) in seen_mib
    ]
