"""Questions over the bus, with errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from cli.output import Failure
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Bus, BusError, NoResponder, Unknown
from shared.contracts import queries
from shared.contracts.base import decode, encode
from shared.telemetry import configure_logging

T = TypeVar("T")

DEFAULT_URL = "nats://127.0.0.1:4222"

_LEADERLESS_S = 3.0
"""How long no subscriber may answer before that is an error: a new leader answers within this time."""
_AGAIN_S = 0.1
_ANSWERS = {query.subject: query.receivers for query in queries.QUERIES if query.receivers == "preemptor"}
"""The service that answers, if it is neither placement nor metrics."""


def url_of(given: str) -> str:
    return given or os.environ.get("KERF_NATS_URL", "") or DEFAULT_URL


@contextlib.asynccontextmanager
async def connected(given: str) -> AsyncIterator[NatsBus]:
    url = url_of(given)
    configure_logging("error")  # to stderr: stdout is for the answer alone, and errors are reported as a sentence below
    try:
        bus = await NatsBus.connect(url, name="kerf-cli", timeout_s=3.0)
    except BusError as error:
        raise Failure(
            f"no NATS at {url} ({error}). Start one with `kerf up`, or name it with --nats or KERF_NATS_URL"
        ) from error
    try:
        yield bus
    finally:
        await bus.drain()


def given(part: T | None) -> T:
    """The non-empty part of an answer, or Failure if it was empty because a leader was changing."""
    if part is None:
        raise Failure("the answer was empty; the leader may just have changed, ask again")
    return part


async def ask(bus: Bus, subject: str, query: Any, kind: type[T], *, timeout_s: float = 10.0) -> T:
    """The answer, or Failure: no subscriber, no answer in time, or an error in the answer itself."""
    try:
        answer = decode(await _reply(bus, subject, encode(query), timeout_s), kind)
    except NoResponder:
        raise Failure(
            f"no service answers {subject}: {_missing(subject)} is connected to this NATS; look at "
            f"{'its' if subject in _ANSWERS else 'their'} logs"
        ) from None
    except Unknown:
        raise Failure(
            f"no answer to {subject} within {timeout_s:g} s; the service may be starting or overloaded, try again"
        ) from None
    error = getattr(answer, "error", "")
    if error:
        raise Failure(error)
    return answer


def _missing(subject: str) -> str:
    return f"no {_ANSWERS[subject]}" if subject in _ANSWERS else "no placement leader (or no metrics service)"


async def _reply(bus: Bus, subject: str, payload: bytes, timeout_s: float) -> bytes:
    """Repeated while there is no subscriber: nothing has happened then (see `shared.bus.port`), and a new leader
    subscribes soon."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _LEADERLESS_S
    while True:
        try:
            return await bus.request(subject, payload, timeout_s=timeout_s)
        except NoResponder:
            if loop.time() >= until:
                raise
            await asyncio.sleep(_AGAIN_S)
