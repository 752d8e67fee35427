"""KERF_LOG: appends under the fence of a term (rule R1 of the protocol), and reading it back whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from shared.bus.consumer import EphemeralConsumer, Lost
from shared.bus.jetstream import LAST_SEQUENCE, PATIENCE_S, JetStream, headers_of
from shared.bus.port import LogEntry, Unknown
from shared.contracts import subjects

APPEND_TIMEOUT_S = 2.0
"""What was under way to a server that died is never answered. After this time the log is read instead, so it is shorter
than an election, and longer than a disk takes."""
READ_PATIENCE_S = 60.0

_FENCE_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
_FENCE_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
_READ_FROM = "Nats-Stream"
_EXPECTED_STREAM = "Nats-Expected-Stream"


class LogStream:
    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._one_in_flight = asyncio.Lock()

    async def append(
        self, subject: str, payload: bytes, *, fence_subject: str, fence_sequence: int, last_sequence: int | None = None
    ) -> int:
        """See port.Bus.append. Appends of one process wait for each other: replicated streams refuse a second one under
        way."""
        headers = {
            _EXPECTED_STREAM: subjects.STREAM_LOG,
            _FENCE_SEQUENCE: str(fence_sequence),
            _FENCE_SUBJECT: fence_subject,
        }
        if last_sequence is not None:
            headers[LAST_SEQUENCE] = str(last_sequence)
        async with self._one_in_flight:
            return await self._js.store(
                subjects.STREAM_LOG, subject, payload, headers, timeout_s=APPEND_TIMEOUT_S, patience_s=PATIENCE_S
            )

    async def end(self) -> int:
        info = await self._js.stream_info(subjects.STREAM_LOG)
        if info.state.messages == 0 and info.state.last_seq < int(info.config.get("first_seq", 1)):
            return 0
        return info.state.last_seq

    async def newest(self, subject: str) -> LogEntry | None:
        message = await self._js.get_message(subjects.STREAM_LOG, {"last_by_subj": subject})
        if message is None:
            return None
        foreign = _is_foreign(headers_of(message.hdrs))
        return LogEntry(sequence=message.seq, subject=message.subject, payload=message.data, foreign=foreign)

    async def read(self, start: int) -> AsyncIterator[LogEntry]:
        """From `start` to the end that the stream's leader reports now; a lost consumer is replaced at its position.

        Raises Unknown when a minute brought nothing new, NoStream when the log is gone.
        """
        loop = asyncio.get_running_loop()
        end, following = await self.end(), start
        deadline = loop.time() + READ_PATIENCE_S
        while following <= end:
            consumer = EphemeralConsumer(self._js, subjects.STREAM_LOG, start=following)
            try:
                await consumer.open()
                if consumer.pending_at_start == 0 and await self._nothing_from(following):
                    return
                while following <= end:
                    delivered = await consumer.next(until=deadline)
                    if delivered is None:
                        raise Unknown(
                            f"the log gave nothing after {following - 1} for {READ_PATIENCE_S:.0f} s, though it "
                            f"reaches to {end}"
                        )
                    if delivered.sequence > end:
                        return
                    following, deadline = delivered.sequence + 1, loop.time() + READ_PATIENCE_S
                    yield LogEntry(
                        sequence=delivered.sequence,
                        subject=delivered.subject,
                        payload=delivered.data,
                        foreign=_is_foreign(delivered.headers),
                    )
                    if delivered.pending == 0 and following <= end and await self._nothing_from(following):
                        return
            except Lost:
                if loop.time() > deadline:
                    raise Unknown(f"the log could not be read past {following - 1}: consumers kept dying") from None
            finally:
                await consumer.close()

    async def _nothing_from(self, sequence: int) -> bool:
        """Whether what the log still holds ends before `sequence`: its tail may have aged away meanwhile."""
        return await self._js.get_message(subjects.STREAM_LOG, {"seq": sequence, "next_by_subj": ">"}) is None


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a message is none that `append` has stored: those have a fence. Of the answers that the server sends to
    whatever subject, only a message that it reads from a stream can have one, and that names its stream."""
    return _FENCE_SEQUENCE not in headers or _READ_FROM in headers
