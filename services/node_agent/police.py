"""Keeps the promise `policed`: a pod that exceeds its slice by whatever way is frozen and ended within seconds.

It samples the GPUs with policed slices more often than the use of all GPUs is sampled. `strategies/policing.py` judges
each sample. What NVML sees beyond the control blocks' count lowers the pod's own limit, so that a program that hides
memory without knowing it, such as a library's code, does not exceed its grant.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.devices.usage import Process
from services.node_agent.pod_ender import PodEnder
from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.policing import Actions, Excess, Suspect, judge
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key
from services.node_agent.strategies.surcharges import Surcharger
from shared.bus.tasks import end
from shared.contracts.node_commands import LiveSlice
from shared.model import names
from shared.model.strategies import POLICED
from shared.model.units import MIB
from shared.service import Context

ADVICE = f"request by {names.RESOURCE_GPU_MEMORY} all that NVML shows of the pod, with contexts and code of libraries"
_RANDOM = secrets.SystemRandom()


class Police:
    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        registry: SliceRegistry,
        devices: DeviceMonitor,
        surcharger: Surcharger,
        ender: PodEnder,
        clock: Callable[[], int],
    ) -> None:
        """`clock` returns nanoseconds of CLOCK_MONOTONIC."""
        self._ctx, self._agent, self._registry, self._devices = ctx, agent, registry, devices
        self._every_s, self._slack_mib = config.police_s, config.police_slack_mib
        self._surcharger, self._ender, self._clock = surcharger, ender, clock
        self._task: asyncio.Task[None] | None = None
        self._suspects: dict[str, Suspect] = {}
        self._excesses: tuple[Excess, ...] = ()
        self._silent: frozenset[str] = frozenset()
        self._unmeasured: frozenset[str] = frozenset()
        self._actions = ctx.metrics.counter(
            "kerf_agent_police_actions_total", "What was done about pods beyond their policed slices.", ("action",)
        )
        ctx.metrics.observe_by(
            "kerf_agent_pods_frozen",
            "Pods beyond their policed slices that are frozen until the next sample.",
            lambda: float(sum(suspect.frozen_s is not None for suspect in self._suspects.values())),
        )
        ctx.metrics.observe_by(
            "kerf_agent_slice_policed_excess_bytes",
            "GPU memory of a pod beyond its policed slices and the slack.",
            self._excess_bytes,
            labels=("gpu", "namespace", "pod"),
        )

    def thaw(self) -> None:
        """Thaws all pods, also those that an earlier agent has left frozen."""
        thawed, failed = self._ender.freezer.thaw_all()
        for uid, error in failed.items():
            self._ctx.log.error("pod_not_thawed", pod=uid, error=str(error), advice="delete the pod")
        if thawed:
            self._ctx.log.warning("pods_thawed", pods=thawed, why="an agent has ended while they were frozen")

    def start(self) -> None:
        self._task = self._ctx.spawn(self._run(), name="police")

    async def close(self) -> None:
        """Samples no more, and thaws what is frozen: the next agent begins anew."""
        if self._task is not None:
            await end(self._task)
        self.thaw()

    async def sample(self) -> None:
        """Compares what NVML reports now with the grants, and acts."""
        slices = self._agent.live()
        policed = frozenset(one.uid for one in slices if one.strategy in POLICED)
        live = [one for one in slices if one.uid in policed]
        self._ender.evict({})
        if not live and not self._suspects:
            return
        # Also where a pod was seen beyond its grant: the policed slice that was there may be gone.
        gpus = frozenset(uuid for one in live if one.strategy in POLICED for uuid in one.gpus).union(
            *(suspect.gpus for suspect in self._suspects.values())
        )
        before = self._counted_mib()
        found = await self._devices.running(gpus) if gpus else {}
        after = self._counted_mib()
        counted = {key: _larger(before.get(key, {}), mib) for key, mib in after.items()}
        held = self._held(live, found, counted)
        unreadable = {one.uid for one in live if one.strategy in POLICED and (one.uid, one.container) not in counted}
        self._surcharger.update_policed(
            (one for one in held if one.uid not in unreadable),
            pods=policed,
            answering=found.keys(),
            unreadable=unreadable,
        )
        self._registry.set_surcharges(self._surcharger.of(self._registry.slices))
        self._log_silence(gpus - found.keys())
        self._suspects, actions = judge(
            self._suspects,
            held,
            pods=policed,
            answering=found.keys(),
            slack_mib=self._slack_mib,
            now_s=self._clock() / 1e9,
        )
        self._act(actions)

    async def _run(self) -> None:
        while True:
            # At times that no container can foresee: one that held memory only in between would never be seen.
            await asyncio.sleep(self._every_s * _RANDOM.uniform(0.5, 1.0))
            await self.sample()

    def _counted_mib(self) -> dict[Key, dict[str, int]]:
        """Returns what the policed containers have counted, by GPU, without those whose counters cannot be read."""
        counted: dict[Key, dict[str, int]] = {}
        for slice_ in self._registry.slices:
            if slice_.strategy not in POLICED:
                continue
            try:
                reading = self._registry.read(slice_.key)
            except OSError:
                continue  # the observer logs it
            if reading is not None and reading.is_known:
                counted[slice_.key] = {gpu.uuid: -(-gpu.account_bytes // MIB) for gpu in reading.gpus}
        return counted

    def _held(
        self,
        live: list[LiveSlice],
        found: Mapping[str, tuple[Process, ...]],
        counted_mib: Mapping[Key, Mapping[str, int]],
    ) -> list[PodMemory]:
        """Returns the memory of these pods on the GPUs, also on GPUs on which they have no slice."""
        pids: dict[tuple[str, str], frozenset[int]] = {}
        seen_mib: dict[tuple[str, str], int] = {}
        unmeasured: set[str] = set()
        uids = {one.uid for one in live}
        for uuid, processes in found.items():
            for process in processes:
                of = self._devices.owner(process.pid)
                if of is None or of.pod_uid not in uids:
                    continue
                key = (of.pod_uid, uuid)
                pids[key] = pids.get(key, frozenset()) | {process.pid}
                seen_mib[key] = seen_mib.get(key, 0) + (process.mib or 0)
                if process.mib is None:
                    unmeasured.add(of.pod_uid)
        self._ender.saw("police", pids)
        self._log_unmeasured(frozenset(unmeasured))
        return [
            PodMemory(
                uid=uid,
                uuid=uuid,
                containers=tuple((uid, one.container) for one in live if one.uid == uid and uuid in one.gpus),
                seen_mib=mib,
                counted_mib=sum(of.get(uuid, 0) for (pod, _), of in counted_mib.items() if pod == uid),
                granted_mib=sum(self._registry.allowed_mib(one, uuid) for one in live if one.uid == uid),
                processes=len(pids[uid, uuid]),
            )
            for (uid, uuid), mib in sorted(seen_mib.items())
        ]

    def _act(self, actions: Actions) -> None:
        self._excesses = actions.excesses
        ended = {excess.held.uid for excess in actions.end}
        for excess in actions.excesses:
            if excess.held.uid not in ended:
                self._ctx.log.warning("policed_slice_exceeded", what=excess.sentence, over_mib=excess.over_mib)
                self._actions.add(1, "reported")
        for excess in actions.freeze:
            self._freeze(excess)
        for uid in actions.thaw:
            self._ender.thaw(uid)
            self._ctx.log.info("pod_thawed", pod=uid, why="the next sample does not show it beyond its slice")
            self._actions.add(1, "thawed")
        if actions.end:
            self._actions.add(len(actions.end), "ended")
            self._ender.kill({excess.held.uid: excess.sentence for excess in actions.end}, ADVICE)

    def _freeze(self, excess: Excess) -> None:
        uid, effect = excess.held.uid, "it is ended all the same if the next sample shows it beyond its slice"
        try:
            frozen = self._ender.freezer.freeze(uid)
        except OSError as error:
            self._ctx.log.error("pod_not_frozen", pod=uid, error=str(error), effect=effect)
            return
        if not frozen:
            self._ctx.log.warning("pod_not_frozen", pod=uid, error="it has no cgroup with a freezer", effect=effect)
            return
        self._ctx.log.warning("pod_frozen", what=excess.sentence)
        self._actions.add(1, "frozen")

    def _log_silence(self, silent: frozenset[str]) -> None:
        if silent - self._silent:
            self._ctx.log.warning(
                "gpus_not_policed",
                gpus=sorted(silent - self._silent),
                why="NVML does not answer for them",
                effect="a pod that exceeds its slice there is found when it does",
            )
        self._silent = silent

    def _log_unmeasured(self, unmeasured: frozenset[str]) -> None:
        if unmeasured - self._unmeasured:
            self._ctx.log.warning(
                "pods_not_policed",
                pods=sorted(unmeasured - self._unmeasured),
                why="NVML does not report the memory of a process of theirs",
                effect="memory of that process beyond the slice is not found",
            )
        self._unmeasured = unmeasured

    def _excess_bytes(self) -> dict[tuple[str, ...], float]:
        pods = {one.uid: (one.namespace, one.name) for one in self._agent.live()}
        return {
            (excess.held.uuid, *pods[excess.held.uid]): float(excess.over_mib * MIB)
            for excess in self._excesses
            if excess.held.uid in pods
        }


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Of each GPU the larger figure: the container may free memory while NVML answers."""
    return {uuid: max(one.get(uuid, 0), other.get(uuid, 0)) for uuid in one.keys() | other.keys()}
