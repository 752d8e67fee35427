"""What changes the slices of the same pods or GPUs excludes each other, in the order in which it came."""

from __future__ import annotations

import asyncio

from services.node_agent.strategies.alone import Alone


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
