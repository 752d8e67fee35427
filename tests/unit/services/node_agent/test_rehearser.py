"""When a pod is rehearsed again, and what becomes of what a rehearsal has left on the host."""

from __future__ import annotations

import itertools
from typing import Any, cast

import msgspec
import pytest
import structlog

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.rehearser import MOST_TRIES, Rehearser
from services.node_agent.strategies.locks import NoWorker
from services.node_agent.strategies.stopping import NotQuiet
from shared.model.suspension import Suspension
from tests.unit.services.node_agent.test_rehearsals import asked
from tests.unit.services.node_agent.test_suspensions import CHECKPOINT, PAUSE, slices


class Suspender:
    """Answers to a rehearsal as it is told."""

    def __init__(self) -> None:
        self.answers: list[str | Exception | None] = []
        self.moved_back: list[str] = []

    def living_bytes(self, uid: str) -> int:
        return 1

    def waits_on_host(self, uid: str) -> bool:
        return False

    async def rehearse(self, uid: str, still: Any, move: Any, immovable: Any) -> str | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def is_on_host(self, uid: str) -> bool:
        return True

    async def move_back(self, uid: str) -> str:
        self.moved_back.append(uid)
        return "" if len(self.moved_back) > 1 else "not yet"


class World:
    def __init__(self) -> None:
        self.core: Agent = slices("a")
        self.core.handle(m.GrantReceived(asked("a", number=1)), 0.0)
        self.suspender = Suspender()
        context = cast("Any", msgspec.defstruct("Ctx", ["log"])(structlog.get_logger()))
        self.rehearser = Rehearser(context, self.core, cast("Any", self.suspender), settled_s=10, tell=self.tell)

    async def tell(self, event: m.Input) -> None:
        self.core.handle(event, 0.0)

    @property
    def found(self) -> tuple[bool, str]:
        known = self.core.store.get("g-a")
        assert known is not None
        return known.rehearsed, known.cannot_checkpoint


async def test_a_pod_that_was_not_tried_is_tried_again_without_end() -> None:
    world = World()
    world.suspender.answers = [None] * 20 + [""]
    for now_s in range(0, 20 * 20, 10):
        await world.rehearser.look(now_s)
    assert (world.found, world.suspender.answers) == ((True, ""), [])


async def test_a_pod_is_tried_ever_more_rarely_while_the_locks_cannot_be_used() -> None:
    world = World()
    world.suspender.answers = [NoWorker("no driver")] * 8 + [""]
    tried_s, left = [], 9
    for now_s in range(0, 4000, 10):
        await world.rehearser.look(now_s)
        if len(world.suspender.answers) < left:
            left = len(world.suspender.answers)
            tried_s.append(now_s)
    assert [later - one for one, later in itertools.pairwise(tried_s)] == [20, 40, 80, 160, 320, 640, 640, 640]
    assert world.found == (True, "")


async def test_a_pod_that_cannot_be_stopped_is_tried_later_and_later_and_then_excluded() -> None:
    world = World()
    world.suspender.answers = [NotQuiet("busy")] * MOST_TRIES
    tried_s, left = [], MOST_TRIES
    for now_s in range(0, 200, 10):
        await world.rehearser.look(now_s)
        if len(world.suspender.answers) < left:
            left = len(world.suspender.answers)
            tried_s.append(now_s)
    assert (tried_s, world.found) == ([10, 30, 70], (True, "busy"))


@pytest.mark.parametrize(("ordered", "moved"), [(PAUSE, 2), (CHECKPOINT, 0), (None, 2)])
async def test_what_is_left_on_the_host_comes_back_unless_a_checkpoint_is_ordered(
    ordered: Suspension | None, moved: int
) -> None:
    world = World()
    world.suspender.answers = ["a part is still there"]
    await world.rehearser.look(0.0)
    await world.rehearser.look(10.0)
    known = world.core.store.get("g-a")
    assert known is not None
    grant = msgspec.structs.replace(known.grant, suspension=ordered)
    world.core.store.put(msgspec.structs.replace(known, grant=grant))
    for now_s in (12.0, 14.0, 16.0):
        await world.rehearser.look(now_s)
    assert world.suspender.moved_back == ["u-a"] * moved
