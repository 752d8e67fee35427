"""Measures what slices use, finds processes that bypass their slices or use too much, and acts on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.devices.usage import GpuProcesses
from services.node_agent.idle import Kernels
from services.node_agent.pod_ender import PodEnder
from services.node_agent.strategies.attribution import attribute_by_gpu, container_of, control_blocks_of
from services.node_agent.strategies.base import Driver, Observed
from services.node_agent.strategies.escapes import MAX_PROCESSES, Escape, EscapeDetector, pod_memory
from services.node_agent.strategies.overuse import Overuse, OveruseDetector, ThrottleQuota, pod_usage, update_quotas
from services.node_agent.strategies.slice_metrics import register_metrics
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Slice
from services.node_agent.strategies.surcharges import Surcharger
from services.node_agent.strategies.time_slicing import TimeSlicer
from services.node_agent.worker import Hung, Worker
from shared.contracts.samples import SliceUse
from shared.model.strategies import POLICED, StrategyName
from shared.model.units import MIB
from shared.service import Context

CONTAINER_FILES_S = 1.0
"""Time limit for looking at files in containers, whose file systems may not answer."""


class SliceObserver:
    """Implements devices.meter.Observer."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        registry: SliceRegistry,
        prepared: Mapping[Key, Slice],
        drivers: Mapping[StrategyName, Driver],
        time_slicer: TimeSlicer,
        devices: DeviceMonitor,
        surcharger: Surcharger,
        ender: PodEnder,
        clock: Callable[[], int],
    ) -> None:
        """`prepared`: the slices without a control block. `clock` returns nanoseconds of CLOCK_MONOTONIC."""
        self._ctx, self._config, self._agent = ctx, config, agent
        self._registry, self._prepared, self._drivers, self._time_slicer = registry, prepared, drivers, time_slicer
        self._devices, self._owner, self._ender, self._clock = devices, devices.owner, ender, clock
        self._escape_detector = EscapeDetector(config.escape_slack_mib)
        self._overuse_detector = OveruseDetector(config.escape_slack_milli, config.escape_window_s)
        self._surcharger = surcharger
        self._surcharged: frozenset[tuple[str, str]] = frozenset()
        """The pods that had a surcharge after the last sample, each with the GPU."""
        self._unreadable: frozenset[str] = frozenset()
        """The pods that the last sample could not check, because the counters of a container are unknown."""
        self._counted_before: dict[tuple[Key, str], int] = {}
        """MiB by container and GPU, before NVML was asked."""
        self._damage_before: dict[Key, str] = {}
        """What that reading found damaged, and has begun to repair."""
        self._overused: dict[tuple[str, str], Overuse] = {}
        self._quotas: dict[tuple[str, str], ThrottleQuota] = {}
        self._observed: dict[tuple[Key, str], Observed] = {}
        self._hidden: dict[tuple[str, str], Escape] = {}
        self._container_files = Worker(CONTAINER_FILES_S)
        self._kernels = Kernels()
        self._pids: Mapping[tuple[str, str], frozenset[int]] = {}
        """The processes by pod and GPU in the last sample."""
        register_metrics(
            ctx.metrics,
            agent.live,
            lambda: self._observed,
            lambda: self._hidden,
            lambda: self._overused,
            surcharge_bytes=lambda: self._surcharger.memory_bytes,
        )

    def before_sample(self) -> None:
        """Reads what containers have counted, because they may free it while NVML answers."""
        self._counted_before, self._damage_before = {}, {}
        for slice_ in self._registry.slices:
            try:
                reading = self._registry.read(slice_.key)
            except OSError:
                continue  # `saw` logs it
            if reading is None:
                continue
            self._damage_before[slice_.key] = reading.damage
            for gpu in reading.gpus:
                self._counted_before[slice_.key, gpu.uuid] = -(-gpu.account_bytes // MIB)

    async def saw(self, found: tuple[GpuProcesses, ...]) -> None:
        """Takes one sample of all processes: measures all slices, finds escapes and overuse, and acts on them."""
        self._observed = {}
        self._kernels.saw(found, {slice_.uid for slice_ in self._registry.slices}, self._pod_of)
        control_blocks = []
        not_adopted = {uid for uid, _ in self._registry.not_adopted}
        unreadable = set(not_adopted)
        for slice_ in self._prepared.values():
            self._observed |= {(slice_.key, observed.uuid): observed for observed in self._observe(slice_)}
        for slice_ in self._registry.slices:
            parts = self._observe(slice_)
            if not parts or any(observed.memory_mib is None for observed in parts):
                unreadable.add(slice_.uid)
            for observed in parts:
                self._observed[slice_.key, observed.uuid] = observed
                counted = max(observed.memory_mib or 0, self._counted_before.get((slice_.key, observed.uuid), 0))
                # What was lent to it and is on its way back is no escape.
                granted_mib = observed.granted_mib + self._registry.loan(slice_.key, observed.uuid).held_mib
                control_blocks.append((slice_.key, observed.uuid, counted, granted_mib))
            if slice_.any_gpu:
                mine = {part.uuid for part in slice_.parts}
                control_blocks += [(slice_.key, gpu.uuid, 0, 0) for gpu in found if gpu.uuid not in mine]
        seen, used, self._pids = self._seen(found)
        self._ender.saw("observer", self._pids)
        now_s = self._clock() / 1e9
        counts = {key: len(pids) for key, pids in self._pids.items()}
        if unreadable - self._unreadable:
            self._ctx.log.warning(
                "pods_not_checked",
                pods=sorted(unreadable - self._unreadable),
                why="the counters of a container cannot be read",
                effect="memory that bypasses their slices is not found until they can be",
            )
        self._unreadable = frozenset(unreadable)
        # NVML's figure of a pod is for all of its containers: without the counters of one of them it proves nothing.
        # Memory of policed pods is compared with their grants instead, more often (`police.py`).
        apart = unreadable | self._policed()
        held = [one for one in pod_memory(seen, control_blocks, counts) if one.uid not in apart]
        escapes = self._escape_detector.update(held)
        self._hidden = {(escape.held.uid, escape.held.uuid): escape for escape in escapes}
        # Under MPS the time of the GPU is the server's, and shares are of its multiprocessors.
        shared = [one for one in self._registry.at_limits if one.uid not in not_adopted and not one.concurrent]
        counted_milli = {which: observed.compute_milli for which, observed in self._observed.items()}
        overuses = self._overuse_detector.update(now_s, pod_usage(used, shared, counted_milli))
        self._surcharger.update(
            now_s,
            held,
            overuses,
            busy=self._busy(found),
            answering={gpu.uuid for gpu in found},
            unreadable=unreadable,
        )
        self._registry.set_surcharges(self._surcharger.of(self._registry.slices))
        self._log_surcharges()
        self._overused = {(over.used.uid, over.used.uuid): over for over in overuses}
        self._act(escapes, overuses, await self._attributed(escapes, found))

    def kernels_of(self, uid: str, uuids: tuple[str, ...]) -> bool | None:
        """Returns whether samples since the last question have kernels of the pod on these GPUs; None if they cannot
        tell."""
        return self._kernels.of(uid, uuids, self._pod_of)

    def _pod_of(self, pid: int) -> str | None:
        of = self._owner(pid)
        return None if of is None else of.pod_uid

    def slack_mib(self) -> int:
        """Returns what an honest process may have that no counter has, in MiB."""
        return self._escape_detector.hidden.per_process_mib

    async def memory(self, uid: str) -> dict[str, tuple[int, int]]:
        """Returns what NVML sees of a pod now, by GPU: MiB, and the MiB that an honest pod of as many processes hides.

        GPUs that do not answer are not in it.
        """
        found = await self._devices.processes()
        mib, _, pids = self._seen(found)
        slack_mib = self._escape_detector.hidden.per_process_mib
        if uid in self._policed():
            return {gpu.uuid: (mib.get((uid, gpu.uuid), 0), self._config.police_slack_mib) for gpu in found}
        held = {gpu.uuid: len(pids.get((uid, gpu.uuid), ())) for gpu in found}
        return {
            uuid: (mib.get((uid, uuid), 0), slack_mib * min(processes, MAX_PROCESSES))
            for uuid, processes in held.items()
        }

    def beside(self, uuid: str, use: SliceUse) -> SliceUse:
        mine = {
            key: seen
            for (key, gpu), seen in self._observed.items()
            if gpu == uuid and key[0] == use.uid and use.container in ("", key[1])
        }
        if not mine:
            return use
        strategies = {slice_.key: slice_.strategy for slice_ in (*self._registry.slices, *self._prepared.values())}
        counted = [seen.launches_per_s for seen in mine.values() if seen.launches_per_s is not None]
        waits = [seen.waited_milli for seen in mine.values() if seen.waited_milli is not None]
        lengths = [seen.launch_us for seen in mine.values() if seen.launch_us is not None]
        times = [seen.compute_milli for seen in mine.values() if seen.compute_milli is not None]
        escape, over = self._hidden.get((use.uid, uuid)), self._overused.get((use.uid, uuid))
        return msgspec.structs.replace(
            use,
            strategy=strategies.get(next(iter(mine))),
            counted_mib=sum(seen.memory_mib or 0 for seen in mine.values()),
            gpu_milli=sum(times) if times else None,
            refused=sum(seen.refused for seen in mine.values()),
            hidden_mib=0 if escape is None else escape.hidden_mib,
            over_milli=0 if over is None else over.over_milli,
            waited_milli=max(waits, default=None),
            launches_per_s=sum(counted) if counted else None,
            launch_us=max(lengths, default=None),
        )

    def _policed(self) -> frozenset[str]:
        return frozenset(slice_.uid for slice_ in self._registry.slices if slice_.strategy in POLICED)

    def _observe(self, slice_: Slice) -> tuple[Observed, ...]:
        damages = [self._damage_before.get(slice_.key, "")]
        try:
            observed = self._drivers[slice_.strategy].observe(slice_.key)
            damages += [one.damage for one in observed[:1]]
        except OSError as error:
            self._ctx.log.warning("counters_not_read", pod=slice_.uid, container=slice_.container, error=str(error))
            observed = ()
        for damage in sorted(set(damages) - {""}):
            self._ctx.log.warning("counters_damaged", pod=slice_.uid, container=slice_.container, what=damage)
        return observed

    def _seen(
        self, found: tuple[GpuProcesses, ...]
    ) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int], dict[tuple[str, str], frozenset[int]]]:
        """Returns MiB, per mille of the GPU's time, and PIDs by pod and GPU, of all pods that have a control block."""
        ours = {slice_.uid for slice_ in self._registry.slices}
        mib: dict[tuple[str, str], int] = {}
        milli: dict[tuple[str, str], int] = {}
        pids: dict[tuple[str, str], frozenset[int]] = {}
        for gpu in found:
            for process in gpu.processes:
                of = self._owner(process.pid)
                if of is None or of.pod_uid not in ours:
                    continue
                key = (of.pod_uid, gpu.uuid)
                milli[key] = milli.get(key, 0) + (process.sm_milli or 0)
                pids[key] = pids.get(key, frozenset()) | {process.pid}
                if process.mib is not None:
                    mib[key] = mib.get(key, 0) + process.mib
        return mib, milli, pids

    def _busy(self, found: tuple[GpuProcesses, ...]) -> dict[tuple[str, str], int]:
        """Returns the number of processes that used the SMs, by pod and GPU."""
        using = ((self._owner(one.pid), gpu.uuid) for gpu in found for one in gpu.processes if one.sm_milli)
        return Counter((of.pod_uid, uuid) for of, uuid in using if of is not None)

    def _log_surcharges(self) -> None:
        """Logs where surcharges begin and end."""
        memory, forging = self._surcharger.memory_bytes, self._surcharger.forging
        now = forging | memory.keys()
        for uid, uuid in sorted(now ^ self._surcharged):
            if (uid, uuid) not in now:
                self._ctx.log.info("slice_surcharge_ended", pod=uid, gpu=uuid)
                continue
            self._ctx.log.warning(
                "slice_surcharged",
                pod=uid,
                gpu=uuid,
                memory_mib=memory.get((uid, uuid), 0) // MIB,
                forges_gpu_time=(uid, uuid) in forging,
                effect="its memory limit is lowered by as much; if it forges, its processes divide its share",
            )
        self._surcharged = frozenset(now)

    async def _attributed(
        self, escapes: tuple[Escape, ...], found: tuple[GpuProcesses, ...]
    ) -> dict[str, dict[Key, frozenset[int]]]:
        """Returns, by GPU, the containers that bypass their slices, and their processes."""
        if not escapes:
            return {}
        control_blocks = control_blocks_of({one.key: self._registry.folder(one.key) for one in self._registry.slices})
        proc = self._config.host().proc
        pids = {pid for escape in escapes for pid in self._pids.get((escape.held.uid, escape.held.uuid), ())}
        try:
            containers = await self._container_files.call(
                lambda: {pid: container_of(pid, control_blocks, proc) for pid in pids}
            )
        except Hung as error:  # the container's file system does not answer
            self._ctx.log.warning("containers_not_found", reason=str(error), effect="any container of the pod counts")
            containers = {}
        counted = {which: seen.memory_mib or 0 for which, seen in self._observed.items()}
        return attribute_by_gpu((escape.held for escape in escapes), found, counted, self._owner, containers.get)

    def _act(
        self,
        escapes: tuple[Escape, ...],
        overuses: tuple[Overuse, ...],
        attributed: Mapping[str, Mapping[Key, frozenset[int]]],
    ) -> None:
        """Reports all, and acts on those that were seen often enough. Policed pods are ended under every policy."""
        policy, policed = self._config.escapes, self._policed()
        for escape in escapes:
            containers = sorted(container for uid, container in attributed[escape.held.uuid] if uid == escape.held.uid)
            self._ctx.log.warning(
                "slice_escaped", what=escape.sentence, containers=containers, policy=policy, proven=escape.is_proven
            )
        for over in overuses:
            action = "kill" if over.used.uid in policed else policy
            self._ctx.log.warning("slice_escaped", what=over.sentence, policy=action, proven=over.is_proven)
        proven = {(escape.held.uid, escape.held.uuid): escape.sentence for escape in escapes if escape.is_proven}
        overused = [over for over in overuses if over.is_proven and over.used.uid not in policed]
        self._ender.kill({over.used.uid: over.sentence for over in overuses
                          if over.is_proven and over.used.uid in policed})  # fmt: skip
        if policy == "lock":
            self._quotas = update_quotas(self._quotas, overused, self._pids)
            locked = {
                uuid: {key: pids for key, pids in found.items() if (key[0], uuid) in proven}
                for uuid, found in attributed.items()
            }
            self._time_slicer.set_escaped(locked, self._quotas)
            return
        why = {over.used.uid: over.sentence for over in overused} | {uid: text for (uid, _), text in proven.items()}
        if policy == "evict":
            self._ender.evict(why)
        elif policy == "kill":
            self._ender.kill(why)
