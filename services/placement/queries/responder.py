"""Answers one query on the bus, from the leader's book."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator

import structlog

from services.placement.core import Core
from services.placement.explain.steps import in_slices
from services.placement.queries import Answers, Moment, questions, reader, remote_peers
from shared.bus.port import Bus, Incoming
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.queries import STATUS, ExplainAnswer
from shared.contracts.query import Query

log = structlog.get_logger("placement")

ANSWERS: Answers = questions.ANSWERS | reader.ANSWERS | remote_peers.ANSWERS


def responder(core: Core, bus: Bus, query: Query) -> Callable[[Incoming], Awaitable[None]]:
    """The handler of this query's subject. Its asker always gets an answer or an error."""
    answer = ANSWERS[query.name]
    logged: tuple[str, ...] = ()

    def log_overbooked() -> None:
        """Once, as long as the GPUs are the same. It may last for less time than it takes to look by hand."""
        nonlocal logged
        overbooked = core.audit.overbooked
        if overbooked and overbooked != logged:
            log.error("gpus_overbooked", term=core.term, grants=core.audit.grants_on(overbooked))
        logged = overbooked

    async def handler(incoming: Incoming) -> None:
        try:
            asked = decode(incoming.payload, query.question)
            reply = answer(core, asked, Moment(time.monotonic(), time.time()))
            if isinstance(reply, Generator):
                reply = await in_slices(reply)
            if query is STATUS:
                log_overbooked()
        except ContractError as error:
            reply = ExplainAnswer(error=str(error))  # every answer has an `error`; this has nothing else
        except Exception as error:
            failure = f"placement failed on {query.name}: {error!r}; its log has the traceback (bus_handler_failed)"
            await bus.respond(incoming, encode(ExplainAnswer(error=failure)))
            raise
        await bus.respond(incoming, encode(reply))

    return handler
