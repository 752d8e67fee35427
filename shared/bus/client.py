"""nats-py's client with the corrections that have to be made inside of it: faults 14 to 18 of the decision record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import nats.aio.client
import nats.errors

from shared.bus.transport import Transport

RECONNECT_WAIT_S = 0.25
REFUSED_WAIT_S = 5.0
_SESSION_OVER = ("authentication expired", "authentication revoked")


class Client(nats.aio.client.Client):
    """nats-py closes for good when the server ends an expired session. A new one begins with a new token instead.

    What cannot be written is no error of the caller: it goes out on the next connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0
        self.before_attempt: Callable[[], None] = lambda: None

    async def _connect_to_server(self, server: Any) -> None:
        self.attempts += 1
        self.before_attempt()
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:  # an attempt that failed after its CONNECT leaves them
                task.cancel()
        if self._transport is None:
            self._transport = Transport()
        await super()._connect_to_server(server)

    def wait_longer(self) -> None:
        """After a refusal: the service that reviews tokens may be the one that all others ask, too."""
        longer = min(REFUSED_WAIT_S, 2 * self.options["reconnect_time_wait"])
        self.options["reconnect_time_wait"] = longer * random.uniform(0.75, 1.0)  # noqa: S311 - no secret

    def wait_as_usual(self) -> None:
        self.options["reconnect_time_wait"] = RECONNECT_WAIT_S

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """nats-py keeps the addresses of all servers that ever were, and tries each of them."""
        there = info.get("connect_urls")
        if there:
            self._server_pool[:] = [s for s in self._server_pool if not s.discovered or s.uri.netloc in there]
        await super()._process_info(info, initial_connection)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        try:
            await super()._send_ping(future)
        except ConnectionResetError as error:  # nats-py's pinger would end without a word
            await self._process_op_err(error)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        try:
            return await super()._flush_pending(force_flush)
        except ConnectionResetError as error:
            await self._process_op_err(error)
            nothing_to_wait_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing_to_wait_for.set_result(None)
            return nothing_to_wait_for

    async def _process_err(self, err_msg: str) -> None:
        if any(text in err_msg.lower() for text in _SESSION_OVER):
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))
            return
        await super()._process_err(err_msg)


def identity(servers: list[str]) -> dict[str, str]:
    """User and password of the URLs. nats-py takes them from the URL of each server, and a server that another one has
    named has none."""
    named = {(uri.username, uri.password) for uri in map(urlsplit, servers)}
    user, password = named.pop()
    return {"user": user, "password": password} if not named and user is not None and password is not None else {}
