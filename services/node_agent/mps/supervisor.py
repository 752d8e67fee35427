"""Keeps the MPS daemons of a node: as many as concurrent slices need, proven first, started again when they fail."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from services.node_agent import messages as m
from services.node_agent.canary.proofs import ROOM_MIB, ProofManager
from services.node_agent.canary.run import Canary, CanaryError
from services.node_agent.canary.verdict import retry_after_s
from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.measured_files import load, store
from services.node_agent.mps import plan
from services.node_agent.mps.daemon import Daemon, MpsError, Tools, tools_of
from services.node_agent.mps.plan import Memory, Trouble
from services.node_agent.mps.proof import MpsProof, MpsProver
from services.node_agent.node_lock import LOCK
from services.node_agent.publisher import Publisher
from services.node_agent.strategies.base import NodeTools, Offer
from shared.bus.tasks import end
from shared.contracts.events import SliceImpaired
from shared.contracts.node_commands import LiveSlice
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant
from shared.model.strategies import StrategyName, registered
from shared.service import Context

ROUND_S = 2.0
"""How often the daemons are looked at."""
END_S = 30.0
"""How long the end of the agent waits until what was begun has stopped its daemons."""
CANARY = "canary"
"""The folder of the daemon by which MPS is proven."""
STATE = "daemon.json"
MPS_FOLDER = "mps"
"""The folder of the GPUs' folders, in run_dir."""

T = TypeVar("T")


