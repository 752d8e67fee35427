"""Takes the pictures of the live page in docs/: `python -m tools.record_page`, a part of `make picture`.

A simulated cluster of two GPU models and six namespaces, filled until pods wait; then one picture in light and one in
dark colours. They differ a little from run to run, since the cluster decides in real time.
"""

from __future__ import annotations

import asyncio
import io
import random
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import expect

from cli.stack import stack
from cli.up import apply, node_object
from shared.bus.nats_bus import NatsBus
from shared.telemetry.logs import configure_logging
from tests.support.browser import browser, chromium_or_skip, opened

DOCS = Path(__file__).resolve().parents[1] / "docs"
NODES = [
    *({"name": f"h200-{i}", "model": "NVIDIA-H200", "count": 8, "memory_mib": 143_771} for i in range(14)),
    *({"name": f"l40s-{i}", "model": "NVIDIA-L40S", "count": 4, "memory_mib": 46_068} for i in range(14)),
]
NAMESPACES = {"research": 5, "vision": 4, "speech": 2, "serving": 5, "ranking": 3, "notebooks": 4}
WORK = {
    "research": "train", "vision": "detector", "speech": "decoder", "serving": "llm", "ranking": "embed",
    "notebooks": "lab",
}  # fmt: skip
PODS = 260
COLOURS = 96
WIDTH, HEIGHT = 1360, 850
SLICES = 3
"""The picture points at a GPU of a node in the middle that has so many."""


def pod(rng: random.Random, number: int) -> dict[str, Any]:
    namespace = rng.choices(list(NAMESPACES), list(NAMESPACES.values()))[0]
    if number % 31 == 30:
        limits = {"kerf.dev/gpu": "8"}
    elif rng.random() < 0.2:
        limits = {"kerf.dev/gpu": str(rng.choice((1, 1, 2, 4)))}
    else:
        memory, compute = rng.choice((8, 12, 16, 24, 32, 40)), rng.choice((10, 20, 25, 30, 50))
        limits = {"kerf.dev/gpu": "1", "kerf.dev/gpu-memory": f"{memory}Gi", "kerf.dev/gpu-compute": str(compute)}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{WORK[namespace]}-{number}", "namespace": namespace},
        "spec": {"schedulerName": "kerf", "containers": [container]},
    }


async def fill(bus: NatsBus) -> None:
    rng = random.Random(11)  # noqa: S311 - a scene
    pods = [pod(rng, number) for number in range(PODS)]
    for start in range(0, PODS, 10):
        await apply(bus, pods[start : start + 10])


async def main() -> None:
    configure_logging("error")
    path = chromium_or_skip()
    async with stack(NODES, trace_ratio=1.0, page_port=0) as made, browser(path) as chromium:
        await apply(made.bus, [node_object(node) for node in NODES])
        await fill(made.bus)
        for theme in ("light", "dark"):
            async with opened(chromium, made.page, complaints=[], width=WIDTH, height=HEIGHT, theme=theme) as page:
                await expect(page.locator("#link-text")).to_have_text("live")
                await expect(page.locator("#queue li").first).to_be_visible()
                await page.wait_for_timeout(3000)  # until the figures of the last status are there
                for row in range(8):
                    await page.mouse.move(620, 260 + 14 * row)
                    if await page.locator("#map-pods li").count() >= SLICES:
                        break
                save(await page.screenshot(), DOCS / f"page-{theme}.png")


def save(png: bytes, path: Path) -> None:
    """In few colours, so that the file is small."""
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
