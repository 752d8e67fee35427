"""A real NATS server, and a way to ask a service's health endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.bus.embedded import EmbeddedServer


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer() as running:
        yield running


async def http_get(port: int, path: str, *, method: str = "GET") -> tuple[int, Any]:
    """Status and body, decoded if it is JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if b"application/json" in head else body.decode()


@pytest.fixture
def get() -> Any:
    return http_get
