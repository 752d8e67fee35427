"""Sends one write to the API server. None raises on a failure of server or network: the outcome says it."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from shared.kube.outcomes import WRITE_TIMEOUT_S, Result, outcome_of
from shared.kube.transport import JSON, Transport, TransportError

_ENCODER = msgspec.json.Encoder()


class Send(Protocol):
    """Sends a body, and returns what became of the write."""

    async def __call__(self, method: str, path: str, body: Any, *, content_type: str = JSON) -> Result: ...


class Sender:
    def __init__(self, transport: Transport, *, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    async def send(self, method: str, path: str, body: Any, *, content_type: str = JSON) -> Result:
        try:
            response = await self._transport.request(
                method, path, _ENCODER.encode(body), content_type=content_type, timeout_s=self._timeout_s
            )
        except TransportError as error:
            # Nothing of a request that was never sent can have been executed; asking again is safe, as after a 429.
            return Result("unknown" if error.sent else "throttled", str(error))
        return outcome_of(response)
