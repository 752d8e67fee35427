"""Wires the strategies: which are offered, and what a container gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

from services.node_agent import adoption
from services.node_agent import messages as m
from services.node_agent.bursts import Bursts
from services.node_agent.canary.proofs import ProofManager
from services.node_agent.canary.run import canary_of
from services.node_agent.cdi import driver_files
from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.config import Config
from services.node_agent.copy_record import CopyRecord
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.gate import Occupancy
from services.node_agent.idle_watch import IdleWatch
from services.node_agent.mps.supervisor import supervisor_of
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.publisher import Publisher
from services.node_agent.rehearser import Rehearser
from services.node_agent.slice_resizer import SliceResizer, as_it_is_now
from services.node_agent.slice_watch import SliceWatch
from services.node_agent.strategies.checkpointing import Checkpointer
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.gpu_locks import GpuLocks
from services.node_agent.strategies.holds import Holds
from services.node_agent.strategies.hooks import Hooks
from services.node_agent.strategies.install import Installation
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.lock_pool import LockPool
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.probes import Probes
from services.node_agent.strategies.quantum_scheduler import QuantumPolicy
from services.node_agent.strategies.rules import Policy
from services.node_agent.strategies.slice_files import SliceFiles
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Slice, slice_of
from services.node_agent.strategies.suspension import Suspender, living_by_gpu, override_for
from services.node_agent.strategies.time_slicing import TimeSlicer
from shared.model.grant import Grant
from shared.model.strategies import StrategyName, registered
from shared.model.units import MIB
from shared.service import Context

HEARTBEAT_S = 0.5
"""A pause or a closed gate in a control block ends 2 s after the agent's last heartbeat."""


