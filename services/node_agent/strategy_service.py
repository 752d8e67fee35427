"""Wires the strategies: which are offered, what a container gets, and what is measured of each slice while it
exists."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from services.node_agent import messages as m
from services.node_agent.canary.proofs import LIBRARY, ProofManager
from services.node_agent.canary.run import Canary, in_a_namespace
from services.node_agent.cdi import driver_files
from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.usage import GpuProcesses
from services.node_agent.processes.owner import Owner
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.attribution import attribute_by_gpu, container_of, control_blocks_of
from services.node_agent.strategies.base import NodeTools, Observed, Offer
from services.node_agent.strategies.checkpointing import Checkpointer
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.escapes import Escape, EscapeDetector, pod_memory
from services.node_agent.strategies.install import install
from services.node_agent.strategies.locks import LockError, Locks
from services.node_agent.strategies.overuse import Overuse, OveruseDetector, ThrottleQuota, pod_usage, update_quotas
from services.node_agent.strategies.quantum_scheduler import QuantumPolicy
from services.node_agent.strategies.rules import NO_OVERRIDE, Policy
from services.node_agent.strategies.slice_metrics import register_metrics
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Slice, slice_of
from services.node_agent.strategies.suspension import Suspender, override_for
from services.node_agent.strategies.time_slicing import TimeSlicer
from shared.contracts.commands import Evict
from shared.contracts.node_commands import LiveSlice
from shared.contracts.samples import SliceUse
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.strategies import PROVEN_BY_CANARY, StrategyName, registered
from shared.model.units import MIB
from shared.service import Context

HEARTBEAT_S = 0.5
"""A pause or a closed gate in a control block ends 2 s after the agent's last heartbeat."""
EVICT_AGAIN_S = 30.0
PROBE_S = 5.0
"""How often the drivers of plug-ins are asked whether the node can offer their strategies."""


