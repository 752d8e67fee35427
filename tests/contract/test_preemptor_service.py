"""The work of one preemptor process on real NATS."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import structlog

from services.preemptor import messages as m
from services.preemptor import service
from services.preemptor.config import Config
from services.preemptor.wall_clock import WallClock
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming, KvEntry
from shared.contracts import subjects
from shared.contracts.base import ContractError, encode
from shared.contracts.commands import Answer, Evict
from shared.contracts.samples import UsageSample
from shared.model.gpu import Inventory
from shared.service import Context
from shared.service.base import Health
from shared.telemetry import Metrics, Telemetry

LIMIT_S = 10.0


async def test_work_begins_anew_when_the_machines_clock_is_set_back(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no pod would be planned for until the clock has come as far again."""
    times = itertools.chain((5_000.0, 5_000.1, 5_000.2), itertools.repeat(1_400.0))
    monkeypatch.setattr(service, "WallClock", lambda: WallClock(lambda: next(times)))
    with structlog.testing.capture_logs() as logs:
        await asyncio.wait_for(make_work(bus).run(), LIMIT_S)
    (said,) = [entry for entry in logs if entry["event"] == "preemptor_begins_anew"]
    assert said["why"] == "this machine's clock was set back by 3600 s"


async def test_an_agent_samples_its_own_node_alone(bus: NatsBus) -> None:
    """One could have the slices of all nodes resized."""
    work, sample = make_work(bus), UsageSample(node="good", at_ms=1)
    with pytest.raises(ContractError):
        await work._sampled(Incoming(subject=subjects.usage("evil"), payload=encode(sample)))
    assert work._inbox.empty()
    await work._sampled(Incoming(subject=subjects.usage("good"), payload=encode(sample)))
    assert work._inbox.get_nowait() == m.Sampled(sample)


async def test_an_agent_has_the_inventory_of_its_own_node_alone(bus: NatsBus) -> None:
    """One could take the GPUs of all nodes out of the book that plans are made with."""
    work, inventory = make_work(bus), Inventory(node="good", boot_id="b")
    with pytest.raises(ContractError):
        await work._inventory(KvEntry(key="evil", value=encode(inventory), revision=1))
    assert work._inbox.empty()
    await work._inventory(KvEntry(key="good", value=encode(inventory), revision=1))
    assert work._inbox.get_nowait() == m.InventorySeen(inventory)


async def test_evictions_that_are_not_requested_since_the_lead_was_lost_are_answered(bus: NatsBus) -> None:
    """The core asks again when this instance leads again; while it awaits an answer it would not, for a minute."""
    work = make_work(bus)
    eviction = Evict(uid="u", namespace="ns", name="victim", reason="for another")
    async with asyncio.TaskGroup() as group:
        work._carry_out(m.Execute("plan", (eviction,)), group)
    assert work._inbox.get_nowait() == m.Evicted("plan", ("u",), (Answer(uid="u", outcome="unknown"),))


def make_work(bus: NatsBus) -> service._Work:
    metrics = Metrics()
    ctx = Context(
        service="preemptor", instance="one", log=structlog.get_logger(), config=Config(),
        telemetry=Telemetry("preemptor", ratio=0.0, otlp_endpoint=""), metrics=metrics, health=Health(), bus=bus,
    )  # fmt: skip
    counters = tuple(metrics.counter(f"kerf_test_{name}_total", name, ("outcome",)) for name in ("a", "b", "c"))
    return service._Work(ctx, counters, lambda: False)