class Strategies:
    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        devices: DeviceMonitor,
        publisher: Publisher,
        tell: Callable[[m.Input], Awaitable[object]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`tell` passes an input to the core. `clock` returns nanoseconds of CLOCK_MONOTONIC."""
        self._ctx, self._config, self._agent, self._clock = ctx, config, agent, clock
        build, run = Path(config.interposer_dir), Path(config.run_dir)
        proof_file = Path(config.checkpoint_file).with_name("canary.json")
        canary = partial(canary_of, config, devices, clock, self.libcuda)
        self._keeper = ProofManager(ctx, proof_file, build, canary, context_mib=config.context_mib)
        self.measured = self._keeper.bandwidth.told
        policy = Policy(
            period_us=config.period_ms * 1000,
            in_flight_us=config.in_flight_us,
            reserved_in_flight_us=config.reserved_in_flight_us,
            least_milli=config.least_milli,
        )
        files = SliceFiles(run / "slices", enabled=config.mount_slices)
        self._registry = SliceRegistry(files.folder, policy, clock, self._costs, files)
        self._installed = Installation(ctx, build, Path(config.library_dir), self._keeper.library)
        tools = self._installed.tools(self._registry, offer=self._keeper.offer, clock=clock)
        self._mps = supervisor_of(ctx, config, agent, self._keeper, canary=canary, publisher=publisher)
        tools = tools if self._mps is None else self._mps.equip(tools)
        self._drivers = make_drivers(tools)
        self._with_block = frozenset(name for name, driver in self._drivers.items() if isinstance(driver, Interposer))
        """The strategies whose slices have a control block."""
        asked = {name: one for name, one in self._drivers.items() if config.mps or not registered()[name].concurrent}
        self._probes = Probes(asked, ctx.log)
        self._prepared: dict[Key, Slice] = {}
        """The slices without a control block."""
        cgroups = PodCgroups(Path(config.cgroup_dir))
        copies = CopyRecord(ctx, config, lambda uid: living_by_gpu(self._registry, agent.live(), uid))
        self.host_memory = copies.told
        locks = LockPool(self.libcuda, run / "parked.json", config.copies_at_once)
        self._checkpointer = Checkpointer(locks, cgroups, copied=copies.copied)
        self._locks = GpuLocks(self.libcuda, run)
        quantum = QuantumPolicy(least_milli=config.least_milli)
        self._time_slicer = TimeSlicer(self._registry, self._locks, quantum, clock)
        watch = SliceWatch(
            ctx,
            config,
            agent,
            registry=self._registry,
            prepared=self._prepared,
            drivers=self._drivers,
            time_slicer=self._time_slicer,
            devices=devices,
            cgroups=cgroups,
            limits_hold=lambda: self._keeper.driver_limits_hold,
            evict=publisher.evict,
            clock=clock,
        )
        self.observer, self._police, self._limits = watch.observer, watch.police, watch.limits
        self._suspender = Suspender(self._registry, self._drivers, agent.live, self._checkpointer, self.observer.memory)
        self._suspender.hooks = Hooks(cgroups, self._checkpointer, self._suspender.living_bytes)
        self._bursts = Bursts(
            ctx,
            config,
            agent,
            registry=self._registry,
            suspender=self._suspender,
            devices=devices,
            ender=watch.ender,
            slack_mib=self.observer.slack_mib,
            lent=self._limits.refresh,
            clock=clock,
        )
        self._holds = Holds(self._suspender)
        self.rehearser = Rehearser(ctx, agent, self._suspender, settled_s=config.rehearse_after_s, tell=tell)
        self._idle = IdleWatch(
            ctx, agent, self._registry, after_s=config.idle_after_s, kernels=self.observer.kernels_of, tell=tell
        )
        self.resizer = SliceResizer(
            ctx, agent, self._suspender, self._bursts, self._prepared, resized=self._limits.refresh
        )

    def offered(self, driver_version: str, always: tuple[StrategyName, ...]) -> tuple[StrategyName, ...]:
        """Returns the strategies that this node offers. `always`: those that it offers as any other node."""
        proven = self._keeper.strategies(driver_version) if self._config.enforce == "proven" else ()
        offered = (*always, *proven, *self._probes.offered())
        return offered if self._mps is None else self._mps.only(offered)

    async def start(self, say: Callable[[], Awaitable[None]]) -> None:
        """Takes over the running slices and starts the background tasks. `say` publishes what the node offers now."""
        self._police.thaw()
        await self._installed.install()
        self._adopt()
        # What follows may take longer than pauses and gates last without a heartbeat.
        self._ctx.spawn(self._heartbeats(), name="control-blocks")
        if self._mps is not None:
            await self._mps.start()
        await self._bursts.start()
        await self._limits.refresh()
        self._ctx.on_drain(self._close)
        self._police.start()
        if self._config.escapes == "lock" or self._locks.has_leftovers():
            await self._undo_locks(self._locks)
        if self._checkpointer.locks.has_leftovers():
            await self._undo_locks(self._checkpointer.locks)
        if self._config.escapes == "lock":
            self._ctx.spawn(self._time_slicer.run(), name="time-slicing")
        if self._config.enforce == "proven":

            async def proven() -> None:
                self._registry.refresh()
                await self._limits.refresh()
                await say()

            gpus = self._agent.gpus
            self._ctx.spawn(self._keeper.keep(lambda: gpus.inventory, self._occupied, proven), name="canary")
        if self._probes.needed:
            self._ctx.spawn(self._probes.run(say), name="probes")
        if self._mps is not None:
            self._mps.run(say)
        self._ctx.spawn(self._bursts.run(HEARTBEAT_S), name="bursts")
        self._ctx.spawn(self.rehearser.run(), name="rehearsals")
        self._ctx.spawn(self._holds.run(), name="holds")
        self._ctx.spawn(self._idle.run(), name="idle-pods")

    async def edits(self, order: m.HandOver, grant: Grant | None) -> ContainerEdits:
        """Prepares a container's slice and returns what the container gets from its strategy.

        If it raises OSError or ValueError, the container must not start.
        """
        if self._mps is not None:
            await self._mps.ready(order.share)
        driver = self._drivers.get(order.share.strategy)
        if driver is None:
            return ContainerEdits()
        if order.share.strategy in self._with_block:
            await self._installed.install()  # where the last attempt has failed
        slice_ = slice_of(order.uid, order.container, order.share, grant, self._config.node)
        await self._bursts.make_room_to_start(slice_)
        slice_, suspension = as_it_is_now(self._agent, order, slice_, grant)
        gpus = [part.uuid for part in slice_.parts]
        driver.prepare(slice_, override_for(suspension, self._registry.override_of(slice_.key), gpus))
        if order.share.strategy not in self._with_block:
            self._prepared[slice_.key] = slice_
        await self._limits.apply(order.uid)
        await self._bursts.started(slice_)
        return driver.edits(slice_)

    async def hold(self, order: m.HoldPods) -> str:
        """Stops pods together and holds them, or lets them go on. Returns why not."""
        return await self._holds.hold(order.uids, order.hold_s)

    async def suspend(self, ask: m.SuspendTask) -> m.SuspendResult:
        """Suspends or resumes a pod's slices. Returns whether it succeeded, or why not."""
        why = await self._bursts.make_room_to_resume(ask)
        done = m.SuspendResult(ask, why) if why else await self._suspender.suspend(ask)
        if not done.reason:
            await self._holds.ordered(ask.uid, ask.suspension)
        await self._limits.refresh()
        action = "resume" if ask.suspension is None else ask.suspension.action
        event = "slices_not_suspended" if done.reason else "slices_suspended"
        self._ctx.log.info(event, pod=ask.uid, action=action, why=done.reason)
        return done

    def keep_only(self, containers: Iterable[Key]) -> None:
        """Releases the slices of all containers but these: the others have ended for good. Raises OSError."""
        kept = set(containers)
        self._limits.keep_only({uid for uid, _ in kept})
        for slice_ in self._registry.slices:
            if slice_.key not in kept:
                self._drivers[slice_.strategy].release(slice_.key)
        self._registry.keep_only(kept)
        for key in self._prepared.keys() - kept:
            self._drivers[self._prepared[key].strategy].release(key)
            del self._prepared[key]

    def _occupied(self) -> Occupancy:
        return self._registry.with_loans(self._agent.occupied())

    def _costs(self) -> tuple[int, int]:
        """Returns the bytes of a context and of a memory pool's chunk. The operator's setting overrides what was
        measured."""
        context_bytes, pool_chunk_bytes = self._keeper.costs
        said_mib = self._config.context_mib
        return context_bytes if said_mib is None else said_mib * MIB, pool_chunk_bytes

    # --- start, end and heartbeat -------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Takes over the slices of running containers. A slice that fails keeps its last rules."""
        running, overrides = adoption.running(self._agent, self._drivers)
        slices = [slice_ for slice_ in running if slice_.strategy in self._with_block]
        self._prepared |= {slice_.key: slice_ for slice_ in running if slice_.strategy not in self._with_block}
        for slice_, error in self._registry.adopt(slices, overrides):
            self._ctx.log.error("slice_not_adopted", pod=slice_.uid, container=slice_.container, error=str(error))

    async def _undo_locks(self, locks: LockPool | GpuLocks) -> None:
        try:
            await locks.start()
        except LockError as error:
            self._ctx.health.set("locks", ok=True, detail=f"escaped processes cannot be locked: {error}")

    async def _heartbeats(self) -> None:
        while True:
            self._registry.heartbeat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _close(self) -> None:
        await self._police.close()
        await self._locks.close()
        await self._checkpointer.locks.close()
        if self._mps is not None:
            await self._mps.close()
        self._registry.close()

    def libcuda(self) -> str:
        """Returns the path of the driver's library in this process; its bare name if the host has none."""
        host = self._config.host()
        return self._config.libcuda or driver_files.libcuda(host) or "libcuda.so.1"
