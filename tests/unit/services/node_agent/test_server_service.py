"""What the agent's shell does about servers for other nodes, and what it says of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent import messages as m
from services.node_agent.server_service import ServerRunner
from shared.model.grant import ContainerGrant
from tests.unit.services.node_agent.make import agent

ORDER = ("u", "main", "g")


class Port:
    """RemoteServing with one server, which runs or does not."""

    def __init__(self, *, runs: bool, sticks: bool = False) -> None:
        self.runs, self._sticks = runs, sticks

    def find(self, *_: object) -> bool:
        return self.runs

    async def end(self, *_: object) -> None:
        if self._sticks:
            raise OSError("it does not end")
        self.runs = False


async def told(port: Port | None, *orders: m.Serve | m.FindServer | m.EndServer) -> list[m.Input]:
    """What the core hears of these orders, which are carried out one after the other."""
    tasks: list[asyncio.Task[None]] = []
    heard: list[m.Input] = []

    async def tell(event: m.Input) -> None:
        heard.append(event)

    note = lambda *_, **__: None  # noqa: E731
    ctx: Any = SimpleNamespace(
        log=SimpleNamespace(info=note, error=note, warning=note),
        spawn=lambda work, name: tasks.append(asyncio.create_task(work, name=name)),
    )
    made: Any = port
    runner = ServerRunner(ctx, agent(), made, tell)
    for order in orders:
        runner.carry_out(order)
        await tasks.pop()
    return heard


@pytest.mark.parametrize("runs", [True, False])
async def test_a_server_is_looked_for_and_not_started(runs: bool) -> None:
    assert await told(Port(runs=runs), m.FindServer(*ORDER, "n2")) == [m.ServerFound(*ORDER, runs=runs)]


async def test_a_server_has_ended_when_the_port_has_ended_it() -> None:
    port = Port(runs=True)
    assert await told(port, m.EndServer(*ORDER)) == [m.ServerEnded(*ORDER)]
    assert not port.runs
    assert await told(Port(runs=True, sticks=True), m.EndServer(*ORDER)) == [m.ServerStillRuns(*ORDER)]


async def test_an_agent_that_cannot_see_servers_says_of_none_that_it_has_ended() -> None:
    """Its GPU would be given a second time while the server and its programs run on."""
    assert await told(None, m.FindServer(*ORDER, "n2"), m.EndServer(*ORDER)) == [
        m.ServerFound(*ORDER, runs=True),
        m.ServerStillRuns(*ORDER),
    ]
    (answer,) = await told(None, m.Serve(*ORDER, ContainerGrant(strategy="remote", gpus=()), "n2"))
    assert isinstance(answer, m.ServerStarted)
    assert answer.reason
