"""A service as a real process: signals and exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from tests.support.waiting import eventually

PROGRAM = """
import asyncio, msgspec
from shared.service import Service, main

class Config(msgspec.Struct, frozen=True):
    size: int = 1

class Echo(Service):
    name = "echo"
    config_type = Config
    async def start(self, ctx):
        self.ctx = ctx
        await ctx.bus.subscribe("kerf.test.echo", self.answer)
        ctx.on_config(self.changed)
    async def answer(self, incoming):
        await asyncio.sleep(0.05)
        await self.ctx.bus.respond(incoming, str(self.ctx.config.size).encode())
    async def changed(self, config):
        await self.ctx.bus.publish("kerf.test.changed", b"")
    async def drain(self):
        await self.ctx.bus.publish("kerf.test.drained", b"")

main(Echo)
"""


async def start(tmp_path: Path, url: str, *arguments: str, **env: str) -> asyncio.subprocess.Process:
    program = tmp_path / "echo.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"KERF_NATS_URL": url, "PYTHONPATH": os.getcwd(), "KERF_NATS_WAIT_S": "2"} | env
    return await asyncio.create_subprocess_exec(
        sys.executable, str(program), *arguments, env=environment, stderr=asyncio.subprocess.PIPE
    )


async def answered(bus: NatsBus) -> bytes | None:
    try:
        return await bus.request("kerf.test.echo", b"", timeout_s=5)
    except BusError:
        return None


@pytest.mark.parametrize("loop", ["", "asyncio"])
async def test_sigterm_drains_in_order_and_exits_with_0(server: EmbeddedServer, tmp_path: Path, loop: str) -> None:
    """A request that was received before is still answered."""
    async with await NatsBus.connect(server.url) as bus:
        drained = asyncio.Event()

        async def heard(_: object) -> None:
            drained.set()

        await bus.subscribe("kerf.test.drained", heard)
        process = await start(tmp_path, server.url, KERF_LOOP=loop)
        await eventually(lambda: answered(bus))
        late = asyncio.create_task(bus.request("kerf.test.echo", b"", timeout_s=10))
        await bus._connection.settle()
        process.send_signal(signal.SIGTERM)
        assert await late == b"1"
        assert await asyncio.wait_for(process.wait(), 15) == 0
        await asyncio.wait_for(drained.wait(), 5)


async def test_sighup_reads_the_settings_again(server: EmbeddedServer, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("size: 4\n")
    async with await NatsBus.connect(server.url) as bus:
        process = await start(tmp_path, server.url, "--config", str(config))
        await eventually(lambda: answered(bus))
        config.write_text("size: 5\n")
        process.send_signal(signal.SIGHUP)

        async def changed() -> bool:
            return await answered(bus) == b"5"

        await eventually(changed)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 15) == 0


async def test_settings_that_cannot_be_used_exit_with_2_and_a_sentence(server: EmbeddedServer, tmp_path: Path) -> None:
    process = await start(tmp_path, server.url, KERF_ECHO_SIZE="large")
    _, text = await process.communicate()
    assert process.returncode == 2
    assert text.decode() == "kerf echo: the environment: setting size: Expected `int`, got `str`; given was 'large'\n"


async def test_no_server_exits_with_1_and_names_its_address(tmp_path: Path) -> None:
    process = await start(tmp_path, "nats://127.0.0.1:1", KERF_NATS_WAIT_S="0.3")
    _, text = await process.communicate()
    assert process.returncode == 1
    assert b"cannot connect to NATS at nats://127.0.0.1:1" in text
