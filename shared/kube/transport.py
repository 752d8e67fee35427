"""The narrow interface to the API server: one request, one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""


MAX_RETRY_AFTER_S = 8.0
"""A longer delay that a server, or a proxy before it, asks for would leave Kerf without news of its cluster: pods would
wait for it. An overloaded server bears one request of each kind so often."""


class Response(NamedTuple):
    status: int
    body: bytes
    retry_after_s: float = 0.0
    """The delay that the server's Retry-After header asks for, at most MAX_RETRY_AFTER_S; 0 without one."""


class TransportError(Exception):
    """No complete answer came. Unless `sent` is False the request may have been executed."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class Transport(Protocol):
    async def request(
        self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0
    ) -> Response:
        """`path` includes the query. Raises TransportError if no complete answer came in time."""

    def stream(
        self, path: str, *, read_timeout_s: float
    ) -> AbstractAsyncContextManager[tuple[Response, AsyncIterator[bytes]]]:
        """GETs an endless response, such as a watch. The Response has the body only if the status is not 200; otherwise
        the iterator yields chunks of bytes as they arrive. Entering and iterating raise TransportError, also after
        `read_timeout_s` without a byte."""

    async def close(self) -> None: ...
