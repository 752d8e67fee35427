"""The page's server: sessions, the stream of changes, headers, bad input. Over real HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from services.metrics.page.fleet import Fleet
from services.metrics.page.server import STATIC, Asked, Page
from services.metrics.page.sign_in import Caller, Denied
from services.metrics.page.sign_in.limit import MAX_OF_ALL, MAX_OF_ONE_PEER, WINDOW_S, SignInLimit
from services.metrics.page.sign_in.none import NoSignIn
from shared.contracts.queries import AddNodes, WhatIfQuery
from shared.model.gpu import Gpu, Inventory


class Answers:
    def __init__(self) -> None:
        self.figures: dict[str, Any] = {"gpus": 1}
        self.asked: list[WhatIfQuery] = []

    def overview(self) -> dict[str, Any]:
        return self.figures

    def now_s(self) -> float:
        return 1000.5

    async def story(self, namespace: str, name: str) -> dict[str, Any]:
        return {"why": None, "why_error": f"no {namespace}/{name}"}

    async def what_if(self, query: WhatIfQuery) -> Any:
        self.asked.append(query)
        if "nowhere" in query.drain:
            raise Denied("there is no node nowhere", 400)
        return {"explanation": None}

    async def cost(self) -> Any:
        return {"rows": []}


class OneToken:
    asks_for_token = True

    def __init__(self) -> None:
        self.reviews = 0

    def check_form(self, token: str) -> None:
        if " " in token:
            raise Denied("this is no token", 401)

    async def by_request(self, caller: Caller) -> str:
        raise Denied("sign in", 401)

    async def by_token(self, token: str) -> str:
        self.reviews += 1
        if token != "good":
            raise Denied("no", 401)
        return "ada"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    gpus = tuple(Gpu(uuid=f"G{i}", index=i, model="H200", memory_mib=1000) for i in range(300))
    made.inventory("n1", Inventory(node="n1", boot_id="b", gpus=gpus))
    return made


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def local(fleet: Fleet, answers: Answers) -> AsyncIterator[aiohttp.ClientSession]:
    page = Page(fleet, answers, NoSignIn("127.0.0.1"), session_s=60)
    port = await page.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session
    await page.stop()


async def test_everything_is_served_from_here_under_a_strict_policy(local: aiohttp.ClientSession) -> None:
    async with local.get("/") as answer:
        policy, text = answer.headers["Content-Security-Policy"], await answer.text()
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for name in [path.name for path in STATIC.iterdir()]:
        async with local.get(f"/{name}" if name != "index.html" else "/") as answer:
            assert (answer.status, answer.headers["X-Content-Type-Options"]) == (200, "nosniff")
            content = (await answer.text()).replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in content
            assert "https://" not in content, "nothing comes from elsewhere"
    assert "<style" not in text
    assert " onclick" not in text


async def test_the_fleet_is_sent_compressed(local: aiohttp.ClientSession, fleet: Fleet) -> None:
    async with local.get("/api/fleet") as answer:
        body = await answer.json()
        assert answer.headers["Content-Encoding"] == "gzip"
    assert body["now_s"] == 1000.5
    assert (body["changes"]["version"], len(body["changes"]["nodes"][0]["gpus"])) == (fleet.version, 300)


async def test_the_stream_tells_what_came_after_the_number(
    local: aiohttp.ClientSession, fleet: Fleet, answers: Answers
) -> None:
    seen = fleet.version
    async with local.get(f"/api/live?since={seen}") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert await stream.content.readline() == b"id: %d\n" % seen
        first = msgspec.json.decode((await stream.content.readline()).removeprefix(b"data: "))
        assert (first["overview"], "nodes" in first["changes"]) == ({"gpus": 1}, False)
        fleet.inventory(
            "n2", Inventory(node="n2", boot_id="b", gpus=(Gpu(uuid="Z", index=0, model="T4", memory_mib=1),))
        )
        await stream.content.readline()
        assert await stream.content.readline() == b"id: %d\n" % fleet.version
        change = msgspec.json.decode((await stream.content.readline()).removeprefix(b"data: "))
        assert [node["name"] for node in change["changes"]["nodes"]] == ["n2"]


async def test_a_session_begins_with_a_token_and_ends(fleet: Fleet, answers: Answers) -> None:
    clock = Clock()
    page = Page(fleet, answers, OneToken(), session_s=60, monotonic=clock)
    port = await page.start("127.0.0.1", 0)
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", cookie_jar=jar) as session:

        async def status(path: str = "/api/cost") -> int:
            async with session.get(path) as answer:
                return answer.status

        assert [await status(path) for path in ("/api/fleet", "/api/live", "/api/cost")] == [401, 401, 401]
        assert await status("/api/session") == 200, "the page itself and the form need no session"
        async with session.post("/api/session", json={"token": "bad"}) as answer:
            assert (answer.status, await answer.json()) == (401, {"error": "no"})
        async with session.post("/api/session", json={"token": "good"}) as answer:
            cookie = answer.cookies["kerf-session"]
            assert (answer.status, (await answer.json())["user"]) == (200, "ada")
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        assert await status() == 200
        clock.now = 61.0
        assert await status() == 401, "it lasts for session_s"
        async with session.post("/api/session", json={"token": "good"}):
            pass
        assert await status() == 200
        async with session.delete("/api/session"):
            pass
        assert await status() == 401
        clock.now = 200.0
    await page.stop()


async def test_an_address_can_flood_neither_the_api_server_nor_keep_others_from_signing_in(
    fleet: Fleet, answers: Answers
) -> None:
    clock, sign_in = Clock(), OneToken()
    page = Page(fleet, answers, sign_in, session_s=60, monotonic=clock)
    port = await page.start("127.0.0.1", 0)

    async def statuses(address: str, token: str, times: int = 1) -> list[int]:
        found = []
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
            for _ in range(times):
                async with session.post("/api/session", json={"token": token}) as answer:
                    found.append(answer.status)
        return found

    assert await statuses("127.0.0.2", "no token", MAX_OF_ONE_PEER + 1) == [401] * (MAX_OF_ONE_PEER + 1)
    assert sign_in.reviews == 0, "what cannot be a token is not reviewed and does not count"
    assert await statuses("127.0.0.2", "bad", MAX_OF_ONE_PEER + 1) == [401] * MAX_OF_ONE_PEER + [429]
    assert sign_in.reviews == MAX_OF_ONE_PEER
    assert await statuses("127.0.0.3", "good") == [200]
    clock.now = WINDOW_S
    assert await statuses("127.0.0.2", "good") == [200]
    await page.stop()


def test_sign_ins_are_bounded_by_address_and_together() -> None:
    clock = Clock()
    limit = SignInLimit(clock)

    def taken(address: str, tries: int) -> int:
        done = 0
        for _ in range(tries):
            with contextlib.suppress(Denied):
                limit.count(address)
                done += 1
        return done

    several = [f"2001:db8::{i:x}" for i in range(MAX_OF_ONE_PEER + 9)]
    assert sum(taken(address, 1) for address in several) == MAX_OF_ONE_PEER, "one machine has all of a /64"
    assert taken("10.0.0.1", MAX_OF_ONE_PEER + 1) == MAX_OF_ONE_PEER
    assert taken("::ffff:10.0.0.1", 1) == 0, "the same address"
    rest = MAX_OF_ALL - 2 * MAX_OF_ONE_PEER
    assert sum(taken(f"10.0.1.{i}", 1) for i in range(rest + 9)) == rest
    clock.now = WINDOW_S
    assert taken("10.0.0.1", 1) == 1


async def test_a_page_of_another_site_gets_nothing(local: aiohttp.ClientSession) -> None:
    async with local.get("/api/fleet", headers={"Sec-Fetch-Site": "cross-site"}) as answer:
        assert answer.status == 403
    async with local.get("/api/fleet", headers={"Host": "attacker.example"}) as answer:
        assert (answer.status, "localhost only" in (await answer.json())["error"]) == (403, True)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{}", "say what the pod asks for"),
        (b'{"gpus": -1}', "an amount is below 0"),
        (b'{"memory_gib": 1e308}', "an amount is above"),
        (b'{"model": "\xff"}', "utf-8"),
        (b'{"gpus": "many"}', "Expected `int`, got `str` - at `$.gpus`"),
        (b'{"colour": 1}', "unknown field `colour`"),
        (b"{", "Input data was truncated"),
        (b'{"drain": ["nowhere"]}', "there is no node nowhere"),
    ],
)
async def test_a_question_that_is_none_is_answered_with_the_reason(
    local: aiohttp.ClientSession, body: bytes, problem: str
) -> None:
    async with local.post("/api/what-if", data=body) as answer:
        assert answer.status == 400
        assert problem in (await answer.json())["error"]


def test_the_form_becomes_a_canonical_pod() -> None:
    query = Asked(namespace="team", gpus=2, memory_gib=20.5, compute_percent=30, model="H200", isolation="firm").query()
    assert query.pod["metadata"]["annotations"] == {"kerf.dev/gpu-model": "H200", "kerf.dev/isolation": "firm"}
    assert query.pod["spec"]["containers"][0]["resources"]["limits"] == {
        "kerf.dev/gpu": "2", "kerf.dev/gpu-memory": "20992Mi", "kerf.dev/gpu-compute": "30"
    }  # fmt: skip
    changed = msgspec.json.decode(b'{"drain": ["n1"], "add_nodes": {"like": "n2", "count": 3}}', type=Asked).query()
    assert (changed.pod, changed.drain, changed.add_nodes) == (None, ("n1",), (AddNodes(like="n2", count=3),))


async def test_other_methods_and_paths_are_refused(local: aiohttp.ClientSession) -> None:
    for method, path in (("POST", "/api/fleet"), ("DELETE", "/api/pod"), ("GET", "/../service.py"), ("PUT", "/")):
        async with local.request(method, path) as answer:
            assert answer.status in (404, 405)
