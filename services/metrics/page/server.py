"""Serves the live page: static files, the fleet and its changes, a pod's story, what-if, cost. Nothing is changed."""

from __future__ import annotations

import asyncio
import gzip
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web

from services.metrics.page.fleet import Fleet
from services.metrics.page.sign_in import Caller, Denied, SignIn
from services.metrics.page.sign_in.limit import SignInLimit
from shared.bus.port import BusError
from shared.contracts.base import ContractError
from shared.contracts.queries import AddNodes, WhatIfQuery
from shared.formats import UNREADABLE
from shared.service.http import bound_to

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html"),
    **{f"/{path.name}": (path.name, "text/css") for path in STATIC.glob("*.css")},
    **{f"/{path.name}": (path.name, "text/javascript") for path in STATIC.glob("*.js")},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
COOKIE = "kerf-session"
CHANGES_EVERY_S = 0.5
KEEPALIVE_S = 15.0
MAX_BODY_BYTES = 64 * 1024
MAX_SESSIONS = 10_000
MAX_STREAMS = 200
MAX_DIGITS = 18
MAX_AMOUNT = 1_000_000
"""Of GPUs, GiB or percent in the what-if form: far above what one pod can ask for."""
GZIP_FROM_BYTES = 2048

log = structlog.get_logger("page")


class Answers(Protocol):
    """What the page asks of the rest of the service."""

    def overview(self) -> dict[str, Any]:
        """The figures at the top."""

    def now_s(self) -> float:
        """Unix seconds, to which the times of events belong."""

    async def story(self, namespace: str, name: str) -> dict[str, Any]:
        """Why, trace and slices of one pod."""

    async def what_if(self, query: WhatIfQuery) -> Any:
        """Placement's answer."""

    async def cost(self) -> Any:
        """This month by namespace."""


