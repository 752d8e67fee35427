"""The log's mark: one value in the memory of the NATS servers, changed by compare-and-swap (rule R1)."""

from __future__ import annotations

from shared.bus.jetstream import LAST_SEQUENCE, PATIENCE_S, JetStream
from shared.contracts import subjects

WRITE_TIMEOUT_S = 2.0

_STREAM = f"KV_{subjects.KV_MARK}"
_SUBJECT = f"$KV.{subjects.KV_MARK}.{subjects.LOG_MARK}"


class Mark:
    """The revision is the last sequence of the bucket's stream, not of the key. A bucket that was recreated after a
    loss starts at another sequence, so no write from before the loss succeeds. For an absent key every bucket would
    report 0."""

    def __init__(self, js: JetStream) -> None:
        self._js = js

    async def read(self) -> tuple[bytes | None, int]:
        """(value, revision). Raises NoStream if the bucket is gone."""
        info = await self._js.stream_info(
            _STREAM
        )  # first: what is written between the two makes the revision too low, not too high
        message = await self._js.get_message(_STREAM, {"last_by_subj": _SUBJECT})
        return (None, info.state.last_seq) if message is None else (message.data, message.seq)

    async def write(self, value: bytes, revision: int) -> int:
        """Returns the new revision. Raises Refused if it has moved on, NoStream if the bucket is gone, Unknown."""
        headers = {LAST_SEQUENCE: str(revision)}
        return await self._js.store(_STREAM, _SUBJECT, value, headers, timeout_s=WRITE_TIMEOUT_S, patience_s=PATIENCE_S)
