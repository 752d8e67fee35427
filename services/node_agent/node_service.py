"""Runs the agent of one real node: its devices, its checkpoint and its subjects on NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from services.node_agent import commands, first_checkpoint
from services.node_agent import messages as m
from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.claim_search import ClaimSearch
from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.gpu_state import job_mapping
from services.node_agent.grant_wait import GrantWait
from services.node_agent.mig.instances import MigInstances
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.publisher import Publisher
from services.node_agent.remote.remote import Remote
from services.node_agent.remote_port import RemoteServing
from services.node_agent.server_service import ServerRunner, client_containers
from services.node_agent.slice_resizer import carry_out
from services.node_agent.strategy_service import Strategies
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.node_commands import NodeHoldAnswer
from shared.model.gpu import Inventory
from shared.service import Context

TICK_S = 1.0


class NodeRuntime:
    """Handles inputs one at a time: each is decided, saved and answered before the next one."""

    def __init__(self, ctx: Context, config: Config, remote: RemoteServing | None = None) -> None:
        """Raises CheckpointError if the checkpoint cannot be trusted: then nothing may be handed over. OSError or
        msgspec.DecodeError: the same for the record of MIG instances. `remote`: runs what GPUs over the network need;
        None: as the settings say."""
        self._ctx, self._config = ctx, config
        self._file = CheckpointFile(Path(config.checkpoint_file))
        self.agent = Agent(
            config.node, first_checkpoint.load(self._file, config), evict_unhealthy=config.evict_unhealthy
        )
        boot_id = Path(config.boot_id_file).read_text().strip()
        self.mig = MigInstances(
            ctx,
            on_demand=config.mig == "on_demand",
            file=Path(config.checkpoint_file).with_name("mig.json"),
            boot_id=boot_id,
            timeout_s=config.mig_timeout_s,
            held=lambda: ((uid, share) for uid, part in self.agent.store.handed_over() for share in part.gpus),
            inventory=self._inventory,
        )
        self.devices = DeviceMonitor(
            ctx, config, self.agent, boot_id=boot_id, tell=self.handle, instances=self.mig.describe
        )
        self.publisher = Publisher(ctx)
        self.strategies: Strategies | None = None
        """None if there is no kubelet: then nothing is handed over, and nothing to be enforced."""
        if config.has_kubelet():
            self.strategies = Strategies(
                ctx, config, self.agent, devices=self.devices, publisher=self.publisher, tell=self.handle
            )
            self.devices.offered = self.strategies.offered
            self.devices.measured = self.strategies.measured
            self.devices.host_memory = self.strategies.host_memory
            self.devices.observe(self.strategies.observer)
        self._remote = (
            None
            if self.strategies is None
            else Remote(
                ctx,
                config,
                libcuda=self.strategies.libcuda,
                enforced=self.strategies.edits,
                grant_of=self.agent.store.grant_of,
                clients=partial(client_containers, self.agent),
                say=self.devices.report_again,
            )
        )
        self.servers = ServerRunner(ctx, self.agent, remote or self._remote, self.handle)
        self.devices.remote = self.servers.ability
        job_mapping.register_metric(ctx.metrics, self._inventory, self.agent.live)
        self._grants = GrantWait(ctx, config.node, self.handle)
        self._claims = ClaimSearch(self.agent.store, self._grants, PodCgroups(Path(config.cgroup_dir)))
        self._serial = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()
        self._unsaved = ""
        """Why the state in memory is newer than the one on disk. Once set, the agent decides and answers nothing any
        more."""
        self._ended = False
        self._saved = ctx.metrics.histogram("kerf_agent_save_seconds", "Time to make a checkpoint durable.")

    async def start(self) -> None:
        ctx, node = self._ctx, self._config.node
        await self.devices.start()
        self.mig.start(self.devices.refresh)
        await self.servers.start()
        if self.strategies is not None:
            await self.strategies.start(self.devices.report_again)
        if self._remote is not None:
            await self._remote.start()
        for verb in commands.VERBS:
            await ctx.bus.subscribe(subjects.node_command(node, verb), self._came)
        ctx.bus.on_reconnect(self._reconnected)
        ctx.spawn(self._ticks(), name="ticks")
        if folder := self._config.job_mapping_dir:
            ctx.spawn(job_mapping.keep_files(ctx, Path(folder), self._inventory, self.agent.live), name="job-mapping")
        ctx.spawn(
            self.publisher.send_heartbeats(subjects.heartbeat(node), lambda: (node,), self._config.beat_s),
            name="heartbeats",
        )

    async def end(self) -> None:
        """Waits for the input that is being handled. Nothing is written after it: the next agent reads what is."""
        async with self._serial:
            self._ended = True

    async def start_container(
        self, uid: str, container: str, slot: str = "", pod: tuple[str, str] | None = None
    ) -> m.HandOver | m.RefuseStart:
        """Returns the share of a container that is about to start, or why it must not start.

        Waits for the grant if it is not known. `pod`: (namespace, name) if the kubelet names the pod.
        """
        asked = m.StartRequested(uid, container, slot, pod)
        try:
            orders = await self.handle(asked)
            find = partial(self.agent.store.find_startable, uid)
            fetches = any(isinstance(order, m.FetchGrant) for order in orders)
            if fetches and await self._grants.until(find, uid=uid) is not None:
                orders = await self.handle(asked)
        except OSError as error:
            return m.RefuseStart(uid, container, "checkpoint-not-written", str(error))
        return next(order for order in orders if isinstance(order, m.HandOver | m.RefuseStart))

    async def find_claim(self, claim: str) -> tuple[str, tuple[str, ...]] | None:
        """As ClaimSearch.find."""
        return await self._claims.find(claim)

    def init_share(self, uid: str) -> str:
        """As GrantStore.init_share."""
        return self.agent.store.init_share(uid)

    async def end_container(self, uid: str, container: str, if_so: Callable[[], bool] = lambda: True) -> bool:
        """Notes that the container has ended; False if it was not noted.

        `if_so` is checked again last, when no start can come in between. Raises OSError as `handle` does.
        """
        return bool(await self.handle(m.ContainerEnded(uid, container), if_so=if_so))

    async def handle(
        self, event: m.Input, incoming: Incoming | None = None, if_so: Callable[[], bool] = lambda: True
    ) -> list[m.Command]:
        """Handles one input. Raises OSError if the checkpoint cannot be written; then the process ends.

        It runs to its end even if the caller is cancelled: the kubelet may abandon a call midway, and two checkpoints
        that are written at the same time damage each other.
        """
        task = asyncio.create_task(self._handle(event, incoming, if_so))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return await asyncio.shield(task)

    async def _handle(self, event: m.Input, incoming: Incoming | None, if_so: Callable[[], bool]) -> list[m.Command]:
        async with self._serial:
            if self._unsaved:
                raise OSError(self._unsaved)
            if self._ended or not if_so():
                return []
            # Not the wall clock, which may be set: the core measures durations.
            orders = self.agent.handle(event, asyncio.get_running_loop().time())
            for order in orders:
                await self._do(order, incoming)
            if isinstance(event, m.GrantReceived | m.SyncReceived):
                self._grants.came()
            return orders

    async def _do(self, order: m.Command, incoming: Incoming | None) -> None:
        match order:
            case m.Save():
                # A promise that is not on disk must not be published, and the state in memory is newer than the disk.
                # The next start reads the true state.
                begun = asyncio.get_running_loop().time()
                try:
                    await asyncio.to_thread(self._file.save, self.agent.checkpoint())
                except OSError as error:
                    folder = self._file.path.parent
                    self._unsaved = f"the agent's checkpoint cannot be written; free some space in {folder}: {error}"
                    self._ctx.fail(self._unsaved)
                    raise OSError(self._unsaved) from error
                self._saved.observe(asyncio.get_running_loop().time() - begun)
            case m.Answer():
                await self.publisher.answer(incoming, order.body)
            case m.SuspendSlices():
                # The driver may take seconds, and other requests go on. A repeated one is answered when both are done.
                self._ctx.spawn(self._suspend(order, incoming), name="suspend")
            case m.Serve() | m.FindServer() | m.EndServer() | m.ClientEnded():
                self.servers.carry_out(order)
            case m.ResizeSlices() | m.HoldPods():
                change = self._hold(order, incoming) if isinstance(order, m.HoldPods) else self._resize(order, incoming)
                self._ctx.spawn(change, name="slices")
            case m.PutInventory():
                self.publisher.put(order.inventory)
            case m.Publish():
                self.publisher.publish(self._config.node, order)
            case m.ClearAilments():
                self.devices.clear_ailments(order.gpus)
            case m.EvictPods():
                self.publisher.evict(order.evictions)
            case m.RefuseStart():
                self._ctx.log.info(
                    "start_refused", uid=order.uid, container=order.container, code=order.code, why=order.sentence
                )

    async def _suspend(self, order: m.SuspendSlices, incoming: Incoming | None) -> None:
        strategies = self.strategies
        results = [
            m.SuspendResult(task, "this agent hands nothing over")
            if strategies is None
            else await strategies.suspend(task)
            for task in order.tasks
        ]
        await self.handle(m.SuspensionDone(order.request, tuple(results)), incoming)

    async def _hold(self, order: m.HoldPods, incoming: Incoming | None) -> None:
        why = "this agent hands nothing over" if self.strategies is None else await self.strategies.hold(order)
        await self.publisher.answer(incoming, NodeHoldAnswer(node=self._config.node, ok=not why, reason=why))

    async def _resize(self, order: m.ResizeSlices, incoming: Incoming | None) -> None:
        done = await carry_out(None if self.strategies is None else self.strategies.resizer, order)
        await self.handle(done, incoming)

    async def _came(self, incoming: Incoming) -> None:
        _, event = commands.read(incoming.subject, incoming.payload)
        await self.handle(event, incoming)

    def _inventory(self) -> Inventory | None:
        return self.agent.gpus.inventory

    async def _reconnected(self) -> None:
        await self.handle(m.Reconnected())

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._ctx.bus.connected:
                # A tick's commands are published: without a connection they would pile up. A reconnect publishes all.
                await self.handle(m.Tick())
