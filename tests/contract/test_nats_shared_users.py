"""Servers whose agents share a user (nats.agentUsers: shared), with the users that the chart gives them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from services.operator import certificates as pki
from services.operator.config import Config
from services.operator.nats_link import NatsLink
from services.operator.objects import BUNDLE, NATS_USERS, ConfigMap, Secret, encoded
from services.operator.observed import NatsState, Observed
from services.operator.passwords import PASSWORDS
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.permissions import USERS
from shared.model.kube_object import Meta
from shared.telemetry.metrics import Metrics
from tools.control_plane import free_ports

CONF = Path(__file__).resolve().parents[2] / "k8s/chart/files/nats-shared.conf"
NO_TRANSPORT: Any = None


class Installation:
    """The files of one server, and what the operator knows of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.now = folder, free_ports(1)[0], time.time()
        self.authority = pki.new_authority(self.now, 1825, os.urandom)
        self.users = folder / "kerf.conf"
        self.mount(tag="before")
        self.ends = self.renew(days=30)
        self.tls = f"tls {{ cert_file: '{folder}/tls.crt', key_file: '{folder}/tls.key', timeout: 5 }}"
        self.seen = Observed()
        secrets = encoded({name: f"secret-of-{name}" for name in PASSWORDS})
        self.seen.put(Secret(metadata=Meta(name=NATS_USERS), data=secrets))
        self.seen.put(ConfigMap(metadata=Meta(name=BUNDLE), data={"ca.crt": self.authority.pem.certificate}))
        config = Config(nats_url=f"tls://127.0.0.1:{self.port}", reload_after_s=0, reload_users_after_s=0)
        outcomes = Metrics().counter("kerf_callouts_total", "", labels=["outcome"])
        self.link = NatsLink(NO_TRANSPORT, config, self.seen, structlog.get_logger(), outcomes)

    def mount(self, *, tag: str) -> None:
        self.users.write_text(f'server_tags: ["{tag}"]\n{CONF.read_text()}')

    def renew(self, *, days: float) -> float:
        """Writes another certificate; when it ends."""
        pair = pki.issue(self.authority, ("localhost", "127.0.0.1"), self.now, days, os.urandom, client=True)
        (self.folder / "tls.crt").write_text(pair.certificate)
        (self.folder / "tls.key").write_text(pair.key)
        made = pki.read(pair.certificate)
        assert made is not None
        return pki.not_after(made)

    async def connect(self, user: str, password: str = "") -> NatsBus:
        url = f"nats://{user}:{password or f'secret-of-{user}'}@127.0.0.1:{self.port}"
        authority = self.authority.pem.certificate
        return await NatsBus.connect(url, ca_data=authority, inbox_prefix=f"_INBOX_{user}", timeout_s=2)


@pytest.fixture
async def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Installation]:
    for name in PASSWORDS:
        monkeypatch.setenv(f"KERF_NATS_{name.upper()}", f"secret-of-{name}")
    installation = Installation(tmp_path)
    async with EmbeddedServer(config_file=installation.users, extra_config=installation.tls, port=installation.port):
        yield installation
        await installation.link.close()


async def test_the_operator_has_the_server_read_a_renewed_certificate_and_changed_users(made: Installation) -> None:
    assert await made.link.look_after(made.ends, "before") == NatsState(problem="", servers=1, stale=())
    async with await made.connect("placement") as placement:
        ends = made.renew(days=90)
        made.mount(tag="after")
        assert (await made.link.look_after(ends, "after")).stale == ("kerf-embedded",)
        assert await made.link.look_after(ends, "after") == NatsState(problem="", servers=1, stale=())
        await placement.alive()


async def test_the_operators_connection_for_agents_stands_too(made: Installation) -> None:
    """Agents do not ask, and the operator must not try again for ever."""
    await made.link.serve()


@pytest.mark.parametrize("user", [*(user.name for user in USERS if user.inbox_prefix != "_INBOX"), "operator_service"])
async def test_no_other_user_reloads_the_servers_or_sees_its_account(made: Installation, user: str) -> None:
    async with await made.connect(user) as bus:
        with pytest.raises(BusError):
            await bus.request("$SYS.REQ.SERVER.PING.VARZ", b"", timeout_s=0.2)


async def test_all_users_need_their_passwords(made: Installation) -> None:
    for user in ("system", "operator_service", "node_agent"):
        with pytest.raises(BusError):
            await made.connect(user, "guess")


async def test_the_user_of_the_system_account_is_no_way_into_the_log(made: Installation) -> None:
    async with await made.connect("system") as system, await made.connect("placement") as placement:
        await provision(placement)
        end = await placement.log_end()
        await system.publish(subjects.LOG_DECISIONS, b"{}")
        await system.alive()
        assert await placement.log_end() == end
