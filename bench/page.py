"""How soon the live page shows a fleet: `python -m bench.page [--gpus 5000] [--runs 5] [--json]`.

The metrics service on a real NATS server with inventories and slices of so many GPUs, and a headless Chromium with an
empty cache for every run. `first_paint_ms` is Chromium's first contentful paint, `fleet_ms` the time until the map, the
queue and the figures are there, both from the start of the navigation. `delta_ms` is the time from an event on the bus
until its line is on the page, `frame_ms` one drawing of the whole map.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from services.metrics.service import Config, MetricsService
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision
from shared.contracts.events import SliceEnforced
from shared.service import running
from shared.telemetry.logs import configure_logging
from tests.support.browser import browser, chromium_or_skip, opened
from tests.support.fleet import answer_for_placement, publish, publish_fleet
from tests.support.waiting import eventually

PAINTED = """async () => {
  while (!performance.getEntriesByName("fleet-painted").length) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [paint ? paint.startTime : 0, performance.getEntriesByName("fleet-painted")[0].startTime];
}"""
FRAME = """async () => {
  const { FleetMap } = await import("./map.js"), { Model } = await import("./model.js"), model = new Model();
  model.apply(await (await fetch("/api/fleet")).json());
  const map = new FleetMap(model);
  map.theme(); map.layout();
  const begun = performance.now();
  for (let i = 0; i < 20; i++) map.paint();
  return (performance.now() - begun) / 20;
}"""


async def measure(gpus: int, runs: int, screenshots: Path | None) -> dict[str, float]:
    configure_logging("error")
    async with EmbeddedServer() as nats, await NatsBus.connect(nats.url) as bus:
        await provision(bus)
        await answer_for_placement(bus, gpus)
        async with (
            running(MetricsService, Config(page_port=0), bus_url=nats.url) as ctx,
            browser(chromium_or_skip()) as chromium,
        ):
            slices = await publish_fleet(bus, gpus)
            address = ctx.health.report()["parts"]["page"]["detail"]
            await eventually(lambda: ctx.metrics.render().decode().count("kerf_node_gpus{") == gpus // 8, within_s=120)
            paints, fleets = [], []
            for _ in range(runs):
                first, fleet = await _load(chromium, address)
                paints.append(first)
                fleets.append(fleet)
            complaints: list[str] = []
            async with opened(chromium, address, complaints=complaints) as page:
                await expect(page.locator("#link-text")).to_have_text("live")
                deltas = [await _delta(bus, page, number) for number in range(5)]
                frame = await page.evaluate(FRAME)
                if screenshots is not None:
                    await page.screenshot(path=screenshots / "page-5000.png")
            if complaints:
                raise SystemExit(f"the page complains: {complaints}")
    return {
        "gpus": gpus,
        "slices": slices,
        "first_paint_ms": round(statistics.median(paints), 1),
        "first_paint_ms_max": round(max(paints), 1),
        "fleet_ms": round(statistics.median(fleets), 1),
        "fleet_ms_max": round(max(fleets), 1),
        "delta_ms": round(statistics.median(deltas), 1),
        "frame_ms": round(frame, 2),
    }


async def _load(chromium: Browser, address: str) -> tuple[float, float]:
    async with opened(chromium, address, complaints=[]) as page:
        first, fleet = await page.evaluate(PAINTED)
        return float(first), float(fleet)


async def _delta(bus: NatsBus, page: Page, number: int) -> float:
    name = f"fresh-{number}"
    begun = time.monotonic()
    publish(
        bus,
        SliceEnforced(
            node="gpu-0000", uid=name, namespace="bench", name=name, container="main", grant_id=name,
            strategy="advisory", promise="soft", gpus={"GPU-0000-0": (100, 1)},
        ),
    )  # fmt: skip
    await expect(page.locator("#decisions")).to_contain_text(name)
    return (time.monotonic() - begun) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--gpus", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--screenshots", type=Path, help="a folder for a picture of it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = asyncio.run(measure(args.gpus, args.runs, args.screenshots))
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>20} {value}")


if __name__ == "__main__":
    main()
