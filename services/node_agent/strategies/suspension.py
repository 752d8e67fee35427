"""Suspends and resumes a pod's slices: all containers of the pod or none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from weakref import WeakValueDictionary

import msgspec

from services.node_agent.messages import SuspendResult, SuspendTask
from services.node_agent.moves import Move
from services.node_agent.strategies.alone import Alone
from services.node_agent.strategies.base import Driver, Unadjustable
from services.node_agent.strategies.checkpointing import Checkpointer, PartialCheckpoint
from services.node_agent.strategies.hooks import Hooks
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.locks import LockError, NoWorker
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, slice_of
from services.node_agent.strategies.stopping import NotQuiet
from shared.contracts.node_commands import LiveSlice
from shared.model.strategies import StrategyName, registered
from shared.model.suspension import Suspension, goes_to_host
from shared.model.units import MIB, WHOLE_GPU_MILLI

Changed = list[tuple[LiveSlice, Override]]
"""The slices that were changed, each with its previous override."""


def override_for(suspension: Suspension | None, before: Override, gpus: Collection[str]) -> Override:
    """Returns the override of a slice under a suspension; None means resumed.

    `gpus` are the slice's GPUs. What the suspension does not concern is as in `before`.
    """
    if suspension is None:
        return msgspec.structs.replace(before, paused=False, compute_milli=WHOLE_GPU_MILLI, memory_mib={})
    # A slice that is throttled to 0 is paused.
    paused = suspension.action in ("pause", "checkpoint") or (
        suspension.action == "throttle" and not suspension.compute_milli
    )
    keeps_milli = suspension.compute_milli if suspension.action == "throttle" and not paused else WHOLE_GPU_MILLI
    # Other pods use the memory of a checkpointed pod, so a process that the pod starts meanwhile must not get any.
    keeps_mib = {"shrink": suspension.memory_mib, "checkpoint": 0}.get(suspension.action)
    memory_mib = {} if keeps_mib is None else dict.fromkeys(gpus, keeps_mib)
    return msgspec.structs.replace(before, paused=paused, compute_milli=keeps_milli, memory_mib=memory_mib)


_PAUSE = Suspension(action="pause", plan_id="")


class SliceGate:
    """Holds the launches of slices by their overrides, or lets them run in step, while their processes are stopped."""

    def __init__(
        self,
        registry: SliceRegistry,
        drivers: Mapping[StrategyName, Driver],
        slices: Changed,
        suspension: Suspension | None,
    ) -> None:
        """`slices`: each with the override that it had before. `suspension`: what holds it; None: a pause."""
        self._registry, self._drivers, self._slices = registry, drivers, slices
        self._suspension = suspension or _PAUSE

    def hold(self) -> None:
        for live, before in self._slices:
            self._adjust(live, override_for(self._suspension, before, live.gpus))

    def settle(self) -> None:
        for live, before in self._slices:
            self._adjust(live, override_for(_PAUSE, before, live.gpus))

    def run_in_step(self) -> None:
        for live, before in self._slices:
            self._adjust(live, msgspec.structs.replace(before, in_step=True))

    def as_before(self) -> None:
        """Passes over containers that have ended meanwhile."""
        for live, before in self._slices:
            with contextlib.suppress(KeyError):
                self._adjust(live, before)

    def _adjust(self, live: LiveSlice, override: Override) -> None:
        key = (live.uid, live.container)
        closed = self._registry.override_of(key).closed  # set by the time slicing, and may have changed
        self._drivers[live.strategy].adjust(key, msgspec.structs.replace(override, closed=closed))


class OnHostGate(SliceGate):
    """Holds them as slices whose memory is on the host."""

    def hold(self) -> None:
        self._registry.set_on_host(self._registry.on_host | self._keys)
        self.as_before()

    def settle(self) -> None:
        super().settle()
        self._registry.set_on_host(self._registry.on_host - self._keys)

    def run_in_step(self) -> None:
        super().run_in_step()
        self._registry.set_on_host(self._registry.on_host - self._keys)

    @property
    def _keys(self) -> set[Key]:
        return {(live.uid, live.container) for live, _ in self._slices}


def living_by_gpu(registry: SliceRegistry, live: Iterable[LiveSlice], uid: str) -> dict[str, int]:
    """The bytes that a pod's living processes have on each GPU by their own count. Raises OSError."""
    found: dict[str, int] = {}
    for each in live:
        held = registry.held_bytes((each.uid, each.container)) if each.uid == uid else {}
        for uuid, held_bytes in held.items():
            found[uuid] = found.get(uuid, 0) + held_bytes
    return found


