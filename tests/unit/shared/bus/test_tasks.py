"""Cancellations that get lost on the way: in nats-py's flush, and in wait_for of Python 3.11."""

from __future__ import annotations

import asyncio

from shared.bus.nats_bus import NatsBus
from shared.bus.tasks import end
from shared.contracts import subjects


async def test_a_task_that_swallows_cancellations_is_cancelled_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    assert await end(task)
    assert swallowed == 2


async def test_a_task_that_never_ends_is_given_up_on() -> None:
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    assert not await end(task, within_s=0.3)
    release.set()
    await task


async def test_tasks_that_have_ended_need_no_cancellation() -> None:
    async def fails() -> None:
        raise ValueError("its own affair")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    assert await end(task)
    assert isinstance(task.exception(), ValueError)


async def test_a_watch_can_be_stopped_at_any_moment_of_its_life(bus: NatsBus) -> None:
    """At each of many points between start and first listing, and after. (It hung once: a lost cancellation.)"""

    async def handler(entry: object) -> None:
        return

    kv = bus.kv(subjects.KV_NODES)
    for number in range(20):
        await kv.put(f"k{number}", b"1")
    for steps in range(60):
        starting = asyncio.create_task(kv.watch(handler))
        for _ in range(steps):
            await asyncio.sleep(0)
        assert await end(starting)
        if starting.cancelled():
            continue
        await starting.result().stop()
