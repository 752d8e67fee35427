"""Which pods are idle: they could yield their GPUs to others, and need no turn until they want one again. Pure.

A running pod is idle when for a set time its slices have counted nothing, none of its threads has waited for the GPU,
and NVML has seen no kernel of it. What cannot be read is no proof: such a pod is not idle. A suspended pod that was
idle stays so until one of its threads wants the GPU (`woken`). An agent that starts again knows nothing of what was
before: to it no suspended pod is idle, and each gets its next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from services.node_agent.devices.usage import GpuProcesses

Idle = dict[str, float]
"""Seconds since 1970 by grant ID."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pod that takes turns."""

    grant_id: str
    suspended: bool
    """It is paused or checkpointed, or shall be, or is not whole again."""
    work: object = None
    """What its slices have counted; it differs if they have worked in between. None: unknown."""
    wants: bool = False
    """A thread of it waits for the GPU."""
    kernels: bool | None = None
    """Whether NVML has seen kernels of it since the last time; None: unknown."""


class _Pod(msgspec.Struct):
    still_since: float
    work: object = None
    suspended: bool = False
    was_idle: bool = False
    """When it was suspended."""
    woken_at: float | None = None


class IdlePods:
    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._pods: dict[str, _Pod] = {}
        self.waited_s: list[float] = []
        """Of pods that were woken and run again by the last look: how long they waited."""

    def look(self, seen: Iterable[Seen], now: float) -> tuple[Idle, Idle]:
        """Returns since when pods are idle, and since when others that were idle want the GPU. `now`: since 1970."""
        idle, woken, pods, self.waited_s = Idle(), Idle(), dict[str, _Pod](), list[float]()
        for one in seen:
            pod = pods[one.grant_id] = self._pods.get(one.grant_id) or _Pod(now, one.work, one.suspended)
            if one.suspended:
                self._suspended(one, pod, now)
                if pod.was_idle and pod.woken_at is None:
                    idle[one.grant_id] = pod.still_since
                elif pod.woken_at is not None:
                    woken[one.grant_id] = pod.woken_at
                continue
            if pod.suspended and pod.woken_at is not None:
                self.waited_s.append(max(0.0, now - pod.woken_at))
            moved = pod.suspended or one.wants or one.kernels is not False or one.work is None or one.work != pod.work
            if moved or now < pod.still_since:
                pod.still_since = now
            pod.suspended, pod.was_idle, pod.woken_at, pod.work = False, False, None, one.work
            if now - pod.still_since >= self._after_s:
                idle[one.grant_id] = pod.still_since
        self._pods = pods
        return idle, woken

    def _suspended(self, one: Seen, pod: _Pod, now: float) -> None:
        if not pod.suspended:
            pod.suspended, pod.was_idle = True, now - pod.still_since >= self._after_s
        if pod.was_idle and pod.woken_at is None and one.wants:
            pod.woken_at = now


def kernels_of(
    uid: str, uuids: Iterable[str], found: Iterable[GpuProcesses], pod_of: Callable[[int], str | None]
) -> bool | None:
    """Whether NVML has seen kernels of a pod on its GPUs; None: it cannot tell.

    A process without kernels has no sample. Where no process has one although the GPU was at work, the driver gives
    none at all. `pod_of`: the UID of the pod of a PID.
    """
    by_uuid = {gpu.uuid: gpu for gpu in found}
    for uuid in uuids:
        gpu = by_uuid.get(uuid)
        if gpu is None or gpu.sm_milli is None:
            return None
        at_work = [process for process in gpu.processes if process.sm_milli]
        if any(pod_of(process.pid) == uid for process in at_work):
            return True
        if gpu.sm_milli and not at_work:
            return None
    return False


class Kernels:
    """Keeps which pods have run kernels until somebody asks: samples may come more often than questions."""

    def __init__(self) -> None:
        self._last: tuple[GpuProcesses, ...] = ()
        self._seen: set[tuple[str, str]] = set()
        """By pod UID and GPU, since the last question for it."""

    def saw(self, found: tuple[GpuProcesses, ...], pods: Collection[str], pod_of: Callable[[int], str | None]) -> None:
        """Takes a sample. `pods`: the UIDs of those that are on the node."""
        self._last = found
        self._seen = {one for one in self._seen if one[0] in pods}
        for gpu in found:
            owners = {pod_of(process.pid) for process in gpu.processes if process.sm_milli}
            self._seen |= {(uid, gpu.uuid) for uid in owners if uid is not None and uid in pods}

    def of(self, uid: str, uuids: Iterable[str], pod_of: Callable[[int], str | None]) -> bool | None:
        """Whether the pod has run kernels on these GPUs since the last question for it; None: it cannot be told."""
        mine = {(uid, uuid) for uuid in uuids}
        seen = self._seen & mine
        self._seen -= seen
        return True if seen else kernels_of(uid, [uuid for _, uuid in mine], self._last, pod_of)
