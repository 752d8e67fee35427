"""Slices give up for others and take back, all containers of a pod or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec

from services.node_agent.messages import Ask, Done
from services.node_agent.strategies.base import Driver, Unadjustable
from services.node_agent.strategies.checkpointing import Checkpointer, PartialCheckpoint
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key
from shared.contracts.node_commands import LiveSlice
from shared.model.gpu import Strategy
from shared.model.suspension import Suspension
from shared.model.units import MIB, WHOLE_GPU_MILLI

Changed = list[tuple[LiveSlice, Override]]
"""Slices that were told otherwise, with what they were told before."""


def override_for(suspension: Suspension | None, before: Override, gpus: Collection[str]) -> Override:
    """What a slice of these GPUs is told that is suspended so; the rest is as before."""
    if suspension is None:
        return msgspec.structs.replace(before, paused=False, compute_milli=WHOLE_GPU_MILLI, memory_mib={})
    # Who is throttled to nothing stands still, as who is paused does.
    paused = suspension.action in ("pause", "checkpoint") or (
        suspension.action == "throttle" and not suspension.compute_milli
    )
    keeps_milli = suspension.compute_milli if suspension.action == "throttle" and not paused else WHOLE_GPU_MILLI
    # Of who is checkpointed others have all of the memory: a process that starts meanwhile finds none.
    keeps_mib = {"shrink": suspension.memory_mib, "checkpoint": 0}.get(suspension.action)
    memory_mib = {} if keeps_mib is None else dict.fromkeys(gpus, keeps_mib)
    return msgspec.structs.replace(before, paused=paused, compute_milli=keeps_milli, memory_mib=memory_mib)


class Suspender:
    """One pod at a time, in the order in which they were asked."""

    def __init__(
        self,
        registry: SliceRegistry,
        drivers: Mapping[Strategy, Driver],
        live: Callable[[], tuple[LiveSlice, ...]],
        checkpointer: Checkpointer,
    ) -> None:
        self._registry, self._drivers, self._live, self._checkpointer = registry, drivers, live, checkpointer
        self._serial = asyncio.Lock()

    async def suspend(self, ask: Ask) -> Done:
        """The slices have given up what it says, or taken it back; or why not, and all is as it was before."""
        async with self._serial:
            mine = [live for live in self._live() if live.uid == ask.uid and live.container in ask.containers]
            changed, why = self._tell(mine, ask.suspension)
            if not why and ask.suspension is not None and ask.suspension.action == "shrink":
                why = self._beyond(mine, ask.suspension.memory_mib)
            try:
                if not why and ask.suspension is not None and ask.suspension.action == "checkpoint":
                    why = await self._checkpointer.checkpoint(ask.uid, tuple(self._bytes(live) for live in mine))
                elif not why and ask.was is not None and ask.was.action == "checkpoint":
                    why = await self._checkpointer.restore(ask.uid)
            except PartialCheckpoint as error:
                return Done(ask, str(error), torn=True)
            if why:
                self._undo(changed)
            return Done(ask, why)

    def _tell(self, slices: list[LiveSlice], suspension: Suspension | None) -> tuple[Changed, str]:
        changed: Changed = []
        try:
            for live in slices:
                key = (live.uid, live.container)
                before = self._registry.override_of(key)
                self._drivers[live.strategy].adjust(key, override_for(suspension, before, live.gpus))
                changed.append((live, before))
        except KeyError:
            why = "the page of one of its slices could not be taken up; delete the pod to have it placed anew"
        except (Unadjustable, OSError, ValueError) as error:
            why = str(error)
        else:
            return changed, ""
        self._undo(changed)
        return [], why

    def _undo(self, changed: Changed) -> None:
        for live, before in reversed(changed):
            key: Key = (live.uid, live.container)
            closed = self._registry.override_of(key).closed  # somebody else's word, and it may have changed
            self._drivers[live.strategy].adjust(key, msgspec.structs.replace(before, closed=closed))

    def _beyond(self, slices: list[LiveSlice], keeps_mib: int) -> str:
        """Why these are not shrunk: what they have allocated already. They have been told their new limit before they are looked
        at, and look at it again when they have counted an allocation, so nothing slips in between."""
        for live in slices:
            found = self._registry.read((live.uid, live.container))
            if found is None or found.damage:
                return "what one of its slices has allocated cannot be seen"
            for gpu in found.gpus:
                if gpu.account_bytes > keeps_mib * MIB:
                    return f"container {live.container} has {-(-gpu.account_bytes // MIB)} MiB of a GPU allocated, and would be left {keeps_mib}"
        return ""

    def _bytes(self, live: LiveSlice) -> int:
        """What a container has on GPUs by its own count, which is at most its limit: if it lies, it is itself that is killed."""
        found = self._registry.read((live.uid, live.container))
        most = sum(mib for mib, _ in live.gpus.values()) * MIB
        return most if found is None or found.damage else min(most, sum(gpu.account_bytes for gpu in found.gpus))
