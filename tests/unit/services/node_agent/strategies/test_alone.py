"""What changes the slices of the same pods or GPUs excludes each other, in the order in which it came."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from services.node_agent.strategies.alone import Alone
from services.node_agent.strategies.suspension import Suspender


class Scene:
    def __init__(self) -> None:
        self.alone, self.inside = Alone(), list[str]()
        self.go: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def enters(self, name: str, *wanted: str) -> None:
        self.go[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._stay(name, wanted))
        await self.settle()

    async def leaves(self, name: str) -> None:
        self.go[name].set()
        await self.tasks[name]
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _stay(self, name: str, wanted: tuple[str, ...]) -> None:
        async with self.alone.on(wanted):
            self.inside.append(name)
            await self.go[name].wait()
            self.inside.remove(name)


async def test_different_gpus_go_on_and_the_same_ones_wait() -> None:
    scene = Scene()
    await scene.enters("a", "pod-a", "gpu-0")
    await scene.enters("b", "pod-b", "gpu-1")
    await scene.enters("c", "pod-c", "gpu-1", "gpu-2")
    assert scene.inside == ["a", "b"]
    await scene.leaves("b")
    assert scene.inside == ["a", "c"]


async def test_who_wants_much_is_not_overtaken_by_those_that_want_a_part_of_it() -> None:
    scene = Scene()
    await scene.enters("a", "gpu-0")
    await scene.enters("gang", "gpu-0", "gpu-1")
    await scene.enters("b", "gpu-1")
    await scene.enters("c", "gpu-2")
    assert scene.inside == ["a", "c"]
    await scene.leaves("a")
    assert scene.inside == ["c", "gang"]
    await scene.leaves("gang")
    assert scene.inside == ["c", "b"]


async def test_one_that_is_cancelled_while_it_waits_keeps_nobody_back() -> None:
    scene = Scene()
    await scene.enters("a", "gpu-0")
    await scene.enters("gang", "gpu-0", "gpu-1")
    await scene.enters("b", "gpu-1")
    scene.tasks["gang"].cancel()
    await scene.settle()
    assert scene.inside == ["a", "b"]


async def test_one_that_is_cancelled_at_its_turn_gives_it_to_the_next() -> None:
    scene = Scene()
    async with scene.alone.on(["gpu-0"]):
        await scene.enters("b", "gpu-0")
        await scene.enters("c", "gpu-0")
    scene.tasks["b"].cancel()  # its turn has come, and it has not heard of it
    await scene.settle()
    assert scene.inside == ["c"]


async def test_a_pod_that_comes_to_other_gpus_while_it_waits_has_those_for_itself_too() -> None:
    live = {"pod": ["gpu-0"], "old": ["gpu-0"], "new": ["gpu-1"]}
    suspender = Suspender(
        *(cast("Any", None), {}),
        cast("Any", lambda: [SimpleNamespace(uid=uid, gpus=gpus) for uid, gpus in live.items()]),
        *(cast("Any", None), cast("Any", None)),
    )
    scene, inside = Scene(), list[str]()

    async def stay(uid: str) -> None:
        async with suspender.alone_with((uid,)):
            inside.append(uid)
            await scene.go[uid].wait()
            inside.remove(uid)

    scene.go = {uid: asyncio.Event() for uid in live}
    tasks = []
    for uid in ("old", "new", "pod"):
        tasks.append(asyncio.create_task(stay(uid)))
        await scene.settle()
    assert inside == ["old", "new"]
    live["pod"] = ["gpu-1"]
    scene.go["old"].set()
    await scene.settle()
    assert inside == ["new"]
    scene.go["new"].set()
    await scene.settle()
    assert inside == ["pod"]
    scene.go["pod"].set()
    await asyncio.gather(*tasks)
