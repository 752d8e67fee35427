"""KERF_LOG for one leader session: runs the steps of `log_protocol` on the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from services.placement.leader import log_protocol as p
from shared.bus.port import Bus, BusError
from shared.contracts import subjects
from shared.contracts.log import LogMark

log = structlog.get_logger("placement.log")

PAUSE_S = 0.2

T = TypeVar("T")
Failed = Callable[[str, str], None]


class LogClient:
    """Every method raises what the method of this name in LogProtocol raises, and BusError when the bus fails
    otherwise."""

    def __init__(self, bus: Bus, holder: str, session: str, failed: Failed = lambda *_: None) -> None:
        """`failed` is called with the kind of every request that the bus refused or did not answer, and the error's."""
        self._bus, self._failed = bus, failed
        self._protocol = p.LogProtocol(holder, session)

    @property
    def term(self) -> int:
        return self._protocol.term

    @property
    def session(self) -> str:
        return self._protocol.session

    @property
    def found_mark(self) -> LogMark | None:
        return self._protocol.found_mark

    async def take_term(self) -> int:
        return await self._run(self._protocol.take_term())

    async def renew_term(self) -> int:
        return await self._run(self._protocol.renew_term())

    async def replay(self) -> p.Replayed:
        return await self._run(self._protocol.replay())

    async def append(self, record: p.Record) -> int:
        return await self._run(self._protocol.append(record))

    async def begin_anew(self, first_sequence: int) -> None:
        await self._run(self._protocol.begin_anew(first_sequence))

    async def _run(self, steps: p.Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    answer = await self._answer(request)
                except BusError as error:
                    self._failed(type(request).__name__, type(error).__name__)
                    log.warning("log_request_failed", request=type(request).__name__, error=str(error))
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _answer(self, request: p.Request) -> Any:
        match request:
            case p.AppendRecord(subject, payload, fence, after):
                return await self._bus.append(
                    subject, payload, fence_subject=subjects.LOG_TERM, fence_sequence=fence, last_sequence=after
                )
            case p.ReadNewestTerm():
                return await self._bus.newest(subjects.LOG_TERM)
            case p.ReadNewestReady():
                return await self._bus.newest(subjects.LOG_READY)
            case p.ReadLog(start):
                entries = [entry async for entry in self._bus.read_log(start=start)]
                for entry in entries:
                    if entry.foreign:
                        log.warning("log_record_of_no_leader", sequence=entry.sequence, subject=entry.subject)
                return entries
            case p.ReadMark():
                return await self._bus.read_mark()
            case p.WriteMark(value, revision):
                return await self._bus.write_mark(value, revision)
            case p.Pause():
                return await asyncio.sleep(PAUSE_S)
            case p.DeleteLog(first_sequence):
                return await self._bus.begin_log_anew(first_sequence)
        raise TypeError(f"the log client knows no request {type(request).__name__}")
