"""Which users may read the page: none from another machine, a proxy's user, or a permitted user of a token."""

from __future__ import annotations

from typing import Any

import pytest

from services.metrics.page.sign_in import Caller, Denied
from services.metrics.page.sign_in.none import NoSignIn
from services.metrics.page.sign_in.proxy import ProxySignIn
from services.metrics.page.sign_in.token_review import TokenReviewSignIn
from services.metrics.service import Config
from shared.service.settings import ConfigError, read_config


@pytest.mark.parametrize("host", ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "localhost"])
async def test_without_sign_in_localhost_reads(host: str) -> None:
    assert await NoSignIn("127.0.0.1").by_request(Caller("127.0.0.1", {"Host": host})) == "local"


@pytest.mark.parametrize("host", ["attacker.example:8081", "10.0.0.1:8081", ""])
async def test_a_name_that_was_made_to_resolve_to_loopback_is_refused(host: str) -> None:
    with pytest.raises(Denied, match="localhost only"):
        await NoSignIn("127.0.0.1").by_request(Caller("127.0.0.1", {"Host": host}))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"KERF_PAGE_PORT": "0", "KERF_PAGE_HOST": "0.0.0.0"}, "without sign-in the page listens on loopback alone"),
        ({"KERF_PAGE_PORT": "0", "KERF_PAGE_SIGN_IN": "proxy"}, "list the proxy's addresses in page_proxy_addresses"),
        (
            {"KERF_PAGE_PORT": "0", "KERF_PAGE_SIGN_IN": "proxy", "KERF_PAGE_PROXY_ADDRESSES": '["proxy"]'},
            "write 10.0.0.7 or 10.0.0.0/24",
        ),
    ],
)
def test_settings_that_would_open_the_page_to_all_are_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_config("metrics", Config, environ=settings)
    settings.pop("KERF_PAGE_PORT")
    read_config("metrics", Config, environ=settings)  # no page, no harm


async def test_the_proxys_header_is_believed_from_the_proxy_alone() -> None:
    sign_in = ProxySignIn("X-User", ("10.1.0.0/16", "fd00::7"))
    for address in ("10.1.2.3", "fd00::7"):
        assert await sign_in.by_request(Caller(address, {"X-User": "ada"})) == "ada"
    with pytest.raises(Denied, match=r"10\.2\.0\.1 is not in page_proxy_addresses"):
        await sign_in.by_request(Caller("10.2.0.1", {"X-User": "ada"}))
    with pytest.raises(Denied) as unnamed:
        await sign_in.by_request(Caller("10.1.2.3", {}))
    assert unnamed.value.status == 401


class ApiServer:
    """Reviews as an API server does: one token, and who may read the page."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed
        self.asked: list[dict[str, Any]] = []

    async def review(self, path: str, body: Any) -> dict[str, Any]:
        assert path.endswith("tokenreviews") == (body["kind"] == "TokenReview")
        spec = body["spec"]
        self.asked.append(spec)
        if body["kind"] == "TokenReview":
            if spec["token"] != "good":
                return {"status": {"error": "token expired"}}
            return {"status": {"authenticated": True, "user": {"username": "ada", "groups": ["ml"], "uid": "1"}}}
        return {"status": {"allowed": spec["user"] in self.allowed}}


async def test_a_token_signs_in_the_user_that_the_api_server_names_and_allows() -> None:
    server = ApiServer("ada")
    assert await TokenReviewSignIn(server.review).by_token(" good\n") == "ada"
    assert server.asked[1] == {
        "user": "ada", "uid": "1", "groups": ["ml"], "extra": {},
        "nonResourceAttributes": {"path": "/kerf/live", "verb": "get"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("token", "allowed", "status", "problem"),
    [
        ("bad", "ada", 401, "does not accept the token: token expired"),
        ("", "ada", 401, "this is no token"),
        ("two words", "ada", 401, "this is no token"),
        ("x" * 20_000, "ada", 401, "this is no token"),
        ("good", "bob", 403, "ada may not read this page. Allow it"),
    ],
)
async def test_another_token_is_refused_with_what_to_do(token: str, allowed: str, status: int, problem: str) -> None:
    with pytest.raises(Denied) as denied:
        await TokenReviewSignIn(ApiServer(allowed).review).by_token(token)
    assert denied.value.status == status
    assert problem in str(denied.value)


async def test_without_a_session_a_request_is_asked_to_sign_in() -> None:
    with pytest.raises(Denied) as denied:
        await TokenReviewSignIn(ApiServer().review).by_request(Caller("10.0.0.1", {"X-Forwarded-User": "ada"}))
    assert denied.value.status == 401
