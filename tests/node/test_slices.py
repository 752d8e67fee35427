"""From a user's manifest to a running container: every one gets exactly what its pod was granted."""

from __future__ import annotations

import asyncio

from tests.node.world import World, expected, given

SHAPES = (
    {"gpu_memory": "2Gi"},
    {"gpu_memory": "5Gi"},
    {"gpu_memory": "3Gi", "gpu_compute": "10"},
    {"gpu": "2", "gpu_memory": "8Gi"},
    {"gpu_memory": "11Gi"},
)


async def test_thirty_pods_at_once_get_exactly_their_grants_in_every_round(world: World) -> None:
    for number in range(3):
        names = [f"slice-{number}-{i}" for i in range(30)]
        await asyncio.gather(*(world.create_pod(name, **SHAPES[i % len(SHAPES)]) for i, name in enumerate(names)))
        pods = await world.running(*names)
        for name in names:
            assert given(await world.inside(name)) == expected(pods[name]), name
        await world.delete(*names)
        await world.gone(*names)
        await world.free()
