"""Questions over the bus, with errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from cli.output import Failure
from shared.bus.nats_bus import NatsBus
from shared.bus.port import AnswerFailed, Bus, BusError, NoResponder, Unknown
from shared.contracts import permissions, queries
from shared.contracts.base import ContractError, decode, encode
from shared.redaction import redact, user_of
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
async def connected(given: str, *, on_closed: Callable[[str], None] | None = None) -> AsyncIterator[NatsBus]:
    """Connects as `--nats` and the environment say; in a service's pod as that service's user. `on_closed`: as of
    NatsBus. Raises Failure."""
    url = url_of(given)
    # To stderr: stdout is for the answer alone. Errors of the bus become sentences below, so they are not logged too.
    configure_logging("error", silent=("bus",))
    try:
        bus = await NatsBus.connect(
            url,
            name="kerf-cli",
            timeout_s=3.0,
            credentials=os.environ.get("KERF_NATS_CREDENTIALS", ""),
            ca_file=os.environ.get("KERF_NATS_CA", ""),
            inbox_prefix=_inbox_prefix(url),
            on_closed=on_closed,
        )
    except (BusError, OSError, ValueError) as error:  # ValueError: a URL that is none
        raise Failure(_no_connection(url, str(error))) from error
    try:
        yield bus
    except BusError as error:
        raise Failure(f"{error}. {_about_user(url)}") from error
    finally:
        await bus.drain()


def _inbox_prefix(url: str) -> str:
    """Kerf's services have an inbox of their own, and so has a command in one of their pods."""
    user = user_of(url)
    named = os.environ.get("KERF_NATS_INBOX_PREFIX", "")
    if named:
        return named
    service = next((known for known in permissions.USERS if known.name == user), None)
    return "_INBOX" if service is None else service.inbox_prefix


def _no_connection(url: str, error: str) -> str:
    if "authorization" in error.lower():
        return (
            f"the NATS server at {redact(url)} refuses this user or password. Take them from Secret kerf-nats: as "
            "user reader to look, as user operator to cordon and drain"
        )
    shown = redact(url)
    why = redact(error).removeprefix(f"cannot connect to NATS at {shown}: ")
    return f"no NATS at {shown}: {why}. Start one with `kerf up`, or name it with --nats or KERF_NATS_URL"


def _about_user(url: str) -> str:
    """Which NATS user asked, and what that user may ask."""
    name = user_of(url)
    if not name:
        return "The connection names no NATS user (nats://USER:PASSWORD@host)"
    may = sorted(query.name for query in queries.QUERIES if name in permissions.askers(query))
    allowed = f"which may ask {', '.join(may)}" if may else "which may ask nothing"
    return (
        f"This connection is NATS user {name}, {allowed}. For all of `kerf` use user reader (and operator to cordon "
        "and drain): KERF_NATS_URL=nats://reader:PASSWORD@HOST:4222 with the password in Secret kerf-nats"
    )


def given(part: T | None) -> T:
    """The non-empty part of an answer, or Failure if it was empty because a leader was changing."""
    if part is None:
        raise Failure("the answer was empty; the leader may just have changed, ask again")
    return part


class NotAnswered(Failure):
    """No service that answers such a question is connected, or it did not answer in time. Later it may."""


class Late(NotAnswered):
    """It is connected, and did not answer in time."""


async def ask(bus: Bus, subject: str, query: Any, kind: type[T], *, timeout_s: float = 10.0, errors: bool = True) -> T:
    """The answer, or Failure: no subscriber, no answer in time, or, unless not `errors`, an error in the answer."""
    try:
        answer = decode(await _reply(bus, subject, encode(query), timeout_s), kind)
    except NoResponder:
        raise NotAnswered(
            f"no service answers {subject}: {_missing(subject)} is connected to this NATS; look at "
            f"{'its' if subject in _ANSWERS else 'their'} logs"
        ) from None
    except AnswerFailed as error:
        raise Failure(str(error)) from None
    except ContractError as error:
        raise Failure(f"the answer to {subject} cannot be read; is the service of another version? {error}") from None
    except Unknown:
        raise Late(
            f"no answer to {subject} within {timeout_s:g} s; the service may be starting or overloaded, try again"
        ) from None
    refused = getattr(answer, "error", "")
    if refused and errors:
        raise Failure(refused)
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
