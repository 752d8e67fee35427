"""Gives the slices of a running pod other amounts: all containers of the pod, or none.

Growing waits until the memory is there, as a start does: memory that was lent to other slices comes back first.
Shrinking looks at what the program has, writes the lower limits, and looks again: an interposer checks the limit again
after it has counted an allocation, so none slips in between. If the program has more by then, the limits are as before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping

from services.node_agent import messages as m
from services.node_agent import moving
from services.node_agent.bursts import Bursts
from services.node_agent.core import Agent
from services.node_agent.strategies.slices import Key, Slice, slice_of
from services.node_agent.strategies.suspension import Suspender
from shared.model.grant import Grant
from shared.model.suspension import Suspension, goes_to_host
from shared.model.units import MIB
from shared.service import Context


async def carry_out(resizer: SliceResizer | None, order: m.ResizeSlices) -> m.ResizeDone:
    """Resizes the slices. `resizer` None: the agent hands nothing over."""
    if resizer is None:
        return m.ResizeDone(order.request, order.task, "this agent hands nothing over")
    return await resizer.resize(order)


def as_it_is_now(
    agent: Agent, order: m.HandOver, slice_: Slice, grant: Grant | None
) -> tuple[Slice, Suspension | None]:
    """The slice of a container that starts, with amounts and suspension of this moment: its pod may have been resized,
    suspended or resumed since the order. Raises ValueError where it must not start any more; the kubelet tries
    again."""
    known = agent.store.get(order.grant_id)
    if known is None or known.releasing:
        raise ValueError("the pod's grant is being released, so none of its containers may start")
    if goes_to_host(known.grant.suspension):
        raise ValueError("the pod was suspended by checkpoint meanwhile; the kubelet tries again")
    if (why := agent.resizes.start_refusal(order.grant_id) or moving.start_refusal(known)) is not None:
        raise ValueError(why[1])
    share = known.share(order.container)
    if share is not None and share.served != order.share:  # what starts here of a served slice is an ordinary one
        slice_ = slice_of(order.uid, order.container, share.served, grant, agent.node)
    return slice_, known.grant.suspension


class SliceResizer:
    def __init__(
        self,
        ctx: Context,
        agent: Agent,
        suspender: Suspender,
        bursts: Bursts,
        prepared: MutableMapping[Key, Slice],
        *,
        resized: Callable[[], Awaitable[None]],
    ) -> None:
        """`prepared`: the slices without a control block. `resized` is called after limits were changed."""
        self._ctx, self._agent, self._suspender, self._bursts = ctx, agent, suspender, bursts
        self._prepared, self._resized = prepared, resized

    async def resize(self, order: m.ResizeSlices) -> m.ResizeDone:
        """Returns what the slices have done."""
        task, undone = order.task, ""
        why = "" if task.shrinks else await self._bursts.make_room_to_grow(task.uid)
        if not why:
            async with self._suspender.alone_with((task.uid,)):
                # A program that runs into a limit which is taken back at once would fail for nothing.
                why = await self._too_much(task)
                if not why:
                    why = self._prepare(task, task.after) or await self._too_much(task)
                    undone = self._prepare(task, task.before) if why else ""
            await self._resized()
        self._ctx.log.info("slices_not_resized" if why else "slices_resized", pod=task.uid, why=why, undone=undone)
        return m.ResizeDone(order.request, task, why, is_partial=bool(undone))

    async def _too_much(self, task: m.ResizeTask) -> str:
        """Returns why the slices cannot be shrunk: the program has more. Empty if they can, or are not to."""
        return (self._beyond(task) or await self._beyond_by_nvml(task)) if task.shrinks else ""

    def _prepare(self, task: m.ResizeTask, grant: Grant) -> str:
        """Gives the containers that still run these amounts. Returns why that is not possible."""
        for container in task.containers:
            if self._agent.store.lease(task.uid, container) is None:
                continue
            share = grant.containers[container]
            driver, slice_ = (
                self._suspender.drivers.get(share.strategy),
                slice_of(task.uid, container, share, grant, self._agent.node),
            )
            try:
                if driver is not None:
                    driver.prepare(slice_)
            except (OSError, ValueError) as error:
                return f"the limits of container {container} cannot be written: {error}"
            if slice_.key in self._prepared:
                self._prepared[slice_.key] = slice_
        return ""

    def _beyond(self, task: m.ResizeTask) -> str:
        """Returns why a container cannot be shrunk: it has allocated more. Empty if it can."""
        for container, most_mib in _shrunk_mib(task).items():
            key = (task.uid, container)
            if key in self._prepared or not most_mib:
                continue
            found = self._suspender.registry.read(key)
            if found is None or found.damage:
                return f"the memory that container {container} has allocated is unknown"
            for gpu in found.gpus:
                if gpu.uuid in most_mib and gpu.held_bytes > most_mib[gpu.uuid] * MIB:
                    return (
                        f"container {container} has allocated {-(-gpu.held_bytes // MIB)} MiB on GPU {gpu.uuid}, "
                        f"more than the {most_mib[gpu.uuid]} MiB that it would have"
                    )
        return ""

    async def _beyond_by_nvml(self, task: m.ResizeTask) -> str:
        """The same by what NVML sees: containers can forge their own counters, and some have none."""
        shrunk = {uuid for most_mib in _shrunk_mib(task).values() for uuid in most_mib}
        if not shrunk:
            return ""
        seen = await self._suspender.memory(task.uid)
        for uuid in sorted(shrunk):
            if uuid not in seen:
                return f"GPU {uuid} does not answer, so the memory that the pod has there is unknown"
            mib, uncounted_mib = seen[uuid]
            most_mib = sum(
                share.memory_mib
                for container in task.containers
                for share in task.after.containers[container].gpus
                if share.uuid == uuid
            )
            if mib > most_mib + uncounted_mib:
                return (
                    f"the pod holds {mib} MiB on GPU {uuid} according to NVML, more than the {most_mib} MiB that it "
                    f"would have and {uncounted_mib} MiB that may be uncounted"
                )
        return ""


def _shrunk_mib(task: m.ResizeTask) -> dict[str, dict[str, int]]:
    """The new memory in MiB by container and GPU, where it is less than before."""
    return {
        container: {
            after.uuid: after.memory_mib
            for before, after in zip(
                task.before.containers[container].gpus, task.after.containers[container].gpus, strict=True
            )
            if after.memory_mib < before.memory_mib
        }
        for container in task.containers
    }
