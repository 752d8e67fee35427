"""Many concurrent faults, drawn from a seed."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.chaos.cluster import ChaosCluster, loaded, rng, seeds
from tests.chaos.load import Load

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.asyncio(loop_scope="session")]

PODS = int(os.environ.get("KERF_CHAOS_PODS", "80"))
FAULTS = int(os.environ.get("KERF_CHAOS_FAULTS", "6"))


async def strike(cluster: ChaosCluster, chance: random.Random) -> str:
    """One fault; what it stops stays stopped until another one or the end of the storm restores it."""
    process = cluster.site.services[chance.choice(sorted(cluster.site.services))]
    fault = chance.choices(
        ("restart", "kill", "freeze", "thaw", "nats", "wipe", "api", "cut"), (4, 2, 3, 3, 2, 2, 1, 3)
    )[0]
    match fault:
        case "restart":
            process.restart()
        case "kill":
            process.kill()
        case "freeze" if process.alive:
            process.freeze()
        case "thaw":
            for one in cluster.site.services.values():
                if one.frozen:
                    one.thaw()
                elif not one.alive:
                    one.start()
        case "nats" | "wipe":
            await cluster.site.nats.restart(wipe=fault == "wipe")
        case "api":
            cluster.site.plane.kill_api_server()
            cluster.site.plane.start_api_server()
        case "cut":
            cluster.site.wire.cut()
    return f"{fault} {process.name}"


async def storm(cluster: ChaosCluster, load: Load, chance: random.Random) -> list[str]:
    going = asyncio.create_task(load.go(PODS))
    story = []
    for number in range(FAULTS):
        await load.reached((number + 1) * PODS // (FAULTS + 1))
        story.append(await strike(cluster, chance))
    await going
    return story


@pytest.mark.parametrize("seed", seeds(7))
async def test_a_storm_of_faults(cluster: ChaosCluster, seed: int, record_property: pytest.RecordProperty) -> None:
    async with loaded(cluster, seed) as load:
        story = await storm(cluster, load, rng(seed))
        record_property("story", "; ".join(story))
        await load.go(PODS // 4)
        await cluster.verdict(load)