class Suspender:
    """Suspends and resumes pods, side by side on different GPUs, and each in the order of the requests for it."""

    def __init__(
        self,
        registry: SliceRegistry,
        drivers: Mapping[StrategyName, Driver],
        live: Callable[[], tuple[LiveSlice, ...]],
        checkpointer: Checkpointer,
        memory: Callable[[str], Awaitable[Mapping[str, tuple[int, int]]]],
    ) -> None:
        """`memory` returns what NVML sees of a pod, by GPU: MiB, and the MiB of it that may be uncounted."""
        self.memory = memory
        self.registry, self.drivers, self._live, self._checkpointer = registry, drivers, live, checkpointer
        self.hooks: Hooks | None = None
        """Calls the programs that can sleep by themselves; None: none is called."""
        self._alone = Alone()
        self._in_order: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of each pod, held from its hook to its hook."""

    async def suspend(self, ask: SuspendTask) -> SuspendResult:
        """Suspends or resumes a pod. If it fails, the result says why, and the pod's slices are as they were before."""
        hook, told = ask.hook if goes_to_host(ask.suspension) else None, False
        # A program takes its time for its hook, and might take all of it: other pods do not wait for that.
        async with self._in_order.setdefault(ask.uid, asyncio.Lock()):
            if hook is not None and self.hooks is not None:
                told, why = await self.hooks.sleep(ask.uid, hook)
                if why:
                    return SuspendResult(ask, await self._woken(ask, why))
            async with self.alone_with((ask.uid,), ask.move):
                done = await self._suspend(ask)
            if done.reason and told:
                return msgspec.structs.replace(done, reason=await self._woken(ask, done.reason))
            if not done.reason and ask.suspension is None and goes_to_host(ask.previous):
                return msgspec.structs.replace(done, reason=await self._woken(ask, ""))
            return done

    @contextlib.asynccontextmanager
    async def alone_with(self, uids: Collection[str], move: Move | None = None) -> AsyncIterator[None]:
        """Nothing else changes the slices of these pods, or others on their GPUs. `move`: they may come to others."""
        places = [] if move is None else [*move.before.split(","), *move.after.split(",")]

        def around() -> set[str]:
            return {*uids, *places, *(uuid for live in self._live() if live.uid in uids for uuid in live.gpus)}

        while True:
            names = around()
            async with self._alone.on(names):
                if around() <= names:  # else a pod has come to other GPUs meanwhile
                    yield
                    return

    async def _woken(self, ask: SuspendTask, why: str) -> str:
        """Wakes a program up that is not suspended any more. Returns `why`, and why that failed."""
        awake = "" if self.hooks is None or ask.hook is None else await self.hooks.wake(ask.uid, ask.hook)
        return "; and ".join(filter(None, (why, awake)))

    async def _suspend(self, ask: SuspendTask) -> SuspendResult:
        mine = [live for live in self._live() if live.uid == ask.uid and live.container in ask.containers]
        keys = {(live.uid, live.container) for live in mine}
        was_checkpointed = goes_to_host(ask.previous)
        # The slices of a pod that comes back to other GPUs have those when its memory is there.
        changed, why = ([], "") if ask.move is not None else self._tell(mine, ask.suspension)
        if not why and ask.suspension is not None and ask.suspension.action == "shrink":
            why = self._beyond(mine, ask.suspension.memory_mib) or await self._beyond_by_nvml(
                mine, ask.suspension.memory_mib
            )
        try:
            if not why and goes_to_host(ask.suspension):
                gate = SliceGate(self.registry, self.drivers, changed, ask.suspension)
                why = await self._checkpointer.checkpoint(ask.uid, tuple(self._bytes(live) for live in mine), gate)
                if not why and self._bursts(ask.uid):
                    self.registry.set_on_host(self.registry.on_host | keys)
            elif not why and ask.move is not None:
                why = await self._checkpointer.restore(ask.uid, ask.move, lambda: self._moved(ask))
                return SuspendResult(ask, why)
            elif not why and was_checkpointed and not keys & self.registry.on_host:
                # What a pod on the host has beyond its guarantee may not fit now: `move_back` waits until it does.
                why = await self._checkpointer.restore(ask.uid)
        except PartialCheckpoint as error:
            return SuspendResult(ask, str(error), is_partial=True)
        if why:
            self._undo(changed)
        return SuspendResult(ask, why, on_host=ask.suspension is None and bool(keys & self.registry.on_host))

    def _moved(self, ask: SuspendTask) -> str:
        """Gives slices, whose processes have all memory on other GPUs and are still locked, those GPUs. Returns why
        not."""
        assert ask.after is not None  # noqa: S101 - told with the move
        try:
            for container in ask.containers:
                share = ask.after.containers[container]
                slice_ = slice_of(ask.uid, container, share, ask.after, share.gpus[0].node)
                before = self.registry.override_of(slice_.key)
                uuids = [part.uuid for part in slice_.parts]
                self.drivers[slice_.strategy].prepare(slice_, override_for(None, before, uuids))
        except (OSError, ValueError) as error:
            return f"its limits cannot be written: {error}"
        return ""

    async def move_out(self, uid: str) -> str:
        """Moves all GPU memory of a pod to the host, and pauses it. Returns why not; empty if it has moved.

        It is no suspension by placement: the pod keeps its grant.
        """
        async with self.alone_with((uid,)):
            mine = [live for live in self._live() if live.uid == uid]
            keys = {(live.uid, live.container) for live in mine}
            if not all(registered()[live.strategy].checkpoints for live in mine):
                return "a slice of it cannot be checkpointed"
            before = [(live, self.registry.override_of((live.uid, live.container))) for live in mine]
            gate = OnHostGate(self.registry, self.drivers, before, None)
            gate.hold()
            try:
                why = await self._checkpointer.checkpoint(uid, tuple(self._bytes(live) for live in mine), gate)
            except PartialCheckpoint as error:
                return str(error)  # the caller ends it
            if why:
                self.registry.set_on_host(self.registry.on_host - keys)
                gate.as_before()
            return why

    async def move_back(self, uid: str) -> str:
        """Moves a pod's memory back to its GPUs, and lets it run. Returns why some of it is still on the host."""
        async with self.alone_with((uid,)):
            why = await self._checkpointer.restore(uid)
            if not why:
                self.registry.set_on_host(key for key in self.registry.on_host if key[0] != uid)
            return why

    def living_bytes(self, uid: str) -> int:
        """The bytes that the pod's living processes have on GPUs by their own count. Raises OSError."""
        return sum(living_by_gpu(self.registry, self._live(), uid).values())

    def gate_of(self, uid: str) -> SliceGate:
        """Holds the launches of a pod as it is now."""
        mine = [live for live in self._live() if live.uid == uid]
        before = [(live, self.registry.override_of((live.uid, live.container))) for live in mine]
        return SliceGate(self.registry, self.drivers, before, None)

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer

    async def rehearse(
        self,
        uid: str,
        still: Callable[[], bool],
        move: Move | None = None,
        immovable: Callable[[str], None] = lambda why: None,  # noqa: ARG005
    ) -> str | None:
        """Checkpoints a pod and restores it at once. Returns why that failed; None: it was not tried. Raises NotQuiet:
        it could not be stopped at this time; NoWorker: the driver's locks cannot be used now, and it was not touched.

        `still` says whether it is to be tried, asked when nothing else changes the pod's slices. Nor is it while the
        host has no room, which means nothing for the program. After a failure a part of the pod may still be on the
        host (`is_on_host`). `move`: its programs may have to come back to other GPUs; `immovable` is called with why
        they cannot.
        """
        async with self.alone_with((uid,), move):
            if not still() or self.waits_on_host(uid):
                return None
            mine = [live for live in self._live() if live.uid == uid]
            before = [(live, self.registry.override_of((live.uid, live.container))) for live in mine]
            gate = SliceGate(self.registry, self.drivers, before, Suspension(action="checkpoint", plan_id=""))
            bytes_of = tuple(self._bytes(live) for live in mine)
            stopped: tuple[int, ...] = ()
            try:
                # Once, and before the pod stands still: it does not wait for other pods' copies with all of it locked.
                if await self._checkpointer.take_room(uid, bytes_of, waits=False):
                    return None
                gate.hold()
                stopped = await self._checkpointer.stop((uid,), gate)
                why = await self._checkpointer.checkpoint(uid, bytes_of, gate, has_room=True)
                if why or move is None:
                    return why or await self._checkpointer.restore(uid)
                why = await self._checkpointer.why_immovable(uid) or await self._checkpointer.restore(uid, move)
                if why:
                    immovable(why)
                return await self._checkpointer.restore(uid)
            except NotQuiet:
                raise
            except NoWorker as error:
                if not stopped:
                    raise
                return str(error)  # a part of the pod may be on the host
            except (PartialCheckpoint, LockError, HostMemoryUnknown) as error:
                return str(error)
            except KeyError:
                return None  # one of its containers has ended
            except (OSError, ValueError) as error:
                return f"its slices could not be held: {error}"
            finally:
                self._checkpointer.give_room(uid)
                try:
                    # A checkpoint that fails before its first copy leaves locked what was locked before it. What has
                    # been unlocked, or is on the host, stays as it is. After an error the worker undoes its locks.
                    with contextlib.suppress(LockError):
                        await self._checkpointer.let_go(stopped)
                finally:
                    gate.as_before()

    def waits_on_host(self, uid: str) -> bool:
        """Whether the pod waits on the host for memory beyond its guarantee: it comes back when there is room."""
        return any(key[0] == uid for key in self.registry.on_host)

    async def is_on_host(self, uid: str) -> bool:
        """Whether the driver has a checkpoint of a process of the pod. Raises LockError or HostMemoryUnknown."""
        return await self._checkpointer.is_on_host(uid)

    def _bursts(self, uid: str) -> bool:
        """Whether the pod may have more memory than it is guaranteed."""
        return any(part.bursts for slice_ in self.registry.slices if slice_.uid == uid for part in slice_.parts)

    def _tell(self, slices: list[LiveSlice], suspension: Suspension | None) -> tuple[Changed, str]:
        changed: Changed = []
        try:
            for live in slices:
                key = (live.uid, live.container)
                before = self.registry.override_of(key)
                self.drivers[live.strategy].adjust(key, override_for(suspension, before, live.gpus))
                changed.append((live, before))
        except KeyError:
            why = "the agent could not take over one of the pod's slices; delete the pod to have it placed again"
        except (Unadjustable, OSError, ValueError) as error:
            why = str(error)
        else:
            return changed, ""
        self._undo(changed)
        return [], why

    def _undo(self, changed: Changed) -> None:
        SliceGate(self.registry, self.drivers, changed, None).as_before()

    def _beyond(self, slices: list[LiveSlice], keeps_mib: int) -> str:
        """Returns why these slices cannot be shrunk: they have already allocated more. Empty if they can.

        The new limit is written before the counters are read, and an interposer checks the limit again after it has
        counted an allocation. So no allocation slips in between.
        """
        for live in slices:
            found = self.registry.read((live.uid, live.container))
            if found is None or found.damage:
                return "the memory that one of its slices has allocated is unknown"
            for gpu in found.gpus:
                if gpu.held_bytes > keeps_mib * MIB:
                    return (
                        f"container {live.container} has allocated {-(-gpu.held_bytes // MIB)} MiB on a GPU, "
                        f"more than the {keeps_mib} MiB that it would keep"
                    )
        return ""

    async def _beyond_by_nvml(self, slices: list[LiveSlice], keeps_mib: int) -> str:
        """Returns why the pod cannot be shrunk by what NVML sees: its containers can forge their own counters."""
        seen = await self.memory(slices[0].uid) if slices else {}
        for uuid in sorted({uuid for live in slices for uuid in live.gpus}):
            if uuid not in seen:
                return f"GPU {uuid} does not answer, so the memory that the pod has there is unknown"
            (mib, uncounted_mib), containers = seen[uuid], sum(uuid in live.gpus for live in slices)
            if mib > keeps_mib * containers + uncounted_mib:
                return (
                    f"the pod holds {mib} MiB on GPU {uuid} according to NVML, more than the "
                    f"{keeps_mib * containers} MiB that it would keep and {uncounted_mib} MiB that may be uncounted"
                )
        return ""

    def _bytes(self, live: LiveSlice) -> int:
        """Returns the bytes that a container has on GPUs, by its own count and at most its limit.

        A container that forges a low count harms only itself: the kernel kills it when its memory limit is exceeded.
        """
        found = self.registry.read((live.uid, live.container))
        most = sum(self.registry.allowed_mib(live, uuid) for uuid in live.gpus) * MIB
        return most if found is None or found.damage else min(most, sum(gpu.held_bytes for gpu in found.gpus))
