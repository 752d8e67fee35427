"""Waits for the grant of a pod when one of its containers is about to start.

The kubelet may see a pod bound before placement has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.node_agent import messages as m
from shared.bus.port import BusError
from shared.bus.tasks import end
from shared.contracts import queries
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.queries import GrantAnswer, GrantQuery
from shared.service import Context

Found = TypeVar("Found")

WAIT_S = 5.0
"""The kubelet prepares a ResourceClaim that was refused again only after 60 to 90 s. It waits 30 s for an answer."""
ASK_S = 0.1
"""The first wait between two queries to placement; each further one is twice as long."""


class GrantWait:
    def __init__(self, ctx: Context, node: str, tell: Callable[[m.Input], Awaitable[object]]) -> None:
        """`tell` passes an input to the core."""
        self._ctx, self._node, self._tell = ctx, node, tell
        self._came = asyncio.Event()
        """Set, and replaced by a new one, when a grant or a sync has arrived."""

    def came(self) -> None:
        """A grant or a sync has been handled."""
        self._came.set()
        self._came = asyncio.Event()

    async def until(self, find: Callable[[], Found | None], *, uid: str = "", claim: str = "") -> Found | None:
        """Waits until `find` finds the grant; None after WAIT_S.

        Placement sends it once it has seen the pod bound. It is asked too, by the pod's UID or the claim's: what it
        sent may have been lost. While it does not answer, what it sends is found all the same. Raises OSError if the
        checkpoint cannot be written.
        """
        query, now = GrantQuery(uid=uid, node=self._node, claim=claim), asyncio.get_running_loop().time
        until, pause_s = now() + WAIT_S, ASK_S
        asked = asyncio.create_task(self._fetch(query))
        try:
            while True:
                left_s = until - now()
                if (found := await self._arrives(find, min(pause_s, left_s))) is not None:
                    return found
                why = asked.result() if asked.done() else "placement has not answered"
                if left_s <= 0:
                    self._ctx.log.warning("grant_not_fetched", uid=uid, claim=claim, error=why)
                    return None
                if asked.done():
                    asked = asyncio.create_task(self._fetch(query))
                pause_s *= 2
        finally:
            await end(asked)

    async def _arrives(self, find: Callable[[], Found | None], within_s: float) -> Found | None:
        """Looks now, and whenever a grant has arrived. Those of other pods are no reason to ask again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (found := find()) is None:
                    await self._came.wait()
                return found
        return find()

    async def _fetch(self, query: GrantQuery) -> str:
        """Asks placement once. Returns why there is no grant, or ""."""
        try:
            answer = decode(await self._ctx.bus.request(queries.GRANT.subject, encode(query)), GrantAnswer)
        except (BusError, ContractError) as error:
            return str(error)
        if answer.found is not None:
            await self._tell(m.GrantReceived(answer.found))
        return answer.error
