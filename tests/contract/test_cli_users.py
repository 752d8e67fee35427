"""The command line as each NATS user of a deployment: in a service's pod, with a wrong password, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import queries
from shared.contracts.base import encode
from shared.contracts.queries import InspectAnswer, InspectNode
from tests.support.command import Done, kerf

CONF = Path(__file__).resolve().parents[2] / "k8s" / "nats.conf"
USERS = ("placement", "watcher", "node_agent", "preemptor", "metrics", "reader", "operator")
SECRET = "s3cret-word"


@pytest.fixture
async def nats(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedServer]:
    for user in USERS:
        monkeypatch.setenv(f"KERF_NATS_{user.upper()}", SECRET)
    async with EmbeddedServer(config_file=CONF) as server:
        yield server


def url(nats: EmbeddedServer, user: str, password: str = SECRET) -> str:
    return f"nats://{user}:{password}@127.0.0.1:{nats.port}"


@pytest.fixture
async def placement(nats: EmbeddedServer) -> AsyncIterator[NatsBus]:
    """Placement, which answers `inspect`."""
    async with await NatsBus.connect(url(nats, "placement"), inbox_prefix="_INBOX_placement") as bus:

        async def answer(incoming: Incoming) -> None:
            await bus.respond(incoming, encode(InspectAnswer(nodes=(InspectNode(node="gpu-0"),))))

        await bus.subscribe(queries.INSPECT.subject, answer)
        yield bus


@pytest.mark.usefixtures("placement")
@pytest.mark.parametrize("user", ["reader", "operator", "metrics"])
async def test_a_user_that_may_ask_is_answered(nats: EmbeddedServer, user: str) -> None:
    """Metrics' pod too, whose user has an inbox of its own."""
    done = await kerf("inspect", nats=url(nats, user))
    assert (done.code, "gpu-0" in done.out) == (0, True), done.err


@pytest.mark.usefixtures("placement")
@pytest.mark.parametrize("user", ["placement", "watcher", "preemptor", "node_agent"])
async def test_in_the_pod_of_a_service_the_error_names_its_user_and_what_that_may_ask(
    nats: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """`kubectl exec deploy/kerf-placement -- kerf inspect`: its URL and inbox are in the environment."""
    monkeypatch.setenv("KERF_NATS_INBOX_PREFIX", f"_INBOX_{user}")
    done = await kerf("inspect", nats=url(nats, user))
    assert (done.code, done.out, "Traceback" in done.err) == (1, "", False)
    said = " ".join(done.err.split())
    assert "not permitted to publish to kerf.v1.query.inspect" in said
    assert f"This connection is NATS user {user}, which may ask" in said
    assert "KERF_NATS_URL=nats://reader:" in said


async def test_a_wrong_password_is_not_printed(nats: EmbeddedServer) -> None:
    done: Done = await kerf("inspect", nats=url(nats, "reader", "almost-right"))
    said = " ".join(done.err.split())
    assert done.code == 1
    assert "refuses this user or password" in said
    assert f"nats://reader:***@127.0.0.1:{nats.port}" in said
    assert "almost-right" not in done.err


async def test_without_a_server_neither_the_password_nor_a_log_line_is_printed() -> None:
    done = await kerf("inspect", nats=f"nats://reader:{SECRET}@127.0.0.1:1")
    assert done.code == 1
    assert " ".join(done.err.split()).startswith("kerf: no NATS at nats://reader:***@127.0.0.1:1: no server answered")
    assert SECRET not in done.err
