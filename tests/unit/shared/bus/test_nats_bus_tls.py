"""TLS and tokens of a connection: read again whenever it is made anew."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from services.operator import certificates as pki
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from tests.support.waiting import eventually
from tests.support.wire import Wire

Loops = Callable[[], asyncio.AbstractEventLoop]


def authority() -> pki.Authority:
    return pki.new_authority(time.time(), 10, os.urandom)


def serve(folder: Path, by: pki.Authority) -> str:
    """Writes a certificate of this CA; returns the server's configuration."""
    pair = pki.issue(by, ("localhost", "127.0.0.1"), time.time(), 10, os.urandom, client=True)
    (folder / "tls.crt").write_text(pair.certificate)
    (folder / "tls.key").write_text(pair.key)
    return f"tls {{ cert_file: '{folder}/tls.crt', key_file: '{folder}/tls.key' }}"


async def test_a_ca_with_a_comment_of_other_letters_is_used_as_data_too(tmp_path: Path) -> None:
    by = authority()
    async with EmbeddedServer(extra_config=serve(tmp_path, by)) as server:
        data = f"# Société Générale\n{by.pem.certificate}"
        async with await NatsBus.connect(server.url, ca_data=data) as bus:
            assert await bus.alive()


async def test_a_ca_that_came_to_the_file_later_is_trusted_at_the_next_connection(tmp_path: Path) -> None:
    old, new, file = authority(), authority(), tmp_path / "ca.crt"
    file.write_text(old.pem.certificate)
    server = EmbeddedServer(extra_config=serve(tmp_path, old))
    async with server, await NatsBus.connect(server.url, ca_file=str(file)) as bus:
        assert await bus.alive()
        file.write_text(old.pem.certificate + new.pem.certificate)
        serve(tmp_path, new)
        await server.restart()
        await eventually(bus.alive)


async def test_a_ca_that_comes_to_the_file_while_the_server_is_refused_is_trusted_then(tmp_path: Path) -> None:
    """The kubelet takes up to 90 s to bring a Secret or a ConfigMap to its volume."""
    old, new, file = authority(), authority(), tmp_path / "ca.crt"
    file.write_text(old.pem.certificate)
    server = EmbeddedServer(extra_config=serve(tmp_path, old))
    async with server, await NatsBus.connect(server.url, ca_file=str(file)) as bus:
        serve(tmp_path, new)
        await server.restart()
        await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in str(bus._connection.nc.last_error))
        file.write_text(old.pem.certificate + new.pem.certificate)
        await eventually(bus.alive)


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_fault_14_a_connection_that_ends_in_silence_is_made_anew_at_once(tmp_path: Path, factory: Loops) -> None:
    """nats-py waits 30 s for the end of TLS, and for ever after a handshake that was not completed."""

    async def lose() -> None:
        by = authority()
        ca = tmp_path / "ca.crt"
        ca.write_text(by.pem.certificate)
        async with EmbeddedServer(extra_config=serve(tmp_path, by)) as server, Wire(server.port) as wire:
            wire.end_after(1)
            opening = asyncio.create_task(NatsBus.connect(f"nats://127.0.0.1:{wire.port}", ca_file=str(ca)))
            await eventually(lambda: wire.accepted >= 2, within_s=10)
            wire.end_after(0)
            async with await opening as bus:
                assert await bus.alive()
                accepted = wire.accepted
                wire.freeze()
                await eventually(lambda: wire.accepted > accepted, within_s=20)
                wire.thaw()
                await eventually(bus.alive)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(lose())


async def test_a_server_of_another_ca_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(authority().pem.certificate)
    async with EmbeddedServer(extra_config=serve(tmp_path, authority())) as server:
        with pytest.raises(BusError, match="cannot connect to NATS"):
            await NatsBus.connect(server.url, ca_file=str(file), timeout_s=1)


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_ca_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BusError, match=r"the CA of the NATS servers, .*ca\.crt, cannot be used"):
        await NatsBus.connect("nats://127.0.0.1:1", ca_file=str(file), timeout_s=1)


async def test_a_token_is_read_at_each_connection(tmp_path: Path) -> None:
    """The kubelet replaces it, and a server that was changed meanwhile wants the new one."""
    file, conf = tmp_path / "token", tmp_path / "users.conf"
    file.write_text("first\n")
    conf.write_text("authorization { token: first }")
    server = EmbeddedServer(config_file=conf)
    async with server, await NatsBus.connect(server.url, token_file=str(file)) as bus:
        assert await bus.alive()
        file.write_text("second\n")
        conf.write_text("authorization { token: second }")
        await server.restart()
        await eventually(bus.alive)
