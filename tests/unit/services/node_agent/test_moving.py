"""Orders by which a checkpointed pod comes back to other GPUs: what is on disk, tried again, refused and told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.node_agent import adoption
from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.state import read, write
from shared.contracts.node_commands import Accepted, NodeGrant, NodeSyncAnswer
from shared.model.suspension import Suspension
from tests.unit.services.node_agent.make import NODE, answer, handed, inventory, refusal, start, sync
from tests.unit.services.node_agent.test_suspensions import CHECKPOINT, said, share, slices


def moving(name: str, gpu: str, suspension: Suspension | None = None, *, amendment: int = 0, **how: Any) -> NodeGrant:
    came = share(name, suspension, gpu=gpu, **how)
    return msgspec.structs.replace(came, grant=msgspec.structs.replace(came.grant, any_gpu=True, amendment=amendment))


def on_host() -> Agent:
    """A node of two GPUs with a pod of the first one, whose memory is on the host."""
    core = slices()
    core.handle(m.GrantReceived(moving("a", "G0")), 0.0)
    assert handed(core.handle(start("a"), 0.0))
    assert said(core, moving("a", "G0", CHECKPOINT)).suspension == CHECKPOINT
    return core


def restarted(core: Agent) -> Agent:
    return Agent(NODE, read(write(core.checkpoint()), NODE))


def task_of(orders: list[m.Command]) -> m.SuspendTask:
    (order,) = [order for order in orders if isinstance(order, m.SuspendSlices)]
    (task,) = order.tasks
    assert task.move is not None
    return task


def done(core: Agent, task: m.SuspendTask, why: str = "") -> Accepted:
    known = core.store.get(task.grant_id)
    assert known is not None
    body = answer(core.handle(m.SuspensionDone(known.grant, (m.SuspendResult(task, why),)), 0.0))
    assert isinstance(body, Accepted)
    return body


def test_the_order_and_where_the_memory_is_are_saved_before_the_slices_do_anything() -> None:
    core = on_host()
    orders = core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0)
    assert isinstance(orders[0], m.Save)
    task = task_of(orders)
    assert task.move is not None
    assert (task.move.before, task.move.after, task.move.models) == ("G0", "G1", {"G0": "X", "G1": "X"})
    told = done(core, task)
    assert (told.ok, told.amendment, told.whole, told.suspension) == (True, 1, True, None)
    assert [list(live.gpus) for live in core.store.in_force(NODE)] == [["G1"]]


def test_until_it_is_done_its_slices_are_those_of_the_first_gpu_and_run_on_none() -> None:
    core = on_host()
    core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0)
    again = restarted(core)
    found, overrides = adoption.running(again, ("interposer",))
    assert [part.uuid for slice_ in found for part in slice_.parts] == ["G0"]
    assert (overrides["u-a", "main"].paused, overrides["u-a", "main"].memory_mib) == (True, {"G0": 0})
    assert found[0].any_gpu
    again.handle(inventory(), 0.0)
    assert refusal(again.handle(start("a"), 0.0)) != ""


def test_no_container_starts_while_the_memory_is_on_its_way() -> None:
    core = on_host()
    task = task_of(core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0))
    assert refusal(core.handle(start("a"), 0.0)) == "moving"
    done(core, task)
    (order,) = [order for order in core.handle(start("a"), 0.0) if isinstance(order, m.HandOver)]
    assert [part.uuid for part in order.share.gpus] == ["G1"]


def test_the_same_move_is_tried_until_it_succeeds_also_by_the_next_agent() -> None:
    core = on_host()
    first = task_of(core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0))
    told = done(core, first, "the driver answers 1")
    assert (told.ok, told.amendment, told.whole, told.reason) == (False, 0, False, "the driver answers 1")
    second = task_of(core.handle(m.Tick(), 1.0))
    assert second.move == first.move
    again = restarted(core)
    again.handle(inventory(), 1.0)
    third = task_of(again.handle(m.Tick(), 2.0))
    assert third.move == first.move
    assert done(again, third).amendment == 1


def test_an_agent_that_is_killed_while_it_moves_a_pod_goes_on() -> None:
    core = on_host()
    first = task_of(core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0))
    again = restarted(core)
    again.handle(inventory(), 1.0)
    task = task_of(again.handle(m.Tick(), 2.0))
    assert task.move == first.move
    assert done(again, task).whole


def test_another_gpu_may_be_ordered_after_a_move_that_failed() -> None:
    core = on_host()
    done(core, task_of(core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0)), "the driver answers 1")
    task = task_of(core.handle(m.GrantReceived(moving("a", "G0", amendment=2)), 0.0))
    assert task.move is not None
    assert (task.move.before, task.move.after) == ("G0", "G0")
    assert done(core, task).amendment == 2


def test_a_newer_order_that_comes_meanwhile_begins_where_the_older_one_has_ended() -> None:
    core = on_host()
    first = task_of(core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0))
    second = task_of(core.handle(m.GrantReceived(moving("a", "G0", amendment=2)), 0.0))
    assert done(core, first).amendment < 2
    assert [list(live.gpus) for live in core.store.in_force(NODE)] == [["G1"]]
    assert done(core, second).amendment == 2
    assert [list(live.gpus) for live in core.store.in_force(NODE)] == [["G0"]]


def test_a_gpu_that_others_have_taken_is_waited_for() -> None:
    core = on_host()
    core.handle(m.GrantReceived(share("b", gpu="G1")), 0.0)
    assert handed(core.handle(start("b"), 0.0))
    told = answer(core.handle(m.GrantReceived(moving("a", "G1", amendment=1)), 0.0))
    assert isinstance(told, Accepted)
    assert (told.ok, told.amendment, told.suspension) == (False, 0, CHECKPOINT)
    assert "Insufficient" in told.not_resized


@pytest.mark.parametrize(
    ("ordered", "why"),
    [
        (moving("a", "G9", amendment=1), "not on this node"),
        (moving("a", "G1", CHECKPOINT, amendment=1), "not to come back"),
        (moving("a", "G1", amendment=1, memory=400), "other amounts"),
        (share("a", gpu="G1"), "their own GPUs alone"),
    ],
)
def test_what_is_no_move_leaves_the_pod_on_the_host(ordered: NodeGrant, why: str) -> None:
    core = on_host()
    ordered = msgspec.structs.replace(ordered, grant=msgspec.structs.replace(ordered.grant, amendment=1))
    told = said(core, ordered)
    assert (told.amendment, told.suspension) == (0, CHECKPOINT)
    assert ordered.suspension or why in told.not_resized
    known = core.store.get("g-a")
    assert known is not None
    assert (known.grant.suspension, known.in_force) == (CHECKPOINT, None)


def test_a_pod_that_runs_is_not_moved() -> None:
    core = slices()
    core.handle(m.GrantReceived(moving("a", "G0")), 0.0)
    assert handed(core.handle(start("a"), 0.0))
    told = said(core, moving("a", "G1", amendment=1))
    assert (told.ok, told.amendment) == (True, 0)
    assert "not to come back from the host" in told.not_resized


def test_a_program_that_comes_back_to_its_own_gpus_alone_is_told_to_placement_also_after_a_restart() -> None:
    core = on_host()
    core.handle(m.Rehearsed("g-a", "", "the driver answers 1"), 0.0)
    again = restarted(core)
    again.handle(inventory(), 0.0)
    told = said(again, moving("a", "G1", amendment=1))
    assert (told.cannot_move, told.suspension, told.amendment) == ("the driver answers 1", CHECKPOINT, 0)
    body = again.syncs.answer(sync(moving("a", "G0", CHECKPOINT), term=2).sync).body
    assert isinstance(body, NodeSyncAnswer)
    assert body.cannot_move == {"g-a": "the driver answers 1"}


def test_a_failed_rehearsal_of_a_move_is_said_on_the_pod_and_its_turns_go_on() -> None:
    core = on_host()
    (_, said_on_pod) = core.handle(m.Rehearsed("g-a", "", "the driver answers 1"), 0.0)
    assert isinstance(said_on_pod, m.Publish)
    known = core.store.get("g-a")
    assert known is not None
    assert (known.rehearsed, known.cannot_checkpoint, known.cannot_move) == (True, "", "the driver answers 1")
