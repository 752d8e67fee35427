"""Gangs that are held before they are suspended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from services.node_agent.strategies.alone import Alone
from services.node_agent.strategies.holds import Holds
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.stopping import NotQuiet
from shared.model.suspension import Suspension


class Pod:
    """One pod, alone with which its suspender and the hold change what it does, as the real ones are."""

    def __init__(self) -> None:
        self.does, self.stopping, self.fails = "runs", asyncio.Event(), asyncio.Event()
        self._alone = Alone()
        self.checkpointer: Any = self
        self.before = ""

    def gate_of(self, uid: str) -> Any:
        assert uid == "u"
        self.before = self.does
        return self

    def hold(self) -> None:
        self.does = "held"

    def as_before(self) -> None:
        self.does = self.before

    @contextlib.asynccontextmanager
    async def alone_with(self, uids: Collection[str]) -> AsyncIterator[None]:
        async with self._alone.on(set(uids)):
            yield

    async def stop(self, uids: Collection[str], gate: Any, attempts: Any) -> None:
        assert (uids, bool(attempts)) == (("u",), True)
        gate.hold()
        self.stopping.set()
        await self.fails.wait()
        raise NotQuiet("a kernel runs")

    async def let_go(self, pids: Collection[int]) -> None:
        assert not pids

    async def suspend(self) -> None:
        async with self.alone_with(("u",)):
            self.does = "paused"


async def test_a_hold_that_fails_undoes_no_suspension_that_waited_for_it() -> None:
    """The plan was given up, and the next one suspends the pod at once: its order waits until the hold is over, and is
    then carried out and confirmed."""
    pod = Pod()
    holds = Holds(pod)  # type: ignore[arg-type]
    hold = asyncio.create_task(holds.hold(("u",), 60.0))
    await pod.stopping.wait()
    suspension = asyncio.create_task(pod.suspend())
    await asyncio.sleep(0)
    pod.fails.set()
    assert await hold == "a kernel runs"
    await suspension
    assert pod.does == "paused"


class Gate:
    """Of one pod of a node."""

    def __init__(self, node: Node, uid: str) -> None:
        self._node, self._uid, self._before = node, uid, node.does[uid]

    def hold(self) -> None:
        self._node.does[self._uid] = "held"

    def as_before(self) -> None:
        if self._uid in self._node.stuck:
            raise OSError("no space left on device")
        self._node.does[self._uid] = self._before


class Node:
    """Two pods of two processes each, and the locks of those."""

    def __init__(self) -> None:
        self.does = {"a": "runs", "b": "runs"}
        self.pids = {"a": (1, 2), "b": (3, 4)}
        self.locked: set[int] = set()
        self.unknown, self.stuck = set[str](), set[str]()
        """The pods of which the processes are not known, and those of which the gate cannot be opened."""
        self.checkpointer: Any = self
        self._alone = Alone()

    def gate_of(self, uid: str) -> Any:
        return Gate(self, uid)

    @contextlib.asynccontextmanager
    async def alone_with(self, uids: Collection[str]) -> AsyncIterator[None]:
        async with self._alone.on(set(uids)):
            yield

    async def stop(self, uids: Collection[str], gate: Any, attempts: Any) -> tuple[int, ...]:
        assert attempts
        await asyncio.sleep(0)
        gate.hold()
        found = tuple(pid for uid in uids for pid in self.pids[uid])
        self.locked.update(found)
        return found

    async def running(self, uid: str) -> tuple[int, ...]:
        if uid in self.unknown:
            raise LockError("the driver did not answer")
        return self.pids[uid]

    async def let_go(self, pids: Collection[int]) -> None:
        self.locked.difference_update(pids)


async def test_a_hold_that_fails_after_all_were_stopped_unlocks_all_of_them() -> None:
    """Also those of a pod of which it is not known which are its own, and of one that was not asked for yet."""
    for unknown in ("a", "b"):
        node = Node()
        node.unknown.add(unknown)
        assert await Holds(node).hold(("a", "b"), 60.0) == "the driver did not answer"  # type: ignore[arg-type]
        assert (node.locked, node.does) == (set(), {"a": "runs", "b": "runs"})


@pytest.mark.parametrize(
    ("order", "left", "does"),
    [
        (Suspension(action="pause", plan_id="p"), set(), "paused"),
        (Suspension(action="throttle", plan_id="p", compute_milli=100), set(), "throttled"),
        (None, set(), "runs"),
        (Suspension(action="checkpoint", plan_id="p"), {1, 2}, "on the host"),
    ],
)
async def test_an_order_ends_the_hold_of_a_pod_and_what_it_has_changed_stays(
    order: Suspension | None, left: set[int], does: str
) -> None:
    """An order by priority may come in between. Only a checkpoint has taken the locks away itself; here, where it did
    not, they are left as they are."""
    node = Node()
    holds = Holds(node)  # type: ignore[arg-type]
    assert await holds.hold(("a", "b"), 60.0) == ""
    node.does["a"] = does
    await holds.ordered("a", order)
    assert (node.locked, node.does) == ({3, 4} | left, {"a": does, "b": "held"})
    await holds.look(asyncio.get_running_loop().time() + 61)
    assert (node.locked, node.does) == (left, {"a": does, "b": "runs"})


async def test_a_hold_of_which_the_time_is_over_during_an_order_does_not_undo_it() -> None:
    node = Node()
    holds = Holds(node)  # type: ignore[arg-type]
    await holds.hold(("a",), 60.0)
    async with node.alone_with(("a",)):
        look = asyncio.create_task(holds.look(asyncio.get_running_loop().time() + 61))
        await asyncio.sleep(0)
        node.does["a"] = "paused"
    await holds.ordered("a", Suspension(action="pause", plan_id="p"))
    await look
    assert (node.locked, node.does["a"]) == (set(), "paused")


async def test_processes_are_unlocked_where_launches_cannot_be_let_through_and_those_are_tried_again() -> None:
    node = Node()
    holds = Holds(node)  # type: ignore[arg-type]
    await holds.hold(("a", "b"), 60.0)
    node.stuck.add("a")
    await holds.hold(("a", "b"), 0)
    assert (node.locked, node.does) == (set(), {"a": "held", "b": "runs"})
    node.stuck.clear()
    await holds.look(asyncio.get_running_loop().time() + 61)
    assert node.does["a"] == "runs"


async def test_a_pod_that_is_held_twice_at_once_runs_after_both() -> None:
    """Both wait for another order on the same GPU, and the second one comes from a plan after the first one's."""
    node = Node()
    holds = Holds(node)  # type: ignore[arg-type]
    async with node.alone_with(("a",)):
        both = [asyncio.create_task(holds.hold(("a",), 60.0)) for _ in range(2)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*both) == ["", ""]
    await holds.hold(("a",), 0)
    assert (node.locked, node.does["a"]) == (set(), "runs")
