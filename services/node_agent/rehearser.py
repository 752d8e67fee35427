"""Tries once, in the first minute of each pod that takes turns, whether its programs can be checkpointed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.node_agent import messages as m
from services.node_agent import moving, rehearsals
from services.node_agent.core import Agent
from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.locks import LockError, NoWorker
from services.node_agent.strategies.stopping import NotQuiet
from services.node_agent.strategies.suspension import Suspender
from shared.model.suspension import goes_to_host
from shared.model.units import MIB
from shared.service import Context

LOOK_S = 2.0
MOST_MIB = 32 * 1024
"""A pod that has more on its GPUs by then is not rehearsed: copies of so much are left to its first turn."""
MOST_DOUBLED = 6
"""Where the driver's locks cannot be used a pod is tried ever more rarely: each time a process is started for it."""
MOST_TRIES = 3
"""A pod that could not be stopped so often, each time after twice as long, counts as one that cannot be."""


class Rehearser:
    def __init__(
        self,
        ctx: Context,
        agent: Agent,
        suspender: Suspender,
        *,
        settled_s: float,
        tell: Callable[[m.Input], Awaitable[object]],
    ) -> None:
        """`settled_s`: its processes have memory on GPUs for so long before a pod is rehearsed. `tell` passes an input
        to the core."""
        self._settled_s = settled_s
        self._ctx, self._agent, self._suspender, self._tell = ctx, agent, suspender, tell
        self._since_s: dict[str, float] = {}
        """When the processes of a pod, by grant id, were first seen with memory on a GPU."""
        self._tries: dict[str, int] = {}
        """How often a pod, by grant id, could not be stopped."""
        self._misses: dict[str, int] = {}
        """How often the driver's locks could not be used for a pod, by grant id."""
        self._left: set[str] = set()
        """The pods of which a rehearsal has left something on the host."""

    async def run(self) -> None:
        """Begins with what an agent that ended during a rehearsal has left."""
        for known in self._agent.store.known:
            if rehearsals.is_due(known) and not self._suspender.waits_on_host(known.grant.uid):
                await self._look_at_host(known.grant.uid)
        while True:
            await self.look(asyncio.get_running_loop().time())
            await asyncio.sleep(min(LOOK_S, self._settled_s))

    async def look(self, now_s: float) -> None:
        """Rehearses the pods that are due, and restores what could not be restored before."""
        for uid in tuple(self._left):
            ordered = self._agent.store.find_by_pod(uid)
            elsewhere = ordered is None or goes_to_host(ordered.grant.suspension) or self._suspender.waits_on_host(uid)
            if elsewhere or not await self._suspender.move_back(uid):
                self._left.discard(uid)
        due = {known.grant_id: known for known in self._agent.store.known if rehearsals.is_due(known)}
        self._since_s = {grant_id: since for grant_id, since in self._since_s.items() if grant_id in due}
        self._tries = {grant_id: tries for grant_id, tries in self._tries.items() if grant_id in due}
        self._misses = {grant_id: misses for grant_id, misses in self._misses.items() if grant_id in due}
        for grant_id, known in due.items():
            held = self._suspender.living_bytes(known.grant.uid)
            if not held:
                self._since_s.pop(grant_id, None)
                continue
            if now_s - self._since_s.setdefault(grant_id, now_s) < self._settled_s or held > MOST_MIB * MIB:
                continue
            immovable: list[str] = []
            try:
                why = await self._suspender.rehearse(
                    known.grant.uid,
                    lambda known=known: self._agent.store.get(known.grant_id) is known,  # type: ignore[misc]
                    moving.rehearsal(known, self._agent.node, self._agent.gpus.by_uuid),
                    immovable.append,
                )
            except NoWorker as error:
                misses = self._misses[grant_id] = min(MOST_DOUBLED, self._misses.get(grant_id, 0) + 1)
                if misses == 1:
                    self._ctx.log.warning("not_rehearsed", pod=grant_id, why=str(error), effect="it is tried again")
                why = None
            except NotQuiet as error:
                # Programs compile and tune when they begin: a kernel of seconds then says nothing of their later ones.
                tries = self._tries[grant_id] = self._tries.get(grant_id, 0) + 1
                why = str(error) if tries >= MOST_TRIES else None
            else:
                self._misses.pop(grant_id, None)
            if why is None:
                # Something else has been ordered meanwhile, the host has no room, it is not quiet, or the locks fail.
                again = self._tries.get(grant_id, 0) + self._misses.get(grant_id, 0)
                self._since_s[grant_id] = now_s + self._settled_s * (2**again - 1)
                continue
            if why:
                await self._look_at_host(known.grant.uid)
            self._ctx.log.info("rehearsed", pod=f"{known.grant.namespace}/{known.grant.name}", why=why)
            await self._tell(m.Rehearsed(grant_id, why, "" if why else "; ".join(immovable)))

    async def _look_at_host(self, uid: str) -> None:
        try:
            if await self._suspender.is_on_host(uid):
                self._left.add(uid)
        except (LockError, HostMemoryUnknown) as error:
            self._left.add(uid)  # to restore what is not there does nothing
            self._ctx.log.warning("checkpoints_not_known", pod=uid, why=str(error), effect="the agent tries to restore")
