"""Shadow mode only reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from shadow.watch import NotReadOnly, ReadOnly
from shared.kube.transport import JSON, Response


class Server:
    """Counts what reaches it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def request(
        self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0
    ) -> Response:
        self.reached.append(method)
        return Response(200, b"{}")

    def stream(
        self, path: str, *, read_timeout_s: float
    ) -> AbstractAsyncContextManager[tuple[Response, AsyncIterator[bytes]]]:
        raise NotImplementedError

    async def close(self) -> None:
        self.reached.append("close")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_no_other_method_than_get_is_sent(method: str) -> None:
    server = Server()
    with pytest.raises(NotReadOnly, match=f"{method} /api/v1/pods was not sent"):
        await ReadOnly(server).request(method, "/api/v1/pods")
    assert server.reached == []


async def test_get_is_sent_without_a_body() -> None:
    server = Server()
    transport = ReadOnly(server)
    await transport.request("GET", "/api/v1/pods")
    with pytest.raises(NotReadOnly):
        await transport.request("GET", "/api/v1/pods", b"{}")
    assert (server.reached, dict(transport.sent)) == (["GET"], {"GET": 1})
