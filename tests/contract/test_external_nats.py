"""A NATS in operator mode, as others run it: Kerf's services come with .creds files and their permissions hold."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from services.operator.tokens import AccountKey
from services.placement.service import SERVICE as Placement
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts import permissions, subjects
from shared.service import Lifecycle, running
from tests.support.waiting import eventually


class Key(AccountKey):
    """A key pair of any kind, as `nsc` would make it; AccountKey signs its tokens."""

    def __init__(self, kind: int) -> None:
        self._pair = nkeys.from_seed(nkeys.encode_seed(secrets.token_bytes(32), kind))
        self.seed, self.public = self._pair.seed.decode(), self._pair.public_key.decode()


class External:
    """An operator, an account with JetStream, and users of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operator, self.account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self.system = Key(nkeys.PREFIX_BYTE_ACCOUNT)

    def config(self) -> str:
        now = int(time.time())
        everything = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)

        def account(key: Key, name: str, limits: dict[str, Any]) -> str:
            nats = {"type": "account", "version": 2, "limits": limits | {"wildcards": True}}
            return self.operator.sign({"iat": now, "sub": key.public, "name": name, "nats": nats})

        operator = {
            "iat": now,
            "sub": self.operator.public,
            "name": "others",
            "nats": {"type": "operator", "version": 2},
        }
        return (
            f"operator: {self.operator.sign(operator)}\nsystem_account: {self.system.public}\n"
            "resolver: MEMORY\nresolver_preload: {\n"
            f"  {self.account.public}: {account(self.account, 'kerf', everything | stored)}\n"
            f"  {self.system.public}: {account(self.system, 'sys', everything)}\n}}\n"
        )

    def creds(self, user: permissions.User) -> str:
        """The path of the file that this user gets."""
        key = Key(nkeys.PREFIX_BYTE_USER)
        limits = {"subs": -1, "data": -1, "payload": -1}
        nats = {"type": "user", "version": 2, **limits, **permissions.granted(user)}
        token = self.account.sign({"iat": int(time.time()), "sub": key.public, "name": user.name, "nats": nats})
        file = self.folder / f"{user.name}.creds"
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
        )
        return str(file)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[tuple[External, EmbeddedServer]]:
    external = External(tmp_path)
    async with EmbeddedServer(extra_config=external.config()) as server:
        yield external, server


async def test_services_work_with_credentials_of_another_operator(nats: tuple[External, EmbeddedServer]) -> None:
    external, server = nats
    users = {user.name: user for user in permissions.USERS}
    settings = Lifecycle(
        nats_url=server.url, nats_credentials=external.creds(users["placement"]), nats_inbox_prefix="_INBOX_placement"
    )
    async with running(Placement, lifecycle=settings) as ctx:
        await eventually(lambda: ctx.health.report()["started"])
        agent = permissions.agent_of("n1")
        async with await NatsBus.connect(
            server.url, credentials=external.creds(agent), inbox_prefix=permissions.agent_inbox("n1")
        ) as bus:
            await bus.kv(subjects.KV_NODES).put("n1", b"{}")
            with pytest.raises(BusError, match="not permitted"):
                await bus.kv(subjects.KV_NODES).put("n2", b"{}")
    with pytest.raises(BusError, match="Authorization"):
        await NatsBus.connect(server.url, timeout_s=3)
