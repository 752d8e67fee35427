"""`kerf cost` against the metrics service over a real NATS server."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.metrics.backup import copy_book
from services.metrics.service import Config, MetricsService
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.envelope import wrap
from shared.contracts.events import Event, NodeInventoried, PlacementDecided, SliceEnforced, SliceReleased
from shared.model.gpu import Gpu, Inventory
from shared.service import Context, running
from tests.support.command import kerf
from tests.support.waiting import eventually

HOUR_S = 3600
OCTOBER_S = 1_790_812_800
"""1 October 2026, UTC."""
PRICES = "currency: EUR\nmodels: {H200: 3.0}\n"


def say(bus: NatsBus, event: Event, hour: float) -> None:
    identity, payload = wrap(event, source="/test", now_s=OCTOBER_S + hour * HOUR_S)
    bus.publish_event(subjects.event_in_namespace(event.ENTITY, event.VERB, "team"), payload, identity)


def story(bus: NatsBus) -> None:
    """Of two GPUs from hour 0 on: half an H200 for four hours, a whole T4 without a price for one."""
    say(bus, NodeInventoried(node="n1", gpus=1, memory_mib=1000, models=("H200",)), 0)
    say(bus, NodeInventoried(node="n2", gpus=1, memory_mib=1000, models=("T4",)), 0)
    for name, namespace, gpu, model, memory, hours in (
        ("a", "vision", "G", "H200", 500, 4),
        ("b", "speech", "T", "T4", 0, 1),
    ):
        pod = {"uid": f"u-{name}", "namespace": namespace, "name": name, "node": "n1"}
        milli = 0 if memory else 1000
        say(bus, PlacementDecided(term=1, sequence=1, labels={"team": f"t-{name}"}, **pod), 0)
        say(
            bus,
            SliceEnforced(container="c", grant_id=f"g-{name}", strategy="advisory", promise="soft",
                          gpus={gpu: (memory, milli)}, model=model, **pod),
            0,
        )  # fmt: skip
        say(bus, SliceReleased(grant_id=f"g-{name}", boot_id="b", **pod), hours)


@pytest.fixture
async def metrics(nats: EmbeddedServer, bus: NatsBus, tmp_path: Path) -> AsyncIterator[Context]:
    (tmp_path / "prices.yaml").write_text(PRICES)
    gpu = Gpu(uuid="G", index=0, model="H200", memory_mib=1000)
    await bus.kv(subjects.KV_NODES).put(subjects.token("n1"), encode(Inventory(node="n1", boot_id="b", gpus=(gpu,))))
    config = Config(
        prices=str(tmp_path / "prices.yaml"), database=str(tmp_path / "usage.db"), write_every_s=0.05, keep_days=36_500
    )
    async with running(MetricsService, config, bus_url=nats.url) as ctx:
        story(bus)
        yield ctx


def put_back(copy: Path, book: Path) -> None:
    for path in book.parent.glob(f"{book.name}*"):
        path.unlink()
    copy.rename(book)


async def october(nats: EmbeddedServer, *arguments: str) -> str:
    done = await kerf("cost", *arguments, nats=nats.url)
    assert done.code == 0, done.err
    return done.out


async def test_a_month_as_json_is_priced_and_shows_what_was_idle(nats: EmbeddedServer, metrics: Context) -> None:
    async def whole() -> dict[str, object] | None:
        read = json.loads(await october(nats, "--month", "2026-10", "--json"))
        return (
            read if len(read.get("rows", ())) == 2 and read["capacity"]["allocated_gpu_seconds"] == 3 * HOUR_S else None
        )

    answer = await eventually(whole)
    assert (answer["since"], answer["until"], answer["currency"]) == (
        "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", "EUR"
    )  # fmt: skip
    vision, speech = answer["rows"]
    assert (vision["key"], vision["gpu_seconds"], vision["cost"]) == ("vision", 2 * HOUR_S, 6.0)
    assert (speech["key"], speech["unpriced_gpu_seconds"], "cost" in speech) == ("speech", HOUR_S, False)
    capacity = answer["capacity"]
    assert capacity["gpu_seconds"] == 2 * 31 * 24 * HOUR_S
    assert capacity["idle_gpu_seconds"] == capacity["gpu_seconds"] - 3 * HOUR_S
    assert (capacity["allocated_cost"], capacity["idle_cost"]) == (6.0, (31 * 24 - 2) * 3.0)

    rows = list(
        csv.DictReader(io.StringIO(await october(nats, "--month", "2026-10", "--format", "csv", "--by", "label:team")))
    )
    assert [(row["key"], row["gpu_hours"], row["cost"], row["unpriced_gpu_hours"]) for row in rows] == [
        ("t-a", "2.000000", "6.000000", "0.000000"), ("t-b", "1.000000", "", "1.000000")
    ]  # fmt: skip

    text = await october(nats, "--month", "2026-10", "--format", "report")
    assert text.startswith("# GPU usage from 2026-10-01 to 2026-11-01\n")
    assert "| vision | 2.00 |" in text
    assert "## By model" in text
    assert "| H200 | 2.00 |" in text
    assert re.search(r"- idle: 1485\.00 GPU hours, 2226\.00 EUR; stranded of it: 0\.00 GPU hours", text)

    table = await october(nats, "--since", "2026-10-01", "--until", "2026-10-01T01:00:00Z", "--by", "model")
    assert re.search(r"H200 +0\.50 +0\.\d+ +1 +1\.50", table)
    assert "without a price: 1.00 GPU hours" in table


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--month", "october"), "--month october is no month; write it as 2026-11"),
        (("--month", "2026-10", "--since", "2026-10-01"), "name either --month or --since and --until"),
        (("--by", "colour"), "cost is told by namespace, pod, model or label:KEY, not by 'colour'"),
        (("--since", "soon"), "since is 'soon'; write a date"),
        (("--format", "pdf"), "--format pdf is none of table, csv, json, report"),
    ],
)
async def test_a_question_that_is_none_is_refused(
    nats: EmbeddedServer, metrics: Context, arguments: tuple[str, ...], problem: str
) -> None:
    done = await kerf("cost", *arguments, nats=nats.url)
    assert done.code != 0
    assert problem in " ".join(done.err.split())


async def test_the_book_catches_up_from_a_copy_that_was_put_in_its_place(
    nats: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """A backup from before some events: the service reads them again from the stream."""
    book, copy = tmp_path / "usage.db", tmp_path / "copy.db"
    config = Config(database=str(book), write_every_s=0.05, keep_days=36_500)

    async def total() -> float:
        capacity = json.loads(await october(nats, "--month", "2026-10", "--json")).get("capacity") or {}
        return float(capacity.get("allocated_gpu_seconds", 0.0))

    async def is_whole() -> bool:
        return await total() == HOUR_S

    async with running(MetricsService, config, bus_url=nats.url):
        copy_book(book, copy)
        story(bus)
        await eventually(is_whole)
    put_back(copy, book)
    async with running(MetricsService, config, bus_url=nats.url):
        await eventually(is_whole)
