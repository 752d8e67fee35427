"""The runtime of simulated nodes: what the bus does not take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from services.node_agent.fleet import Fleet
from services.node_agent.fleet_service import FleetRuntime
from services.simulator.hollow import machines
from shared.bus.port import BusError, Incoming
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.node_commands import NodeSync
from shared.model.hollow_node import HollowNode


async def test_an_answer_that_cannot_be_sent_is_logged_and_ends_nothing() -> None:
    async def respond(incoming: Incoming, payload: bytes) -> None:
        raise BusError("the connection is closed")

    logged: list[tuple[str, str]] = []
    log = SimpleNamespace(error=lambda text, **told: logged.append((text, told["error"])))
    log.warning = log.error
    counters = SimpleNamespace(counter=lambda *_: None)
    fleet = Fleet(machines((HollowNode(name="a", memory_mib=1000, count=2),), "boot-1"))
    fleet.boot("a", 0)
    ctx: Any = SimpleNamespace(
        bus=SimpleNamespace(respond=respond, kv=lambda _: None, on_reconnect=lambda _: None),
        spawn=lambda work, name: work.close(),
        now=lambda: 0.0,
        instance="i",
        metrics=counters,
        log=log,
    )
    subject = subjects.node_command("a", "sync")
    incoming = Incoming(subject=subject, payload=encode(NodeSync(term=1, node="a")), reply="_INBOX.x")
    await FleetRuntime(ctx, fleet)._came(incoming)
    assert logged == [("answer_not_sent", "the connection is closed")]
