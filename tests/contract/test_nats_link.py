"""The operator's answers to the servers' questions: late ones, and connections that it may not use."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from services.operator import nats_link
from services.operator.config import Config
from services.operator.nats_link import AUTH_REQUEST, NatsLink
from services.operator.nats_servers import CALLOUT_USERS
from services.operator.objects import NATS_SERVERS, NATS_USERS, Secret, StatefulSet, encoded
from services.operator.observed import Observed
from services.operator.passwords import missing
from services.operator.tokens import AccountKey, claims_of, new_seed
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.kube.transport import Response
from shared.model.kube_object import Meta
from shared.telemetry.metrics import Counter, Metrics
from tests.support.waiting import eventually

CONF = Path(__file__).resolve().parents[2] / "k8s/nats-callout.conf"
KEY = AccountKey(new_seed(bytes(range(32))))
USERS = missing(Secret(metadata=Meta(name=NATS_USERS), data={}), os.urandom)


class ApiServer:
    """Reviews tokens once it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()

    async def request(self, *_: Any, **__: Any) -> Response:
        self.asked += 1
        await self.answers.wait()
        return Response(201, json.dumps({"status": {"authenticated": False, "error": "unknown"}}).encode())


def link_to(url: str, api: Any = None) -> tuple[NatsLink, Counter]:
    seen = Observed()
    seen.put(Secret(metadata=Meta(name=NATS_USERS), data=encoded(USERS)))
    outcomes = Metrics().counter("kerf_callouts_total", "", labels=["outcome"])
    return NatsLink(api, Config(nats_url=url, nats_tls=False), seen, structlog.get_logger(), outcomes), outcomes


async def test_questions_of_clients_that_the_server_has_ended_are_not_reviewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all clients that come at once are answered too late, again and again, when reviews are slow.

    The server has no users here: the test asks what a server would.
    """
    monkeypatch.setattr(nats_link, "AT_ONCE", 1)
    monkeypatch.setattr(nats_link, "QUESTION_S", 0.2)
    async with EmbeddedServer() as server, await NatsBus.connect(server.url) as bus:
        api = ApiServer()
        link, outcomes = link_to(server.url, api)
        await link.serve()
        claims = {"nats": {"user_nkey": "UABC", "server_id": {"id": "NSERVER"}, "connect_opts": {"auth_token": "t"}}}
        question = KEY.sign(claims).encode()
        asked = [asyncio.create_task(bus.request(AUTH_REQUEST, question, timeout_s=1)) for _ in range(4)]
        await eventually(lambda: api.asked == 1)
        await asyncio.wait(asked)
        api.answers.set()
        await eventually(lambda: outcomes.of("late").value == 3)
        assert (api.asked, outcomes.of("refused").value) == (1, 1)
        assert await bus.request(AUTH_REQUEST, question, timeout_s=5), "a question of now"
        await link.close()


async def test_an_agent_that_the_operator_of_another_version_admits_comes_again_soon() -> None:
    """Its permissions are those of the operator's version. The StatefulSet is that of the installation."""

    class Admits(ApiServer):
        async def request(self, *_: Any, **__: Any) -> Response:
            extra = {"authentication.kubernetes.io/node-name": ["n1"]}
            user = {"username": "system:serviceaccount:kerf-system:kerf-node-agent", "extra": extra}
            status = {"authenticated": True, "audiences": ["kerf-nats"], "user": user}
            return Response(201, json.dumps({"status": status}).encode())

    async with EmbeddedServer() as server, await NatsBus.connect(server.url) as bus:
        link, _ = link_to(server.url, Admits())
        await link.serve()
        claims = {"nats": {"user_nkey": "UABC", "server_id": {"id": "NSERVER"}, "connect_opts": {"auth_token": "t"}}}

        async def lasts_s() -> int:
            answer = await bus.request(AUTH_REQUEST, KEY.sign(claims).encode(), timeout_s=5)
            session = json.loads(claims_of(json.loads(claims_of(answer.decode()))["nats"]["jwt"]))
            return int(session["exp"] - session["iat"])

        assert await lasts_s() > 3600
        link._seen.put(StatefulSet(metadata=Meta(name=NATS_SERVERS, annotations={CALLOUT_USERS: "of-another-version"})))
        assert await lasts_s() <= 300
        await link.close()


async def test_a_connection_that_may_not_subscribe_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers may have the permissions of an earlier version; the operator tries every two seconds."""
    for name, password in USERS.items():
        monkeypatch.setenv(f"KERF_NATS_{name.upper()}", password)
    before = CONF.read_text()
    earlier = before.replace('"$SYS.REQ.USER.AUTH", "kerf.v1.identity.*"', '"$SYS.REQ.USER.AUTH"')
    assert earlier != before
    conf = tmp_path / "earlier.conf"
    conf.write_text(earlier)
    async with EmbeddedServer(config_file=conf) as server:
        link, _ = link_to(server.url)
        for _ in range(2):
            with pytest.raises(BusError, match="not permitted to subscribe"):
                await link.serve()
        assert not [task for task in asyncio.all_tasks() if "read_loop" in repr(task.get_coro())]
