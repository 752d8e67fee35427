"""Ends pods that are beyond their slices: SIGKILL for their processes, and eviction, or they would be started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from services.node_agent.processes.freezing import Freezer
from services.node_agent.processes.killing import PodKiller
from services.node_agent.processes.owner import Owner
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies import host_memory
from services.node_agent.strategies.policing import EvictionBackoff
from shared.contracts.commands import Evict
from shared.contracts.node_commands import LiveSlice


class PodEnder:
    def __init__(
        self,
        log: Any,
        live: Callable[[], tuple[LiveSlice, ...]],
        *,
        cgroups: PodCgroups,
        owner: Callable[[int], Owner | None],
        evict: Callable[[tuple[Evict, ...]], None],
        clock: Callable[[], int],
    ) -> None:
        """`owner` returns the pod of a process. `evict` requests evictions. `clock` returns nanoseconds of
        CLOCK_MONOTONIC."""
        self._log, self._live, self._evict_pods, self._clock = log, live, evict, clock
        self._cgroups, self.freezer = cgroups, Freezer(cgroups)
        self._killer = PodKiller(self._pids_of, owner)
        self._backoff = EvictionBackoff()
        self._kills: dict[str, asyncio.Task[None]] = {}
        """The pods whose processes are being ended."""
        self._killed: dict[str, str] = {}
        """The pods whose processes were ended, and why: their eviction is asked for until they are gone."""
        self._seen: dict[str, Mapping[tuple[str, str], frozenset[int]]] = {}

    def saw(self, source: str, pids: Mapping[tuple[str, str], frozenset[int]]) -> None:
        """Notes the processes by pod and GPU that the last sample of this source has found."""
        self._seen[source] = pids

    def evict(self, why: Mapping[str, str]) -> None:
        """Asks for the eviction of these pods, by UID, and of those that were killed: each as often as its back-off
        allows."""
        now_s = self._clock() / 1e9
        live = {slice_.uid: slice_ for slice_ in self._live()}
        self._killed = {uid: sentence for uid, sentence in self._killed.items() if uid in live}
        self._backoff.keep_only(live)
        for uid, sentence in {**why, **self._killed}.items():
            if uid in live and self._backoff.due(uid, now_s):
                pod = live[uid]
                self._evict_pods((Evict(uid=uid, namespace=pod.namespace, name=pod.name, reason=sentence),))

    def kill(self, why: Mapping[str, str], advice: str = "") -> None:
        """Ends the processes of these pods, by UID, and asks for their eviction, with this advice for their owners. A
        frozen pod is thawed as soon as its processes have the signal."""
        self._kills = {uid: task for uid, task in self._kills.items() if not task.done()}
        for uid, sentence in why.items():
            if uid not in self._kills:
                self._kills[uid] = asyncio.create_task(self._kill(uid, sentence))
            self._killed[uid] = "; ".join(filter(None, (sentence, "its processes were ended with SIGKILL", advice)))
        self.evict({})

    def thaw(self, uid: str) -> None:
        try:
            self.freezer.thaw(uid)
        except OSError as error:
            self._log.error("pod_not_thawed", pod=uid, error=str(error), advice="delete the pod, or restart the agent")

    async def _kill(self, uid: str, sentence: str) -> None:
        try:
            killed, all_ended = await self._killer.kill(uid, lambda: self.thaw(uid))
        except OSError as error:
            self._log.error("pod_not_killed", pod=uid, error=str(error))
            self.thaw(uid)
            return
        if killed:
            self._log.warning("pod_killed", what=sentence, processes=len(killed), all_ended=all_ended)

    def _pids_of(self, uid: str) -> frozenset[int]:
        """Returns the pod's processes: those in its cgroups, if they can be read, and those that NVML has seen."""
        pod = self._cgroups.path(uid)
        groups: Iterable[tuple[int, ...]] = ()
        try:
            groups = () if pod is None else host_memory.processes(pod).values()
        except host_memory.HostMemoryUnknown as error:
            self._log.warning(
                "pod_processes_unknown", pod=uid, error=str(error), effect="only those that NVML sees are ended"
            )
        seen = (pids for sample in self._seen.values() for (of, _), pids in sample.items() if of == uid)
        return frozenset().union(*groups, *seen)