class MpsSupervisor:
    def __init__(
        self,
        ctx: Context,
        agent: Agent,
        *,
        wanted: bool,
        folder: Path,
        proof_file: Path,
        tools: Callable[[], Tools],
        prover: Callable[[], MpsProver],
        keeper: ProofManager,
        publish: Callable[[m.Publish], None],
    ) -> None:
        """`wanted`: whether the node is to offer MPS; otherwise it ends with the slices that are left.

        `folder` holds a folder for each GPU, by the same path on the host; a reboot empties it.

        `tools`, `prover`: for the driver as it is now. `keeper`: of the interposer's proof.
        """
        self._ctx, self._agent, self._folder, self._file = ctx, agent, folder, proof_file
        self._wanted = wanted
        self._tools, self._prover, self._keeper, self._library = tools, prover, keeper, keeper.library
        self._publish = publish
        self._serial: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By GPU: a daemon that hangs keeps no slice from another GPU."""
        self._work: set[asyncio.Task[None]] = set()
        self._daemons: dict[str, Daemon] = {}
        self._memories: dict[str, Memory] = {}
        self._refused: dict[str, str] = {}
        """Why the last start of a GPU's daemon has failed."""
        self._proof = load(proof_file, MpsProof)
        self._trouble = ""
        self._attempts, self._next_s = 0, 0.0
        self._task: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._troubles = ctx.metrics.counter(
            "kerf_agent_mps_troubles_total",
            "What ended the GPU work of containers under MPS: daemon, server, fault or hung.",
            ("gpu", "kind"),
        )
        self._starts = ctx.metrics.counter("kerf_agent_mps_starts_total", "Starts of MPS control daemons.", ("gpu",))
        ctx.metrics.observe_by(
            "kerf_agent_mps_running",
            "1 while the MPS control daemon of a GPU runs, 0 while it should and does not.",
            lambda: {(uuid,): float(memory.control > 0) for uuid, memory in self._memories.items()},
            labels=("gpu",),
        )

    def offer(self) -> Offer:
        """Whether MPS was proven here with this driver. A proof with another library holds until there is a GPU for the
        next one: containers of slices that fill the node must be able to restart after an upgrade."""
        if not self._wanted:
            return Offer(ok=False, sentence="the setting mps_nodes does not name this node")
        inventory = self._agent.gpus.inventory
        driver = "" if inventory is None else inventory.driver_version
        if not driver:
            return Offer(ok=False, sentence="no driver is loaded")
        if (
            self._proof is None
            or self._proof.driver_version != driver
            or not (self._proof.ok or self._is_proof_of_ours)
        ):
            why = f" ({self._trouble})" if self._trouble else ""
            return Offer(ok=False, sentence=f"MPS has not been tried with driver {driver} yet{why}")
        return Offer(ok=self._proof.ok, sentence=self._proof.sentence)

    @property
    def _is_proof_of_ours(self) -> bool:
        return self._proof is not None and self._proof.library == self._library

    def equip(self, tools: NodeTools) -> NodeTools:
        """Returns the tools of the strategies' drivers, with what the driver of mps needs."""
        return msgspec.structs.replace(tools, mps_folder=self._folder, offer_mps=self.offer)

    def only(self, offered: tuple[StrategyName, ...]) -> tuple[StrategyName, ...]:
        """What of this a node with MPS offers: slices that take turns, or that nothing limits, would not share a GPU
        fairly with the clients of a server."""
        if not self._wanted:
            return offered
        kept = {name for name, one in registered().items() if one.unit != "part" or one.concurrent}
        return tuple(name for name in offered if name in kept)

    async def ready(self, share: ContainerGrant) -> None:
        """Returns when a container may start on its GPUs: as a client, whose daemon runs, or where no clients are.

        Raises MpsError where it may not now. It goes on if the caller is cancelled: the kubelet may give up and ask
        again.
        """
        concurrent = registered()[share.strategy].concurrent
        for gpu in share.gpus:
            if gpu.node == self._agent.node and concurrent:
                await self._whole(self._ready(gpu.uuid))
            elif gpu.node == self._agent.node and gpu.uuid in self._memories:
                self._refuse_beside(gpu.uuid, "given without MPS only when slices of MPS", concurrent=True)

    async def _ready(self, uuid: str) -> None:
        async with self._serial[uuid]:
            if uuid not in self._memories:  # otherwise MPS was there first, and the others are refused
                self._refuse_beside(uuid, "shared by MPS only when slices of other strategies", concurrent=False)
                self._memories[uuid] = Memory()  # from now on the others are
            await self._look_at(uuid, needed=True)
            known = self._memories[uuid]
            if not known.control:
                raise MpsError(
                    f"the MPS daemon of GPU {uuid} does not run: {self._refused.get(uuid, 'it has just ended')}"
                )
            if known.hung_s is not None:
                raise MpsError(f"the MPS daemon of GPU {uuid} does not answer")
            if known.fault_s is not None:
                raise MpsError(
                    f"the MPS server of GPU {uuid} takes no new programs after a fault, until those before have ended"
                )

    def _refuse_beside(self, uuid: str, how: str, *, concurrent: bool) -> None:
        others = {f"{one.namespace}/{one.name} ({one.strategy})" for one in self._slices(uuid, concurrent=concurrent)}
        if others:
            raise MpsError(f"GPU {uuid} is {how} have ended: {', '.join(sorted(others))}")

    def _slices(self, uuid: str, *, concurrent: bool) -> list[LiveSlice]:
        return [one for one in self._agent.live() if uuid in one.gpus and _is_concurrent(one) is concurrent]

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Does it to its end even if the caller is cancelled. The end of the agent cancels it once, so that it can
        still stop what it has begun."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        await asyncio.shield(task)

    async def start(self) -> None:
        """Takes over the daemons of an earlier agent, and ends those that nothing needs."""
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            if path.name == CANARY:
                await self._remove(Daemon(CANARY, path, self._tools()))
                continue
            self._memories[path.name] = load(path / STATE, Memory) or Memory()
        # Times are of a clock that another process has read.
        self._memories = {
            uuid: Memory(control=known.control, server=known.server) for uuid, known in self._memories.items()
        }
        await self._look()
        for uuid in sorted(self._memories):
            try:
                await self._daemon(uuid).adopt()
            except MpsError as error:
                self._ctx.log.error(
                    "mps_not_guarded",
                    gpu=uuid,
                    error=str(error),
                    effect="the daemon may end with the agent's container",
                )

    def run(self, say: Callable[[], Awaitable[None]]) -> None:
        """Keeps the daemons from now on. `say` publishes a change of the offer."""
        self._task = self._ctx.spawn(self._run(say), name="mps")

    async def _run(self, say: Callable[[], Awaitable[None]]) -> None:
        while True:
            before = self.offer()
            await self._whole(self._prove_if_needed())
            if self.offer() != before:
                await say()
            await self._whole(self._look())
            await self._shorten_logs()
            self._report()
            await asyncio.sleep(ROUND_S)

    async def close(self) -> None:
        """Ends the daemons that nothing needs. The others stay: their containers run on."""
        if self._task is not None:
            await end(self._task)
        for task in self._work:
            task.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=END_S)
        await self._look(starting=False)

    def _report(self) -> None:
        """Ready all the same: whole GPUs are given, and what can be started is started."""
        troubles = [f"the MPS daemon of GPU {uuid} does not run: {why}" for uuid, why in sorted(self._refused.items())]
        offer = self.offer()
        if self._wanted and not offer.ok:
            troubles.insert(0, f"no part of a GPU is offered: {offer.sentence}")
        elif self._wanted and self._trouble:
            troubles.insert(0, f"MPS was proven by another version of the agent, and not by this one: {self._trouble}")
        self._ctx.health.set("mps", ok=True, detail="; ".join(troubles))

    # --- daemons ------------------------------------------------------------------------------------------------

    async def _look(self, *, starting: bool = True) -> None:
        """Looks at all daemons once, and does what is to be done; without `starting` only what ends one."""

        async def look(uuid: str) -> None:
            async with self._serial[uuid]:
                if starting or not self._needs(uuid):
                    await self._look_at(uuid, needed=self._needs(uuid))

        async with asyncio.TaskGroup() as group:
            for uuid in {uuid for one in self._concurrent() for uuid in one.gpus} | self._memories.keys():
                group.create_task(look(uuid))

    async def _shorten_logs(self) -> None:
        """The daemons write each question down, and these are many."""
        for daemon in [self._daemon(uuid) for uuid in self._memories]:
            try:
                await daemon.shorten_logs()
            except OSError as error:
                self._ctx.log.warning(
                    "mps_log_not_cut", gpu=daemon.uuid, error=str(error), effect="it may fill run_dir"
                )

    def _needs(self, uuid: str) -> bool:
        """Whether a GPU's daemon must run. A slice that was refused because of others is handed over all the same."""
        first = uuid in self._memories or not self._slices(uuid, concurrent=False)
        return first and bool(self._slices(uuid, concurrent=True))

    async def _look_at(self, uuid: str, *, needed: bool) -> None:
        """The caller holds the GPU's lock."""
        before = self._memories.get(uuid)
        decision = plan.decide(uuid, needed, await self._daemon(uuid).see(), before, self._clock())
        if decision.trouble is not None:
            self._tell(uuid, decision.trouble)
        await self._do(uuid, decision)
        if self._memories.get(uuid) != before:
            self._save(uuid)

    async def _do(self, uuid: str, decision: plan.Decision) -> None:
        daemon = self._daemon(uuid)
        if decision.memory is None:
            if decision.verb == "stop" and not await self._remove(daemon):
                return
            for of in (self._memories, self._daemons, self._refused):
                of.pop(uuid, None)
            return
        self._memories[uuid] = decision.memory
        if decision.verb is None:
            return
        try:
            if decision.verb == "restart":
                await daemon.stop()
            control, server = await daemon.start()
        except OSError as error:
            self._refused[uuid] = str(error)
            self._ctx.log.error("mps_not_started", gpu=uuid, error=str(error), failures=decision.memory.failures)
            return
        self._starts.add(1, uuid)
        self._refused.pop(uuid, None)
        self._memories[uuid] = plan.started(decision.memory, control, server, self._clock())
        self._ctx.log.info("mps_started", gpu=uuid, pid=control, server=server)

    async def _remove(self, daemon: Daemon) -> bool:
        try:
            await daemon.remove()
        except OSError as error:
            self._ctx.log.error("mps_not_ended", gpu=daemon.uuid, error=str(error), effect="the agent tries again")
            return False
        self._ctx.log.info("mps_ended", gpu=daemon.uuid)
        return True

    def _tell(self, uuid: str, trouble: Trouble) -> None:
        self._troubles.add(1, uuid, trouble.kind)
        self._ctx.log.warning("mps_trouble", gpu=uuid, kind=trouble.kind, what=trouble.sentence)
        at_ms = int(self._ctx.now() * 1000)
        for one in self._concurrent():
            if uuid in one.gpus:
                event = SliceImpaired(
                    node=self._agent.node,
                    uid=one.uid,
                    namespace=one.namespace,
                    name=one.name,
                    container=one.container,
                    gpu=uuid,
                    reason=f"mps-{trouble.kind}",
                    sentence=trouble.sentence,
                )
                identity = f"impaired-{one.uid}-{one.container}-{uuid}-{trouble.kind}-{at_ms}"
                self._publish(m.Publish(event, identity, one.namespace))

    def _concurrent(self) -> list[LiveSlice]:
        return [one for one in self._agent.live() if _is_concurrent(one)]

    def _daemon(self, uuid: str) -> Daemon:
        if uuid not in self._daemons:
            self._daemons[uuid] = Daemon(uuid, self._folder / uuid, self._tools())
        return self._daemons[uuid]

    def _save(self, uuid: str) -> None:
        memory, path = self._memories.get(uuid), self._folder / uuid / STATE
        if memory is None or not path.parent.is_dir():
            return
        try:
            store(path, memory)
        except OSError as error:
            self._ctx.log.warning(
                "mps_state_not_kept", gpu=uuid, error=str(error), effect="an end of the daemon while no agent runs is "
                "not reported",
            )  # fmt: skip

    # --- proof --------------------------------------------------------------------------------------------------

    async def _prove_if_needed(self) -> None:
        inventory = self._agent.gpus.inventory
        if not self._wanted or inventory is None or self._clock() < self._next_s:
            return
        if self.offer().ok and self._is_proof_of_ours:
            return
        if not (offer := self._keeper.offer()).ok:
            self._trouble = f"the interposer must be proven first: {offer.sentence}"
            return
        async with self._keeper.busy:
            gpu = self._free_gpu()  # as it is now: the canary may have been busy for long
            if gpu is None:
                self._trouble = f"no healthy GPU without slices has {ROOM_MIB} MiB of unused memory"
                return
            async with self._serial[gpu.uuid]:
                await self._prove(gpu)

    async def _prove(self, gpu: Gpu) -> None:
        inventory = self._agent.gpus.inventory
        if inventory is None:
            return
        self._attempts += 1
        self._next_s = self._clock() + retry_after_s(self._attempts)
        # Under the UUID of the GPU, which the daemon must see, and in a folder of its own.
        daemon = Daemon(gpu.uuid, self._folder / CANARY, self._tools())
        at_ms, driver = int(self._ctx.now() * 1000), inventory.driver_version
        try:
            self._proof = await self._prover().prove(daemon, driver, self._library, at_ms)
            store(self._file, self._proof)
        except (OSError, CanaryError, MpsError) as error:
            self._trouble = str(error)
            self._ctx.log.warning("mps_not_tried", gpu=gpu.uuid, why=self._trouble)
            return
        self._trouble = ""
        if self._proof.ok:
            self._attempts = 0
            self._ctx.log.info("mps_proven", gpu=gpu.uuid, processors=self._proof.client_processors)
        else:
            self._ctx.log.error("mps_failed", gpu=gpu.uuid, why=self._proof.sentence, effect="mps is not offered")

    def _free_gpu(self) -> Gpu | None:
        """A GPU without slices whose lock is free, so that taking it does not wait."""
        inventory, occupied = self._agent.gpus.inventory, self._agent.occupied()
        free = [gpu for gpu in (() if inventory is None else inventory.gpus)
                if gpu.state == "healthy" and not gpu.mig_enabled and gpu.uuid not in occupied
                and not self._serial[gpu.uuid].locked() and gpu.memory_mib - gpu.foreign_mib >= ROOM_MIB]  # fmt: skip
        return min(free, key=lambda gpu: gpu.index, default=None)


def supervisor_of(
    ctx: Context,
    config: Config,
    agent: Agent,
    keeper: ProofManager,
    *,
    canary: Callable[[], Canary],
    publisher: Publisher,
) -> MpsSupervisor | None:
    """The supervisor of this node; None if its operator does not want MPS, and nothing of it is left.

    `keeper`, `canary`: of the interposer, which goes with it.
    """
    folder = Path(config.run_dir) / MPS_FOLDER
    left = (folder.is_dir() and any(folder.iterdir())) or any(map(_is_concurrent, agent.live()))
    if not config.mps and not left:
        return None
    return MpsSupervisor(
        ctx,
        agent,
        wanted=config.mps,
        folder=folder,
        proof_file=Path(config.checkpoint_file).with_name("mps.json"),
        tools=lambda: tools_of(
            config.host(),
            config.mps_control,
            cgroups=Path(config.cgroup_dir),
            lock=Path(config.checkpoint_file).with_name(LOCK),
        ),
        prover=lambda: MpsProver(canary()),
        keeper=keeper,
        publish=lambda order: publisher.publish(config.node, order),
    )


def _is_concurrent(one: LiveSlice) -> bool:
    return registered()[one.strategy].concurrent
