"""A watcher that no longer reaches the API server leaves the work to another one that does.

It is connected to NATS all the same: its feed would still say that it lives, and of the orders it would take its share.
Where no other watcher reaches the API server either, all stay: an outage is not the fault of one of them.

Of two, not both can leave. One that answers serves and has just reached the API server, so it does not leave for
CUT_OFF_S from then on; one that leaves has had such an answer, and has looked once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from shared.bus.port import Bus, BusError, Incoming, level_of
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.facts import ReachAnswer, ReachQuery

State = Literal["reads", "serves", "left", "ends"]
"""It reads what exists, takes orders and questions, has left them to another watcher, or drains."""

LOOK_S = 2.0
CUT_OFF_S = 5.0
"""No pod is seen, and none is bound, while it is cut off and has not left: that takes LOOK_S, twice the time of a look
that fails, and another watcher's answer; 8 s."""
LOOKS_TO_RETURN = 2
"""So many good looks in a row bring one back that has left: each return is a list, and a snapshot for its readers."""
ANSWERS_S = 4.0
"""How long other watchers have to answer: each of them asks the API server first."""


class Reach:
    """`reaches`: whether the API server is reached now, and pods and nodes are followed. It does not raise. `serve`
    raises TimeoutError where not all could be read: it is tried again."""

    def __init__(self, bus: Bus, epoch: str, reaches: Callable[[], Awaitable[bool]], log: Any) -> None:
        self._bus, self._epoch, self._reaches, self._log = bus, epoch, reaches, log
        self.state: State = "reads"
        self._reached_at = 0.0

    async def answer(self, incoming: Incoming) -> None:
        """Another watcher asks. Only one that serves and reaches the API server answers."""
        try:
            asked = decode(incoming.payload, ReachQuery)
        except ContractError as error:
            self._log.error("reach_query_malformed", error=str(error))
            return
        reaches = asked.epoch != self._epoch and self.state == "serves" and await self._looks()
        if reaches and self.state == "serves":  # still: it may have left while it looked
            await self._bus.respond(incoming, encode(ReachAnswer(epoch=self._epoch)))

    async def run(self, serve: Callable[[], Awaitable[None]], leave: Callable[[], Awaitable[None]]) -> None:
        """Calls `leave` when another one is to do the work, and `serve` when this one can again; until cancelled."""
        self._reached_at = asyncio.get_running_loop().time()
        in_a_row = 0
        while True:
            await asyncio.sleep(LOOK_S)
            if await self._looks():
                in_a_row += 1
                if self.state == "left" and in_a_row >= LOOKS_TO_RETURN:
                    await self._return(serve)
                continue
            in_a_row = 0
            if self._is_cut_off() and (other := await self._another()) and await self._is_still_cut_off():
                self._log.error("watcher_cut_off", serves_instead=other)
                await leave()

    async def _return(self, serve: Callable[[], Awaitable[None]]) -> None:
        try:
            await serve()
        except TimeoutError:
            self._log.warning("watcher_not_back", why="the API server has not said in time what there is now")
        else:
            self._log.info("watcher_serves_again", epoch=self._epoch)

    async def _looks(self) -> bool:
        reached = await self._reaches()
        if reached:
            self._reached_at = asyncio.get_running_loop().time()
        return reached

    def _is_cut_off(self) -> bool:
        return self.state == "serves" and asyncio.get_running_loop().time() - self._reached_at >= CUT_OFF_S

    async def _is_still_cut_off(self) -> bool:
        """The API server may have come back meanwhile, and this watcher may have said so to the other one."""
        return self._is_cut_off() and not await self._looks() and self._is_cut_off()

    async def _another(self) -> str:
        """The epoch of a watcher that reaches the API server; empty: none has said so."""
        query = encode(ReachQuery(epoch=self._epoch))
        try:
            answers = await self._bus.survey(subjects.QUERY_REACH, query, within_s=ANSWERS_S, enough=bool)
            return next((decode(answer, ReachAnswer).epoch for answer in answers), "")
        except (BusError, ContractError) as error:
            level = level_of(error) if isinstance(error, BusError) else "warning"
            getattr(self._log, level)("reach_not_asked", error=str(error))
            return ""
