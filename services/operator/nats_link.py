"""The operator's connections to the NATS servers: it answers who agents are, and lets renewed certificates be read.

Each operator answers (a queue group shares the questions); only the leader looks after the servers. Neither connection
has to be there: without NATS the operator goes on with everything else.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from services.operator import callout, identities, nats_servers
from services.operator.config import Config
from services.operator.objects import NATS_USERS, TOKEN_REVIEW
from services.operator.observed import NatsState, Observed
from services.operator.passwords import SEED
from services.operator.tokens import AccountKey
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.permissions import AUTH_REQUEST, OPERATOR_SERVICE, SYSTEM_USER
from shared.kube.transport import Transport, TransportError
from shared.telemetry.metrics import Counter

QUEUE = "kerf-operator"
AT_ONCE = 32
"""Reviews that the API server is asked for at a time."""
WAITING = 8192
"""Questions of which it is known how long they wait. Others come after them."""
QUESTION_S = 4.0
"""How long a question may wait for its review. The server waits 5 s for the answer (`authorization.timeout`)."""
CONNECT_S = 5.0
ANSWERS_S = 1.0
"""How long servers have to answer; a ping has no other end."""
SAME_TIME_S = 0.5


class _Server(msgspec.Struct, frozen=True):
    id: str = ""
    name: str = ""


class _Varz(msgspec.Struct, frozen=True):
    tls_cert_not_after: str = ""
    tags: tuple[str, ...] = ()


class _Told(msgspec.Struct, frozen=True):
    server: _Server = _Server()
    data: _Varz = _Varz()


class _Error(msgspec.Struct, frozen=True):
    description: str = ""


class _Reloaded(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class _ReviewAnswer(msgspec.Struct, frozen=True):
    status: callout.Review = callout.Review()


class NatsLink:
    def __init__(self, transport: Transport, config: Config, seen: Observed, log: Any, outcomes: Counter) -> None:
        self._transport, self._config, self._seen, self._log, self._outcomes = transport, config, seen, log, outcomes
        self._service: NatsBus | None = None
        self._system: NatsBus | None = None
        self._made_with: dict[str, tuple[str, str]] = {}
        self._stale_since: dict[str, float] = {}
        """Servers that are to read something again: since when, or when they were last told."""

    async def close(self) -> None:
        for bus in (self._service, self._system):
            if bus is not None:
                await bus.close()
        self._service = self._system = None

    # --- who a client is ------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Keeps a connection that answers the servers' questions. Raises BusError where there is none now."""
        self._service = await self._connected(self._service, OPERATOR_SERVICE, self._subscribe)

    async def _subscribe(self, bus: NatsBus) -> None:
        reviewing = asyncio.Semaphore(AT_ONCE)
        now = asyncio.get_running_loop().time

        async def asked(incoming: Incoming) -> None:
            came_s = now()
            async with reviewing:
                if now() - came_s > QUESTION_S:  # the server has ended that client, which asks anew
                    self._outcomes.of("late").add()
                else:
                    await self._answer(bus, incoming)

        async def identity_asked(incoming: Incoming) -> None:
            told = identities.answer(incoming.subject, incoming.payload, self._seen, time.time(), os.urandom)
            if told.error:
                self._log.warning("identity_refused", subject=incoming.subject, reason=told.error)
            await bus.respond(incoming, encode(told))

        await bus.subscribe(AUTH_REQUEST, asked, queue=QUEUE, concurrency=WAITING)
        await bus.subscribe(subjects.IDENTITY_ALL, identity_asked, queue=QUEUE)

    async def _answer(self, bus: NatsBus, incoming: Incoming) -> None:
        try:
            question = callout.read(incoming.payload)
            key = AccountKey(self._seen.secret(NATS_USERS).text(SEED))
        except ValueError as error:
            self._log.error("callout_unanswered", error=str(error))
            return
        verdict = await self._review(question)
        self._outcomes.of("refused" if verdict.refusal else "admitted").add()
        if verdict.refusal:
            self._log.warning("nats_client_refused", address=question.address, reason=verdict.refusal)
        session_s = nats_servers.session_s(self._seen.stateful_set, self._config.agent_session_s)
        payload = callout.answer(question, verdict, key, time.time(), session_s)
        await bus.respond(incoming, payload)

    async def _review(self, question: callout.Question) -> callout.Verdict:
        if not question.token:
            whom = f"user {question.user}" if question.user else "a client without user and token"
            return callout.Verdict(refusal=f"{whom} is unknown")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": question.token, "audiences": [self._config.agent_audience]},
        }
        try:
            # Less than the servers wait (authorization.timeout).
            response = await self._transport.request(
                "POST", TOKEN_REVIEW.collection(), msgspec.json.encode(body), timeout_s=3.0
            )
        except TransportError as error:
            return callout.Verdict(refusal=f"the API server did not review the token: {error}")
        if response.status not in (200, 201):
            text = response.body[:200].decode(errors="replace")
            return callout.Verdict(refusal=f"the API server did not review the token: HTTP {response.status}: {text}")
        return callout.judge(msgspec.json.decode(response.body, type=_ReviewAnswer).status, self._config)

    # --- how the servers are ----------------------------------------------------------------------------------------

    async def look_after(self, wanted_end_s: float, wanted_tag: str) -> NatsState:
        """Asks the servers how they are, and lets those read their files again that serve a certificate with another
        end than Secret kerf-nats-tls (`wanted_end_s`; 0: there is none) or do not have the tag of the users' present
        permissions (`wanted_tag`; empty: none is asked for).

        They are told when the kubelet has had the time to bring the files to their volume (`reload_after_s`, or
        `reload_users_after_s`), and as often as it takes.
        """
        try:
            self._system = await self._connected(self._system, SYSTEM_USER)
            told = await self._ask_all(self._system, "$SYS.REQ.SERVER.PING.VARZ")
        except BusError as error:
            return NatsState(problem=str(error))
        after_s = {
            one.server.id: self._config.reload_users_after_s if old_users else self._config.reload_after_s
            for one in told
            if (old_users := wanted_tag not in ("", *one.data.tags))
            or _differs(one.data.tls_cert_not_after, wanted_end_s)
        }
        now = asyncio.get_running_loop().time()
        self._stale_since = {server: self._stale_since.get(server, now) for server in after_s}
        for one in told:
            if one.server.id in after_s and now - self._stale_since[one.server.id] >= after_s[one.server.id]:
                self._stale_since[one.server.id] = now
                await self._reload(self._system, one)
        stale = sorted(one.server.name for one in told if one.server.id in after_s)
        return NatsState(problem="", servers=len(told), stale=tuple(stale))

    async def _reload(self, bus: NatsBus, server: _Told) -> None:
        """Lets a server read its configuration and certificates again. It ends the sessions of agents, which connect
        again at once."""
        try:
            answer = await bus.request(f"$SYS.REQ.SERVER.{server.server.id}.RELOAD", b"")
            refusal = msgspec.json.decode(answer, type=_Reloaded).error.description
        except BusError as error:
            refusal = str(error)
        log = self._log.error if refusal else self._log.info
        log("nats_reloaded", server=server.server.name, served_until=server.data.tls_cert_not_after, error=refusal)

    async def _ask_all(self, bus: NatsBus, subject: str) -> list[_Told]:
        """The answers of all servers that come in time."""
        told: dict[str, _Told] = {}

        async def came(incoming: Incoming) -> None:
            one = msgspec.json.decode(incoming.payload, type=_Told)
            told[one.server.id] = one

        inbox = f"_INBOX_{SYSTEM_USER}.{time.time_ns()}"
        subscription = await bus.subscribe(inbox, came)
        await bus.publish(subject, b"", reply=inbox)
        await asyncio.sleep(ANSWERS_S)
        await subscription.stop()
        return list(told.values())

    # --- connections --------------------------------------------------------------------------------------------------

    async def _connected(self, bus: NatsBus | None, user: str, made: Callable[[NatsBus], Any] | None = None) -> NatsBus:
        """The connection as this user; a new one where there is none, or where password or CA have changed."""
        password, bundle = self._seen.secret(NATS_USERS).text(user), self._seen.bundle
        if not password or (self._config.nats_tls and not bundle):
            raise BusError(f"Secret {NATS_USERS} has no password for {user} yet, or there is no CA")
        if bus is not None:
            if bus.connected and self._made_with.get(user) == (password, bundle):
                return bus
            await bus.close()
        url = re.sub(r"([a-z]+://)?([^,@/]+)", rf"nats://{user}:{password}@\2", self._config.nats_url)
        bus = await NatsBus.connect(
            url,
            name=f"kerf-operator-{user}",
            ca_data=bundle if self._config.nats_tls else "",
            timeout_s=CONNECT_S,
            inbox_prefix=f"_INBOX_{user}",
        )
        try:
            if made is not None:
                await made(bus)
        except BaseException:
            await bus.close()
            raise
        self._made_with[user] = (password, bundle)
        return bus


def _differs(served: str, wanted_s: float) -> bool:
    """Whether a server serves a certificate with another end; one without TLS does not."""
    if not served or not wanted_s:
        return False
    return abs(_seconds(served) - wanted_s) > SAME_TIME_S


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
