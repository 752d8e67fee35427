"""What an agent's events say of their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from services.node_agent.messages import Publish
from services.node_agent.publisher import Publisher
from shared.contracts.envelope import unwrap
from shared.contracts.events import NodeInventoried


def test_a_later_event_has_the_larger_sequence_whatever_the_clock_says() -> None:
    published: list[bytes] = []
    times = iter(range(100, 0, -1))
    bus = SimpleNamespace(
        kv=lambda _: None,
        on_reconnect=lambda _: None,
        publish_event=lambda _, payload, *__, **___: published.append(payload),
    )
    ctx: Any = SimpleNamespace(
        bus=bus, instance="i", now=lambda: float(next(times)), spawn=lambda task, **_: task.close()
    )
    publisher = Publisher(ctx)
    for number in range(12):
        publisher.publish("n", Publish(NodeInventoried(node="n", gpus=1, memory_mib=1), f"event-{number}"))
    told = [unwrap(payload)[0] for payload in published]
    assert {one.source for one in told} == {"/kerf/node_agent/i"}
    order = [one.sequence for one in told]
    assert order == sorted(set(order))