class Strategies:
    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        owner: Callable[[int], Owner | None],
        evict: Callable[[tuple[Evict, ...]], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`owner` returns the pod and container of a process. `evict` requests evictions. `clock` returns nanoseconds
        of CLOCK_MONOTONIC."""
        self._ctx, self._config, self._agent, self._owner, self._evict, self._clock = (
            ctx,
            config,
            agent,
            owner,
            evict,
            clock,
        )
        self._build, run = Path(config.interposer_dir), Path(config.run_dir)
        self._keeper = ProofManager(
            ctx, Path(config.checkpoint_file).with_name("canary.json"), self._build, self._canary
        )
        policy = Policy(
            period_us=config.period_ms * 1000, in_flight_us=config.in_flight_us, least_milli=config.least_milli
        )
        self._registry = SliceRegistry(run / "slices", policy, clock, self._costs)
        library = Path(config.library_dir) / self._keeper.library / LIBRARY
        self._drivers = make_drivers(
            NodeTools(registry=self._registry, library=library, offer=self._keeper.offer, clock=clock)
        )
        self._probed = tuple(
            name
            for name, strategy in registered().items()
            if name in self._drivers and not strategy.always_offered and strategy.proof != "canary"
        )
        """The strategies that are offered while their driver's probe says so."""
        self._found: dict[StrategyName, Offer] = {}
        self._prepared: dict[Key, Slice] = {}
        """The slices without a control block."""
        self._checkpointer = Checkpointer(
            Locks(self._libcuda(), run / "parked.json"), PodCgroups(Path(config.cgroup_dir))
        )
        self._suspender = Suspender(self._registry, self._drivers, agent.live, self._checkpointer)
        self._escape_detector = EscapeDetector(config.escape_slack_mib)
        self._overuse_detector = OveruseDetector(config.escape_slack_milli, config.escape_window_s)
        self._overused: dict[tuple[str, str], Overuse] = {}
        self._quotas: dict[tuple[str, str], ThrottleQuota] = {}
        self._locks = Locks(self._libcuda(), run / "locks.json")
        self._time_slicer = TimeSlicer(
            self._registry, self._locks, QuantumPolicy(least_milli=config.least_milli), clock
        )
        self._observed: dict[tuple[Key, str], Observed] = {}
        self._hidden: dict[tuple[str, str], Escape] = {}
        self._evicted_s: dict[str, float] = {}
        register_metrics(ctx.metrics, agent.live, lambda: self._observed, lambda: self._hidden, lambda: self._overused)

    def offered(self, driver_version: str) -> tuple[StrategyName, ...]:
        """Returns the strategies that this node offers in addition to those of every node."""
        proven = self._keeper.strategies(driver_version) if self._config.enforce == "proven" else ()
        return (*proven, *(name for name, offer in self._found.items() if offer.ok))

    async def start(self, say: Callable[[], Awaitable[None]]) -> None:
        """Takes over the running slices and starts the background tasks. `say` publishes what the node offers now."""
        if self._keeper.library:
            try:
                install(self._build, Path(self._config.library_dir), self._keeper.library)
            except OSError as error:
                self._ctx.log.error(
                    "interposer_not_installed", error=str(error), effect="slices that need it will not start"
                )
        self._adopt()
        self._ctx.on_drain(self._close)
        if self._config.escapes == "lock" or self._locks.has_leftovers():
            await self._undo_locks(self._locks)
        if self._checkpointer.locks.has_leftovers():
            await self._undo_locks(self._checkpointer.locks)
        if self._config.escapes == "lock":
            self._ctx.spawn(self._time_slicer.run(), name="time-slicing")
        if self._config.enforce == "proven":

            async def proven() -> None:
                self._registry.refresh()
                await say()

            self._ctx.spawn(
                self._keeper.keep(lambda: self._agent.inventory, self._agent.occupied, proven), name="canary"
            )
        if self._probed:
            self._ctx.spawn(self._probe(say), name="probes")
        self._ctx.spawn(self._heartbeats(), name="control-blocks")

    def edits(self, order: m.HandOver, grant: Grant | None) -> ContainerEdits:
        """Prepares a container's slice and returns what the container gets from its strategy.

        If it raises OSError or ValueError, the container must not start.
        """
        driver = self._drivers.get(order.share.strategy)
        if driver is None:
            return ContainerEdits()
        slice_ = slice_of(order.uid, order.container, order.share, grant, self._config.node)
        driver.prepare(
            slice_,
            override_for(
                order.suspension, self._registry.override_of(slice_.key), [part.uuid for part in slice_.parts]
            ),
        )
        if order.share.strategy not in PROVEN_BY_CANARY:
            self._prepared[slice_.key] = slice_
        return driver.edits(slice_)

    async def suspend(self, ask: m.SuspendTask) -> m.SuspendResult:
        """Suspends or resumes a pod's slices. Returns whether it succeeded, or why not."""
        done = await self._suspender.suspend(ask)
        action = "resume" if ask.suspension is None else ask.suspension.action
        self._ctx.log.info(
            "slices_not_suspended" if done.reason else "slices_suspended", pod=ask.uid, action=action, why=done.reason
        )
        return done

    def keep_only(self, containers: Iterable[Key]) -> None:
        """Releases the slices of all containers that are not in `containers`: they have ended for good. Raises
        OSError."""
        kept = set(containers)
        for slice_ in self._registry.slices:
            if slice_.key not in kept:
                self._drivers[slice_.strategy].release(slice_.key)
        self._registry.keep_only(kept)
        for key in self._prepared.keys() - kept:
            self._drivers[self._prepared[key].strategy].release(key)
            del self._prepared[key]

    # --- devices.meter.Observer ---------------------------------------------------------------------------------

    async def saw(self, found: tuple[GpuProcesses, ...]) -> None:
        """Takes one sample of all processes: measures all slices, finds escapes and overuse, and acts on them."""
        self._observed = {}
        control_blocks = []
        for slice_ in self._prepared.values():
            self._observed |= {(slice_.key, observed.uuid): observed for observed in self._observe(slice_)}
        for slice_ in self._registry.slices:
            for observed in self._observe(slice_):
                self._observed[slice_.key, observed.uuid] = observed
                control_blocks.append((slice_.key, observed.uuid, observed.memory_mib or 0, observed.memory_limit_mib))
        seen, used, pids = self._seen(found)
        escapes = self._escape_detector.update(pod_memory(seen, control_blocks))
        self._hidden = {(escape.held.uid, escape.held.uuid): escape for escape in escapes}
        overuses = self._overuse_detector.update(self._clock() / 1e9, pod_usage(used, self._registry.slices))
        self._overused = {(over.used.uid, over.used.uuid): over for over in overuses}
        self._act(escapes, overuses, pids, self._attributed(escapes, found))

    def beside(self, uuid: str, use: SliceUse) -> SliceUse:
        mine = {
            key: seen
            for (key, gpu), seen in self._observed.items()
            if gpu == uuid and key[0] == use.uid and use.container in ("", key[1])
        }
        if not mine:
            return use
        strategies = {slice_.key: slice_.strategy for slice_ in (*self._registry.slices, *self._prepared.values())}
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
        )

    # --- escapes and overuse ------------------------------------------------------------------------------------

    def _observe(self, slice_: Slice) -> tuple[Observed, ...]:
        try:
            observed = self._drivers[slice_.strategy].observe(slice_.key)
        except OSError as error:
            self._ctx.log.warning("counters_not_read", pod=slice_.uid, container=slice_.container, error=str(error))
            return ()
        if observed and observed[0].damage:
            self._ctx.log.warning(
                "counters_damaged", pod=slice_.uid, container=slice_.container, what=observed[0].damage
            )
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

    def _attributed(
        self, escapes: tuple[Escape, ...], found: tuple[GpuProcesses, ...]
    ) -> dict[str, dict[Key, frozenset[int]]]:
        """Returns, by GPU, the containers that bypass their slices, and their processes."""
        if not escapes:
            return {}
        control_blocks, proc = (
            control_blocks_of({slice_.key: self._registry.folder(slice_.key) for slice_ in self._registry.slices}),
            self._config.host().proc,
        )
        counted = {which: seen.memory_mib or 0 for which, seen in self._observed.items()}
        return attribute_by_gpu(
            (escape.held for escape in escapes),
            found,
            counted,
            self._owner,
            lambda pid: container_of(pid, control_blocks, proc),
        )

    def _act(
        self,
        escapes: tuple[Escape, ...],
        overuses: tuple[Overuse, ...],
        pids: Mapping[tuple[str, str], frozenset[int]],
        attributed: Mapping[str, Mapping[Key, frozenset[int]]],
    ) -> None:
        for escape in escapes:
            containers = sorted(container for uid, container in attributed[escape.held.uuid] if uid == escape.held.uid)
            self._ctx.log.warning(
                "slice_escaped", what=escape.sentence, containers=containers, policy=self._config.escapes
            )
        for over in overuses:
            self._ctx.log.warning("slice_escaped", what=over.sentence, policy=self._config.escapes)
        if self._config.escapes == "lock":
            self._quotas = update_quotas(self._quotas, overuses, pids)
            self._time_slicer.set_escaped(attributed, self._quotas)
        elif self._config.escapes == "evict":
            why = {over.used.uid: over.sentence for over in overuses} | {
                escape.held.uid: escape.sentence for escape in escapes
            }
            self._evict_pods(why)

    def _evict_pods(self, why: Mapping[str, str]) -> None:
        now_s = self._clock() / 1e9
        live = {slice_.uid: slice_ for slice_ in self._agent.live()}
        for uid, sentence in why.items():
            pod = live.get(uid)
            if pod is not None and now_s - self._evicted_s.get(pod.uid, float("-inf")) >= EVICT_AGAIN_S:
                self._evicted_s[pod.uid] = now_s
                self._evict((Evict(uid=pod.uid, namespace=pod.namespace, name=pod.name, reason=sentence),))
        self._evicted_s = {uid: at_s for uid, at_s in self._evicted_s.items() if uid in live}

    def _costs(self) -> tuple[int, int]:
        """Returns the bytes of a context and of a memory pool's chunk. The operator's setting overrides what was
        measured."""
        context_bytes, pool_chunk_bytes = self._keeper.costs
        said_mib = self._config.context_mib
        return context_bytes if said_mib is None else said_mib * MIB, pool_chunk_bytes

    # --- start, end and heartbeat -------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Takes over the slices of running containers. A slice that fails keeps its last rules."""
        grants, node = {came.uid: came.grant for came in self._agent.grants()}, self._config.node
        running = [
            slice_of(live.uid, live.container, _share(live, node), grants.get(live.uid), node)
            for live in self._agent.live()
            if live.strategy in self._drivers
        ]
        slices = [slice_ for slice_ in running if slice_.strategy in PROVEN_BY_CANARY]
        self._prepared = {slice_.key: slice_ for slice_ in running if slice_.strategy not in PROVEN_BY_CANARY}
        overrides = {
            (live.uid, live.container): override_for(self._agent.suspension(live.uid), NO_OVERRIDE, live.gpus)
            for live in self._agent.live()
        }
        for slice_, error in self._registry.adopt(slices, overrides):
            self._ctx.log.error("slice_not_adopted", pod=slice_.uid, container=slice_.container, error=str(error))

    async def _probe(self, say: Callable[[], Awaitable[None]]) -> None:
        while True:
            found = {name: await self._probe_driver(name) for name in self._probed}
            if found != self._found:
                self._found = found
                await say()
            await asyncio.sleep(PROBE_S)

    async def _probe_driver(self, name: StrategyName) -> Offer:
        try:
            offer = await self._drivers[name].probe()
        except Exception as error:  # noqa: BLE001 - a plug-in that fails takes back its own strategy alone
            offer = Offer(ok=False, sentence=f"its probe fails: {type(error).__name__}: {error}")
        if offer != self._found.get(name):
            self._ctx.log.info("strategy_probed", strategy=name, offered=offer.ok, why=offer.sentence)
        return offer

    async def _undo_locks(self, locks: Locks) -> None:
        try:
            await locks.start()
        except LockError as error:
            self._ctx.health.set("locks", ok=True, detail=f"escaped processes cannot be locked: {error}")

    async def _heartbeats(self) -> None:
        while True:
            self._registry.heartbeat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _close(self) -> None:
        await self._locks.close()
        await self._checkpointer.locks.close()
        self._registry.close()

    def _libcuda(self) -> str:
        """Returns the path of the driver's library in this process; its bare name if the host has none, for the
        linker."""
        host = self._config.host()
        return self._config.libcuda or driver_files.libcuda(host) or "libcuda.so.1"

    def _canary(self) -> Canary:
        folder = Path(self._config.run_dir) / "canary"
        under = in_a_namespace(self._build / LIBRARY)
        return Canary(build=self._build, folder=folder, libcuda=self._libcuda(), clock=self._clock, under=under)


def _share(live: LiveSlice, node: str) -> ContainerGrant:
    gpus = tuple(
        GpuShare(node=node, uuid=uuid, memory_mib=mib, compute_milli=milli) for uuid, (mib, milli) in live.gpus.items()
    )
    return ContainerGrant(strategy=live.strategy, gpus=gpus)
