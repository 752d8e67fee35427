"""Lends slices the memory that no slice is guaranteed, and has it back when a guarantee needs it.

Lending: with each heartbeat, and whenever a slice comes, the limits follow what is guaranteed (`strategies/bursts.py`).
A grant counts from its arrival, before its container starts.

Taking back: a container starts, or a pod resumes, only when its memory is there. Limits are lowered at once; slices
that have more than theirs get `burst_return_s` to free it. Then their pods lose their place on the GPU, the cheapest
first, until it is enough: by a checkpoint to the host, else by SIGKILL and eviction. A pod on the host continues by
itself when all that it had fits again, also one that placement had checkpointed and resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Literal

import msgspec

from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.devices.usage import Process
from services.node_agent.messages import SuspendTask
from services.node_agent.pod_ender import PodEnder
from services.node_agent.strategies import bursts
from services.node_agent.strategies.bursts import Burst, Room
from services.node_agent.strategies.escapes import MAX_PROCESSES
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.slice_registry import Loan, SliceRegistry
from services.node_agent.strategies.slices import Key, Part, Slice
from services.node_agent.strategies.suspension import Suspender
from shared.model import names
from shared.model.life import lost_s
from shared.model.suspension import goes_to_host
from shared.model.units import MIB, WHOLE_GPU_MILLI
from shared.service import Context

POLL_S = 0.02
"""How often the agent looks whether memory has come back, while a start waits for it."""
END_S = 5.0
"""How long memory of processes that were killed may take to be free."""

Outcome = Literal["freed", "checkpointed", "ended"]


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one GPU now."""

    room: Room
    bursts: dict[Key, Burst]
    unseen_mib: dict[str, int]
    """By pod: what NVML sees beyond what its slices count and are guaranteed."""

    @property
    def overdraft_mib(self) -> int:
        return bursts.overdraft(self.room, self.bursts.values())

    def without(self, pods: Iterable[str]) -> int:
        """What is overdrawn when these pods have left the GPU."""
        return self.overdraft_mib - sum(map(self.of_pod, pods))

    def of_pod(self, uid: str) -> int:
        """What a pod has beyond its guarantees."""
        return self.unseen_mib.get(uid, 0) + sum(one.held_mib for key, one in self.bursts.items() if key[0] == uid)

    def allowed_mib(self, uid: str) -> int:
        """What a pod may use now beyond its guarantees."""
        return sum(one.allowed_mib for key, one in self.bursts.items() if key[0] == uid)


class _Taken(msgspec.Struct, kw_only=True):
    """The pods from which one start or resumption has taken the GPU."""

    needed_by: str
    moved: set[str] = msgspec.field(default_factory=set)
    ended_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """When their processes were killed."""


