"""What the page asks of the rest of the service: figures, stories, what-if, cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from services.metrics.page.fleet import Fleet
from services.metrics.page.sign_in import Denied
from shared.bus.port import Bus, BusError
from shared.contracts import queries
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.metrics_queries import CostAnswer, TraceAnswer
from shared.contracts.queries import ExplainAnswer, StatusAnswer, WhatIfQuery, WhyQuery

ANSWER_S = 20.0


class PageAnswers:
    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        *,
        status: Callable[[], StatusAnswer],
        trace: Callable[[str, str], TraceAnswer],
        cost: Callable[[], Awaitable[CostAnswer]],
        now: Callable[[], float],
    ) -> None:
        self._bus, self._fleet = bus, fleet
        self._status, self._trace, self._cost, self._now = status, trace, cost, now

    def overview(self) -> dict[str, Any]:
        """Without what changes all the time, so that a quiet cluster has nothing new to tell."""
        shown = msgspec.structs.asdict(self._status())
        for field in ("waiting", "waiting_uids"):
            shown.pop(field)
        shown["oldest_wait_s"] = shown["oldest_wait_s"] // 10 * 10
        return shown

    def now_s(self) -> float:
        return self._now()

    async def story(self, namespace: str, name: str) -> dict[str, Any]:
        why, error = None, ""
        try:
            query = WhyQuery(namespace=namespace, name=name, max_nodes=5)
            answer = decode(
                await self._bus.request(queries.WHY.subject, encode(query), timeout_s=ANSWER_S), ExplainAnswer
            )
            why, error = answer.explanation, answer.error
        except (BusError, ContractError) as failed:
            error = f"placement does not answer: {failed}"
        trace = self._trace(namespace, name)
        return {
            "why": why,
            "why_error": error,
            "slices": self._fleet.slices_of(namespace, name),
            "trace": trace,
            "trace_error": trace.error,
        }

    async def what_if(self, query: WhatIfQuery) -> Any:
        answer = decode(
            await self._bus.request(queries.WHAT_IF.subject, encode(query), timeout_s=ANSWER_S), ExplainAnswer
        )
        if answer.error:
            raise Denied(answer.error, 400)
        return answer

    async def cost(self) -> CostAnswer:
        answer = await self._cost()
        if answer.error:
            raise Denied(answer.error, 500)
        return answer