class NodesLike(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    like: str
    count: int


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The what-if form. Empty fields are not part of the question."""

    namespace: str = "default"
    gpus: int = 0
    memory_gib: float = 0.0
    compute_percent: int = 0
    model: str = ""
    isolation: str = ""
    drain: tuple[str, ...] = ()
    add_nodes: NodesLike | None = None

    def query(self) -> WhatIfQuery:
        """Raises ValueError where nothing is asked, or an amount cannot be one."""
        if min(self.gpus, self.memory_gib, self.compute_percent) < 0:
            raise ValueError("an amount is below 0")
        if max(self.gpus, self.memory_gib, self.compute_percent) > MAX_AMOUNT:
            raise ValueError(f"an amount is above {MAX_AMOUNT}")
        limits: dict[str, str] = {}
        if self.gpus:
            limits["kerf.dev/gpu"] = str(self.gpus)
        if self.memory_gib:
            limits["kerf.dev/gpu-memory"] = f"{round(self.memory_gib * 1024)}Mi"
        if self.compute_percent:
            limits["kerf.dev/gpu-compute"] = str(self.compute_percent)
        changes = bool(self.drain or self.add_nodes)
        if not limits and not changes:
            raise ValueError("say what the pod asks for: GPUs, memory or compute; or name a node to drain or to add")
        wanted = {"kerf.dev/gpu-model": self.model, "kerf.dev/isolation": self.isolation}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "what-if",
                "namespace": self.namespace,
                "annotations": {key: value for key, value in wanted.items() if value},
            },
            "spec": {
                "schedulerName": "kerf",
                "containers": [{"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}],
            },
        }
        return WhatIfQuery(
            pod=pod if limits else None,
            max_nodes=8,
            drain=self.drain,
            add_nodes=(AddNodes(like=self.add_nodes.like, count=self.add_nodes.count),) if self.add_nodes else (),
        )


class Page:
    def __init__(
        self,
        fleet: Fleet,
        answers: Answers,
        sign_in: SignIn,
        *,
        session_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._answers, self._sign_in = fleet, answers, sign_in
        self._session_s, self._monotonic = session_s, monotonic
        self._sessions: dict[str, tuple[str, float]] = {}
        """User and end by session."""
        self._limit = SignInLimit(monotonic)
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port. Raises OSError where it is taken."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_guarded])
        for path, (file, kind) in FILES.items():
            app.router.add_get(path, _static(STATIC / file, kind))
        app.router.add_get("/api/session", self._session)
        app.router.add_post("/api/session", self._open)
        app.router.add_delete("/api/session", self._close)
        for path, handler in (
            ("/api/fleet", self._all),
            ("/api/live", self._live),
            ("/api/pod", self._pod),
            ("/api/cost", self._cost),
        ):
            app.router.add_get(path, self._signed_in(handler))
        app.router.add_post("/api/what-if", self._signed_in(self._what_if))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, bound_to(host), port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        for stream in self._streams:
            stream.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- signing in -------------------------------------------------------------------------------------------

    async def _user(self, request: web.Request) -> str:
        """Raises Denied."""
        user, end = self._sessions.get(request.cookies.get(COOKIE, ""), ("", 0.0))
        if user and self._monotonic() < end:
            return user
        return await self._sign_in.by_request(Caller(request.remote or "", request.headers))

    def _signed_in(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            await self._user(request)
            return await handler(request)

        return handle

    async def _session(self, request: web.Request) -> web.Response:
        """Whether the caller is signed in, and how it could be."""
        try:
            return _json({"user": await self._user(request), "token": self._sign_in.asks_for_token})
        except Denied as denied:
            return _json({"user": "", "token": self._sign_in.asks_for_token, "error": str(denied)})

    async def _open(self, request: web.Request) -> web.Response:
        try:
            token = msgspec.json.decode(await request.read(), type=dict[str, str]).get("token", "")
        except UNREADABLE:
            raise Denied('send {"token": "…"}', 400) from None
        self._sign_in.check_form(token)  # before it counts: what cannot be a token costs the API server nothing
        self._limit.count(request.remote or "")
        user = await self._sign_in.by_token(token)
        now = self._monotonic()
        self._sessions = {key: value for key, value in self._sessions.items() if value[1] > now}
        if len(self._sessions) >= MAX_SESSIONS:
            raise Denied("too many people are signed in; try again later", 503)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = (user, now + self._session_s)
        log.info("page_signed_in", user=user)
        response = _json({"user": user, "token": True})
        secure = request.secure or request.headers.get("X-Forwarded-Proto", "") == "https"
        response.set_cookie(
            COOKIE, session, max_age=round(self._session_s), httponly=True, samesite="Strict", secure=secure, path="/"
        )
        return response

    async def _close(self, request: web.Request) -> web.Response:
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        response = _json({"user": ""})
        response.del_cookie(COOKIE, path="/")
        return response

    # --- answers ----------------------------------------------------------------------------------------------

    async def _all(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(
            {
                "changes": self._fleet.changes(0),
                "overview": self._answers.overview(),
                "now_s": self._answers.now_s(),
            }
        )
        return await _compressed(body, "application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: what has changed since the number that the browser names, twice a second at most."""
        if len(self._streams) >= MAX_STREAMS:
            raise Denied(f"{MAX_STREAMS} pages are open; close one", 503)
        given = request.headers.get("Last-Event-ID") or request.query.get("since", "0")
        since = int(given) if given.isdecimal() and len(given) <= MAX_DIGITS else 0
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **HEADERS})
        await response.prepare(request)
        task = asyncio.current_task()
        if task is not None:
            self._streams.add(task)
        said: bytes = b""
        quiet_since = self._monotonic()
        try:
            while True:
                await self._user(request)  # the session may have ended
                overview = msgspec.json.encode(self._answers.overview())
                if self._fleet.version != since or overview != said:
                    changes = self._fleet.changes(since)
                    since, said, quiet_since = changes.version, overview, self._monotonic()
                    body = msgspec.json.encode({"changes": changes, "overview": msgspec.Raw(overview)})
                    await response.write(b"id: %d\ndata: %b\n\n" % (since, body))
                elif self._monotonic() - quiet_since > KEEPALIVE_S:
                    quiet_since = self._monotonic()
                    await response.write(b": nothing new\n\n")
                await asyncio.sleep(CHANGES_EVERY_S)
        except Denied:
            await response.write(b"event: signed-out\ndata: {}\n\n")
        except ConnectionError:
            log.debug("page_stream_closed")  # the browser has gone
        finally:
            if task is not None:
                self._streams.discard(task)
        return response

    async def _pod(self, request: web.Request) -> web.Response:
        namespace, name = request.query.get("namespace", ""), request.query.get("name", "")
        if not namespace or not name:
            raise Denied("name the pod: /api/pod?namespace=NAMESPACE&name=NAME", 400)
        return _json(await self._answers.story(namespace, name))

    async def _what_if(self, request: web.Request) -> web.Response:
        try:
            query = msgspec.json.decode(await request.read(), type=Asked).query()
        except (*UNREADABLE, ValueError) as error:
            raise Denied(str(error), 400) from error
        return _json(await self._answers.what_if(query))

    async def _cost(self, _: web.Request) -> web.Response:
        return _json(await self._answers.cost())


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=HEADERS
    )


async def _compressed(body: bytes, kind: str) -> web.Response:
    if len(body) < GZIP_FROM_BYTES:
        return web.Response(body=body, content_type=kind, headers=HEADERS)
    packed = await asyncio.to_thread(gzip.compress, body, 1)
    return web.Response(body=packed, content_type=kind, headers={**HEADERS, "Content-Encoding": "gzip"})


def _static(file: Path, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = file.read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    return serve


@web.middleware
async def _guarded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors as sentences in JSON. A request that another site's page makes is refused."""
    try:
        if request.headers.get("Sec-Fetch-Site", "none") == "cross-site" and request.path != "/":
            raise Denied("this is only for the page itself")
        return await handler(request)
    except Denied as denied:
        return _json({"error": str(denied)}, denied.status)
    except (BusError, ContractError) as error:
        return _json({"error": f"placement does not answer: {error}"}, 503)
    except web.HTTPException as error:
        return _json({"error": error.reason}, error.status)