class Bursts:
    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        registry: SliceRegistry,
        suspender: Suspender,
        devices: DeviceMonitor,
        ender: PodEnder,
        slack_mib: Callable[[], int],
        lent: Callable[[], Awaitable[None]],
        clock: Callable[[], int],
    ) -> None:
        """`slack_mib` returns what a process may have that no counter has. `lent` is called after limits were changed.
        `clock` returns nanoseconds of CLOCK_MONOTONIC."""
        self._ctx, self._config, self._agent, self._registry = ctx, config, agent, registry
        self._suspender, self._devices, self._ender = suspender, devices, ender
        self._slack_mib, self._lent, self._clock = slack_mib, lent, clock
        self._busy: set[str] = set()
        """The GPUs on which limits are being changed or memory is being taken back, each by one task."""
        self._idle = asyncio.Event()
        """Set once, when GPUs are no longer busy. Then there is another."""
        self._waited = ctx.metrics.histogram(
            "kerf_agent_burst_return_seconds", "Time that a start or a resumed pod waited for lent memory."
        )
        self._taken = ctx.metrics.counter(
            "kerf_agent_burst_pods_total", "Pods from which lent memory was taken, by what was done.", ("action",)
        )

    async def start(self) -> None:
        """Finds out which pods an earlier agent has left on the host, and lends what may be lent."""
        left = set()
        for uid in sorted({slice_.uid for slice_ in self._registry.slices if _bursts(slice_)}):
            if await self._is_on_host(uid):
                left |= {slice_.key for slice_ in self._registry.slices if slice_.uid == uid}
        self._registry.set_on_host(left)
        await self.adjust()

    async def _is_on_host(self, uid: str) -> bool:
        known = self._agent.store.find_by_pod(uid)
        if known is not None and goes_to_host(known.applied):
            return True
        try:
            return await self._suspender.is_on_host(uid)
        except (LockError, HostMemoryUnknown) as error:
            self._ctx.log.info("checkpoints_not_known", pod=uid, why=str(error), effect="it counts as running")
            return False

    async def adjust(self) -> None:
        """Lends what may be lent now, and lets pods on the host continue that have room again. GPUs on which memory is
        being taken back follow when that is done."""
        free = self._gpus() - self._busy
        async with self._alone_on(free):
            await self._adjust(free)

    async def run(self, every_s: float) -> None:
        while True:
            try:
                await self.adjust()
            except (OSError, ValueError) as error:
                self._ctx.log.error(
                    "bursts_not_adjusted", error=str(error), effect="limits stay as they are; the agent tries again"
                )
            await asyncio.sleep(every_s)

    async def make_room_to_start(self, slice_: Slice) -> None:
        """Waits until the memory of a slice that is about to start is there. Raises OSError with why it is not."""
        why = await self._make_room_on(slice_.uid, [part.uuid for part in slice_.parts])
        if why:
            raise OSError(why)

    async def started(self, slice_: Slice) -> None:
        """Lends a new slice what it may have, before its container runs."""
        mine = {part.uuid for part in slice_.parts if part.bursts}
        async with self._alone_on(mine):
            await self._adjust(mine)

    async def make_room_to_resume(self, ask: SuspendTask) -> str:
        """Waits until the memory of a pod that resumes is there. Returns why it is not; empty if it is, or if the pod
        does not resume.

        Of a pod that was checkpointed only its guarantee is waited for. It stays on the host until all that it had
        fits, like one from which lent memory was taken.
        """
        if ask.suspension is not None:
            return ""
        return await self._make_room_on(
            ask.uid, [uuid for live in self._agent.live() if live.uid == ask.uid for uuid in live.gpus]
        )

    async def make_room_to_grow(self, uid: str) -> str:
        """Waits until the memory of a pod that grows is there; its grant has the larger amounts. Returns why it is not;
        empty if it is."""
        return await self._make_room_on(
            uid, [uuid for live in self._agent.live() if live.uid == uid for uuid in live.gpus]
        )

    async def _make_room_on(self, uid: str, uuids: Collection[str]) -> str:
        """Returns why the memory that slices are guaranteed on these GPUs is not there; the pod that needs it, `uid`,
        counts already. It goes on if the caller is cancelled: the kubelet may give up and ask again."""
        concerned = self._gpus() & set(uuids)
        if not concerned:
            return ""
        return await asyncio.shield(asyncio.create_task(self._make_room(uid, concerned)))

    @contextlib.asynccontextmanager
    async def _alone_on(self, uuids: Collection[str]) -> AsyncIterator[None]:
        """Waits for all of these GPUs at once, so that it keeps none from others meanwhile."""
        while not self._busy.isdisjoint(uuids):
            await self._idle.wait()
        self._busy |= set(uuids)
        try:
            yield
        finally:
            self._busy -= set(uuids)
            self._idle.set()
            self._idle = asyncio.Event()

    # --- lending ------------------------------------------------------------------------------------------------

    async def _adjust(self, uuids: Collection[str]) -> None:
        if not uuids:
            return
        self._lower(uuids)
        seen = await self._look(uuids)
        loans, ready = {}, {}
        for uuid, now in seen.items():
            for key, limit_mib in bursts.raised(now.room, now.bursts).items():
                burst = now.bursts[key]
                if key in self._registry.on_host:
                    ready[key, uuid] = limit_mib
                    continue
                kept_mib = min(burst.held_mib, self._registry.loan(key, uuid).held_mib)
                loans[key, uuid] = Loan(limit_mib=limit_mib, held_mib=max(limit_mib, kept_mib))
        self._registry.lend(loans)
        await self._restore(ready, seen)
        await self._lent()

    def _lower(self, uuids: Collection[str]) -> None:
        """Lowers the limits of slices that have to give memory back, at once."""
        loans = {}
        for uuid in uuids:
            burst_of = {key: self._burst(slice_, part, 0) for key, (slice_, part) in self._on(uuid).items()}
            for key, limit_mib in bursts.lowered(self._room(uuid, ()), burst_of).items():
                loan = self._registry.loan(key, uuid)
                if limit_mib < loan.limit_mib and key not in self._registry.on_host:
                    loans[key, uuid] = msgspec.structs.replace(loan, limit_mib=limit_mib)
        self._registry.lend(loans)

    async def _restore(self, ready: Mapping[tuple[Key, str], int], seen: Collection[str]) -> None:
        """Lets the pods on the host continue for all of which there is room, on all their GPUs; those are `seen`."""
        waiting = {key[0] for key in self._registry.on_host}
        for uid in sorted(waiting):
            if self._agent.store.ordered_suspension(uid) is not None:
                continue  # placement resumes it
            mine = {which: mib for which, mib in ready.items() if which[0][0] == uid}
            theirs = {part.uuid for one in self._registry.slices if one.uid == uid for part in one.parts if part.bursts}
            if not all(mine.values()) or theirs.difference(seen):
                continue
            self._registry.lend({which: Loan(limit_mib=mib, held_mib=mib) for which, mib in mine.items()})
            why = await self._suspender.move_back(uid)
            if why:
                self._registry.lend(dict.fromkeys(mine, Loan()))
                self._ctx.log.warning("burst_pod_not_restored", pod=uid, why=why, effect="the agent tries again")
            else:
                self._ctx.log.info("burst_pod_restored", pod=uid)

    # --- taking back ----------------------------------------------------------------------------------------------

    async def _make_room(self, uid: str, uuids: Collection[str]) -> str:
        begun_ns = self._clock()
        self._lower(uuids)  # before its turn: pods have the time to free memory while another start has these GPUs
        async with self._alone_on(uuids):
            try:
                return await self._await_room(uid, uuids, begun_ns)
            finally:
                self._waited.observe((self._clock() - begun_ns) / 1e9)
                await self._adjust(uuids)

    async def _await_room(self, uid: str, uuids: Collection[str], begun_ns: int) -> str:
        patient_until_ns = begun_ns + int(self._config.burst_return_s * 1e9)
        taken = _Taken(needed_by=uid)
        while True:
            self._lower(uuids)  # for guarantees that have come meanwhile
            seen = await self._look(uuids)
            missing = set(uuids) - seen.keys()
            if missing:
                return f"GPU {min(missing)} does not answer, so the memory that other pods have there is unknown"
            short = {uuid: now for uuid, now in seen.items() if now.overdraft_mib > 0}
            if not short:
                return ""
            now_ns = self._clock()
            if now_ns >= patient_until_ns:
                dying = {pod for pod, killed_ns in taken.ended_ns.items() if now_ns < killed_ns + int(END_S * 1e9)}
                uuid, now = max(short.items(), key=lambda item: (item[1].without(dying), item[0]))
                victim = self._cheapest(now, {uid, *taken.ended_ns}) if now.without(dying) > 0 else None
                if victim is not None:
                    await self._take(victim, uuid, now.of_pod(victim), taken)
                    continue
                if not dying:
                    return (
                        f"{now.overdraft_mib} MiB that were lent on GPU {uuid} have not come back yet; the kubelet "
                        "tries again"
                    )
            await asyncio.sleep(POLL_S)

    def _cheapest(self, now: _Seen, without: Collection[str]) -> str | None:
        """The pod whose loss of the GPU costs least: of those that have more than they may use now, or, if there are
        none, of those that have more than their guarantee."""
        having = {key[0] for key in now.bursts if now.of_pod(key[0]) > 0} - set(without)
        beyond = {uid for uid in having if now.of_pod(uid) > now.allowed_mib(uid)}
        return min(beyond or having, key=self._price, default=None)

    def _price(self, uid: str) -> tuple[tuple[int, int], int, str]:
        """By rank, then by the GPU time that is lost: its part of the GPUs times its run time, or its restart-cost
        within the bound of `lost_s`."""
        mine = [slice_ for slice_ in self._registry.slices if slice_.uid == uid]
        sizes = self._sizes()
        milli = sum(
            max(part.compute_milli, part.memory_mib * WHOLE_GPU_MILLI // max(1, sizes.get(part.uuid, 0)))
            for slice_ in mine
            for part in slice_.parts
        )
        known = self._agent.store.find_by_pod(uid)
        cost_s = None if known is None else known.grant.grant.restart_cost_s
        run_s = max((self._registry.age_s(slice_.key) for slice_ in mine), default=0)
        return min(slice_.rank for slice_ in mine), milli * lost_s(cost_s, run_s), uid

    async def _take(self, victim: str, uuid: str, held_mib: int, taken: _Taken) -> None:
        """Takes the GPU from a pod that has not given back what was lent to it. One that has it in spite of a
        checkpoint is ended."""
        why = (
            f"it had {held_mib} MiB of GPU {uuid} beyond what it is guaranteed, by its limit "
            f"{names.ANNOTATION_GPU_MEMORY_LIMIT}, and did not free them within {self._config.burst_return_s:g} s when "
            "another pod needed its own guarantee there"
        )
        named = {"pod": self._named(victim), "needed_by": self._named(taken.needed_by)}
        if self._config.burst_return == "checkpoint":
            refused = "it has memory there after its checkpoint"
            if victim not in taken.moved:
                refused = await self._suspender.move_out(victim)
            if not refused:
                self._ctx.log.warning("burst_pod_on_host", **named, why=why)
                self._taken.add(1, "checkpointed")
                taken.moved.add(victim)
                return
            self._ctx.log.info("burst_pod_not_checkpointed", **named, why=refused, effect="it is ended")
        self._ctx.log.warning("burst_pod_ended", **named, why=why)
        self._taken.add(1, "ended")
        taken.ended_ns[victim] = self._clock()
        self._ender.kill(
            {victim: why},
            f"request by {names.RESOURCE_GPU_MEMORY} what the pod always needs, or let it free memory when an "
            "allocation fails",
        )

    def _named(self, uid: str) -> str:
        known = self._agent.store.find_by_pod(uid)
        return uid if known is None else f"{known.grant.namespace}/{known.grant.name}"

    # --- what is there ----------------------------------------------------------------------------------------------

    def _gpus(self) -> set[str]:
        """The GPUs with slices that may use more than they are guaranteed."""
        return {part.uuid for slice_ in self._registry.slices for part in slice_.parts if part.bursts}

    def _on(self, uuid: str) -> dict[Key, tuple[Slice, Part]]:
        return {
            slice_.key: (slice_, part)
            for slice_ in self._registry.slices
            for part in slice_.parts
            if part.uuid == uuid and part.bursts
        }

    def _sizes(self) -> dict[str, int]:
        inventory = self._agent.gpus.inventory
        return {} if inventory is None else {gpu.uuid: gpu.memory_mib for gpu in inventory.gpus}

    def _room(self, uuid: str, foreign: Iterable[Process], unseen_mib: int = 0) -> Room:
        gpu = self._agent.gpus.by_uuid.get(uuid)
        strangers_mib = sum(process.mib or 0 for process in foreign)
        return Room(
            total_mib=0 if gpu is None else gpu.memory_mib,
            guaranteed_mib=self._agent.store.guaranteed_mib(self._agent.node).get(uuid, 0),
            foreign_mib=max(strangers_mib, 0 if gpu is None else gpu.foreign_mib),
            reserve_mib=self._config.burst_reserve_mib,
            unseen_mib=unseen_mib,
        )

    def _burst(self, slice_: Slice, part: Part, counted_mib: int) -> Burst:
        """`counted_mib`: what its processes count, on the GPU or on the host."""
        guaranteed_mib, limit_mib = self._granted(slice_, part)
        beyond_mib, on_host = max(0, counted_mib - guaranteed_mib), slice_.key in self._registry.on_host
        waits = on_host and self._agent.store.ordered_suspension(slice_.uid) is None
        return Burst(
            rank=slice_.rank,
            limit_mib=max(0, limit_mib - guaranteed_mib),
            allowed_mib=0 if on_host else self._registry.loan(slice_.key, part.uuid).limit_mib,
            held_mib=0 if on_host else beyond_mib,
            needs_mib=max(1, beyond_mib) if waits else 0,
        )

    def _granted(self, slice_: Slice, part: Part) -> tuple[int, int]:
        """What a slice is guaranteed of a GPU, and its limit. A suspended pod has no limit beyond what it keeps."""
        known = self._agent.store.find_by_pod(slice_.uid)
        share = None if known is None else known.remaining(slice_.container)
        shares = () if share is None else share.gpus
        mine = next((gpu for gpu in shares if gpu.uuid == part.uuid), None)
        if mine is None:
            return part.memory_mib, part.memory_limit_mib
        suspended = known is not None and known.grant.suspension is not None
        return mine.memory_mib, 0 if suspended else max(mine.memory_mib, mine.memory_limit_mib)

    async def _look(self, uuids: Collection[str]) -> dict[str, _Seen]:
        """What is on these GPUs now, by the counters and by NVML. Those that do not answer are missing."""
        before = self._counted()
        running = await self._devices.running(uuids)
        after = self._counted()
        counted = {which: max(mib, after.get(which, 0)) for which, mib in before.items()}
        pods = {live.uid for live in self._agent.live()} | {slice_.uid for slice_ in self._registry.slices}
        pids: dict[tuple[str, str], frozenset[int]] = {}
        found = {}
        for uuid, processes in running.items():
            seen_mib: dict[str, int] = {}
            foreign = []
            for process in processes:
                of = self._devices.owner(process.pid)
                if of is None:
                    continue
                if of.pod_uid not in pods:
                    foreign.append(process)
                    continue
                pids[of.pod_uid, uuid] = pids.get((of.pod_uid, uuid), frozenset()) | {process.pid}
                seen_mib[of.pod_uid] = seen_mib.get(of.pod_uid, 0) + (process.mib or 0)
            burst_of = {
                key: self._burst(slice_, part, counted.get((key, uuid), 0))
                for key, (slice_, part) in self._on(uuid).items()
            }
            unseen = {
                uid: self._unseen_mib(uid, uuid, mib, burst_of, len(pids[uid, uuid]))
                for uid, mib in seen_mib.items()
                if any(key[0] == uid for key in burst_of)
            }
            room = self._room(uuid, foreign, sum(unseen.values()))
            found[uuid] = _Seen(room=room, bursts=burst_of, unseen_mib=unseen)
            self._ender.saw(f"bursts on {uuid}", {of: found_pids for of, found_pids in pids.items() if of[1] == uuid})
        return found

    def _unseen_mib(self, uid: str, uuid: str, seen_mib: int, burst_of: Mapping[Key, Burst], processes: int) -> int:
        known_mib = 0
        for slice_ in self._registry.slices:
            for part in slice_.parts:
                if slice_.uid == uid and part.uuid == uuid:
                    beyond = burst_of[slice_.key].held_mib if slice_.key in burst_of else 0
                    known_mib += self._granted(slice_, part)[0] + beyond
        return max(0, seen_mib - self._slack_mib() * min(processes, MAX_PROCESSES) - known_mib)

    def _counted(self) -> dict[tuple[Key, str], int]:
        """What the living processes of slices that burst count, in MiB; if it is unknown, all that may be there."""
        found = {}
        for slice_ in self._registry.slices:
            if not _bursts(slice_):
                continue
            try:
                held = self._registry.held_bytes(slice_.key)
            except OSError as error:
                self._ctx.log.warning("counters_not_read", pod=slice_.uid, container=slice_.container, error=str(error))
                held = {}
            for part in slice_.parts:
                loan = self._registry.loan(slice_.key, part.uuid)
                most_mib = part.memory_mib + max(loan.limit_mib, loan.held_mib)
                found[slice_.key, part.uuid] = -(-held[part.uuid] // MIB) if part.uuid in held else most_mib
        return found


def _bursts(slice_: Slice) -> bool:
    return any(part.bursts for part in slice_.parts)
