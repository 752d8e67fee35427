"""Suspension of pods: capacity is free only once the slices confirm it, and no longer free once it is to be resumed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.state import read, write
from shared.contracts.events import SliceEnforced
from shared.contracts.node_commands import Accepted, NodeGrant, NodeSync, NodeSyncAnswer
from shared.model.gpu import Inventory
from shared.model.suspension import SuspendAction, Suspension
from tests.unit.services.node_agent.make import (
    NODE,
    agent,
    answer,
    ended,
    events,
    handed,
    inventory,
    node_grant,
    refusal,
    release,
    released,
    start,
    sync,
)

PAUSE = Suspension(action="pause", plan_id="p")
THROTTLE = Suspension(action="throttle", plan_id="p", compute_milli=100)
CHECKPOINT = Suspension(action="checkpoint", plan_id="p")


def offered() -> m.InventorySeen:
    seen = inventory()
    return msgspec.structs.replace(
        seen, inventory=msgspec.structs.replace(seen.inventory, strategies=("advisory", "interposer"))
    )


def restarted(core: Agent) -> Agent:
    """The agent that goes on with its checkpoint, and has read again what its node offers."""
    again = Agent(NODE, read(write(core.checkpoint()), NODE))
    again.handle(offered(), 0.0)
    return again


def slices(*names: str, **how: Any) -> Agent:
    """Running slices of one strategy that limits compute; by default each has half of a GPU's memory and 600 milli
    compute."""
    core = agent(offered())
    for name in names:
        core.handle(m.GrantReceived(share(name, **how)), 0.0)
        assert handed(core.handle(start(name), 0.0))
    return core


def share(name: str, suspension: Suspension | None = None, *, term: int = 1, **how: Any) -> NodeGrant:
    came = node_grant(name, term=term, **({"compute": 600} | how))
    parts = {key: msgspec.structs.replace(part, strategy="interposer") for key, part in came.grant.containers.items()}
    return msgspec.structs.replace(
        came, grant=msgspec.structs.replace(came.grant, containers=parts, term=1), suspension=suspension
    )


def said(core: Agent, came: NodeGrant, why: str = "") -> Accepted:
    """The answer, after the slices have applied the suspension or failed to."""
    orders = core.handle(m.GrantReceived(came), 0.0)
    suspend = [order for order in orders if isinstance(order, m.SuspendSlices)]
    if suspend:
        assert not any(isinstance(order, m.Answer) for order in orders), "an answer before the slices have applied it"
        orders = core.handle(
            m.SuspensionDone(suspend[0].request, tuple(m.SuspendResult(task, why) for task in suspend[0].tasks)), 0.0
        )
    body = answer(orders)
    assert isinstance(body, Accepted)
    return body


def starts(core: Agent, name: str, **how: Any) -> str:
    core.handle(m.GrantReceived(share(name, **how)), 0.0)
    return refusal(core.handle(start(name), 0.0))


def test_a_suspension_is_saved_then_applied_then_answered() -> None:
    core = slices("a")
    orders = core.handle(m.GrantReceived(share("a", PAUSE)), 0.0)
    assert [type(order) for order in orders] == [m.Save, m.SuspendSlices]
    assert orders[1] == m.SuspendSlices(share("a", PAUSE), (m.SuspendTask("g-a", "u-a", ("main",), PAUSE),), cause=6)
    orders = core.handle(m.SuspensionDone(share("a", PAUSE), (m.SuspendResult(orders[1].tasks[0]),)), 0.0)  # type: ignore[attr-defined]
    assert [type(order) for order in orders] == [m.Save, m.Publish, m.Answer]
    assert answer(orders) == Accepted(
        ok=True, term=1, node=NODE, grant_id="g-a", suspension=PAUSE, amendment=0, whole=True
    )


def test_suspended_capacity_is_free_only_after_the_slices_confirm() -> None:
    core = slices("a")
    assert starts(core, "b", memory=400) == "gpu-compute-full"
    suspend = core.handle(m.GrantReceived(share("a", PAUSE)), 0.0)[1]
    assert isinstance(suspend, m.SuspendSlices)
    assert starts(core, "b", memory=400) == "gpu-compute-full"
    core.handle(m.SuspensionDone(suspend.request, (m.SuspendResult(suspend.tasks[0]),)), 0.0)
    assert starts(core, "b", memory=400) == ""


@pytest.mark.parametrize(("suspension", "memory", "compute", "code"), [
    (PAUSE, 500, 1000, ""), (PAUSE, 501, 0, "gpu-memory-full"),
    (THROTTLE, 500, 900, ""), (THROTTLE, 500, 901, "gpu-compute-full"),
])  # fmt: skip
def test_each_suspend_action_frees_exactly_its_capacity(
    suspension: Suspension, memory: int, compute: int, code: str
) -> None:
    core = slices("a")
    assert said(core, share("a", suspension)).suspension
    assert starts(core, "b", memory=memory, compute=compute) == code


def test_a_failed_suspension_changes_and_frees_nothing() -> None:
    core = slices("a")
    assert said(core, share("a", PAUSE), "its control block cannot be written") == Accepted(
        ok=True,
        reason="its control block cannot be written",
        term=1,
        node=NODE,
        grant_id="g-a",
        amendment=0,
        whole=True,
    )
    assert core.store.ordered_suspension("u-a") is None
    assert starts(core, "b", memory=400) == "gpu-compute-full"


def test_a_failed_pause_keeps_the_earlier_throttle() -> None:
    core = slices("a")
    said(core, share("a", THROTTLE))
    assert said(core, share("a", PAUSE), "no").suspension == THROTTLE
    assert core.store.ordered_suspension("u-a") == THROTTLE
    assert starts(core, "b", memory=400, compute=900) == ""


@pytest.mark.parametrize("action", ["throttle", "pause", "checkpoint"])
def test_an_unsupported_suspension_names_the_strategy_and_runs_no_task(action: SuspendAction) -> None:
    core = agent(m.GrantReceived(node_grant("a")), start("a"))
    orders = core.handle(
        m.GrantReceived(msgspec.structs.replace(node_grant("a"), suspension=Suspension(action=action, plan_id="p"))),
        0.0,
    )
    assert [type(order) for order in orders] == [m.Save, m.Answer]
    body = answer(orders)
    assert isinstance(body, Accepted)
    assert (body.ok, body.suspension, body.reason) == (
        True,
        None,
        f"slices of strategy advisory do not support {action} while they run",
    )


def test_a_restarted_container_of_a_suspended_pod_starts_suspended() -> None:
    core = slices("a")
    said(core, share("a", PAUSE))
    core.handle(ended("a"), 0.0)
    (order,) = [order for order in core.handle(start("a"), 0.0) if isinstance(order, m.HandOver)]
    assert (order.suspension, order.share.gpus[0].compute_milli) == (PAUSE, 600)


def test_a_container_started_while_the_suspension_is_applied_starts_suspended() -> None:
    core = slices()
    core.handle(m.GrantReceived(share("a")), 0.0)
    core.handle(m.GrantReceived(share("a", PAUSE)), 0.0)
    (order,) = [order for order in core.handle(start("a"), 0.0) if isinstance(order, m.HandOver)]
    assert order.suspension == PAUSE


def test_a_grant_without_containers_is_suspended_at_once() -> None:
    core = slices()
    assert said(core, share("a", PAUSE)).suspension
    assert starts(core, "b", compute=1000) == ""
    assert handed(core.handle(start("a"), 0.0))


def test_a_resumed_pod_has_its_whole_share_again() -> None:
    core = slices("a")
    said(core, share("a", PAUSE))
    whole = Accepted(ok=True, term=1, node=NODE, grant_id="g-a", amendment=0, whole=True)
    assert said(core, share("a")) == whole
    assert core.store.ordered_suspension("u-a") is None
    assert starts(core, "b", memory=400) == "gpu-compute-full"


def test_a_resumed_share_is_taken_from_the_order_on() -> None:
    core = slices("a")
    said(core, share("a", PAUSE))
    core.handle(m.GrantReceived(share("a")), 0.0)
    assert starts(core, "b", memory=400) == "gpu-compute-full"


def test_a_pod_cannot_resume_while_other_slices_have_its_share() -> None:
    """R7 holds for resumption, too, whatever placement believes."""
    core = slices("a")
    said(core, share("a", PAUSE))
    assert starts(core, "b", memory=400) == ""
    refused = said(core, share("a"))
    assert (refused.ok, refused.suspension) == (False, PAUSE)
    assert "400 of 1000 milli are not handed over, and the grant needs 600" in refused.reason
    assert core.store.ordered_suspension("u-a") == PAUSE
    core.handle(ended("b"), 0.0)
    suspend = core.handle(m.Tick(), 0.0)[-1]
    assert isinstance(suspend, m.SuspendSlices)
    assert suspend.tasks[0].suspension is None
    core.handle(m.SuspensionDone(suspend.request, (m.SuspendResult(suspend.tasks[0]),)), 0.0)
    assert core.store.ordered_suspension("u-a") is None
    assert core.handle(m.Tick(), 0.0) == []


def test_a_failed_resume_is_retried_until_it_succeeds() -> None:
    """Placement orders it once: from then on its book counts the whole share, and so does the gate."""
    core = slices("a")
    said(core, share("a", PAUSE))
    failed = said(core, share("a"), "its control block cannot be written")
    assert (failed.ok, failed.suspension, failed.reason) == (False, PAUSE, "its control block cannot be written")
    for _ in range(2):
        suspend = core.handle(m.Tick(), 0.0)[-1]
        assert isinstance(suspend, m.SuspendSlices)
        core.handle(m.SuspensionDone(suspend.request, (m.SuspendResult(suspend.tasks[0], "still not"),)), 0.0)
    assert said(core, share("a", PAUSE)).suspension == PAUSE
    assert core.handle(m.Tick(), 0.0) == [], "a newer order came meanwhile"


def test_a_milder_suspension_needs_room_and_a_harder_one_does_not() -> None:
    core = slices("a")
    said(core, share("a", THROTTLE))
    assert said(core, share("a", PAUSE)).suspension
    assert starts(core, "b", memory=400, compute=1000) == ""
    softer = said(core, share("a", THROTTLE))
    assert (softer.ok, softer.suspension) == (True, PAUSE)
    assert core.store.ordered_suspension("u-a") == PAUSE


def test_suspensions_survive_a_restart() -> None:
    core = slices("a")
    said(core, share("a", PAUSE))
    again = restarted(core)
    assert again.store.ordered_suspension("u-a") == PAUSE
    assert starts(again, "b", memory=400) == ""


def test_an_unconfirmed_suspension_frees_nothing_after_a_restart_and_is_applied_again() -> None:
    core = slices("a")
    core.handle(m.GrantReceived(share("a", PAUSE)), 0.0)
    again = restarted(core)
    assert again.store.ordered_suspension("u-a") == PAUSE
    assert starts(again, "b", memory=400) == "gpu-compute-full"
    assert said(again, share("a", PAUSE)).suspension


def restores(orders: list[m.Command]) -> m.SuspendSlices:
    (found,) = [order for order in orders if isinstance(order, m.SuspendSlices)]
    (task,) = found.tasks
    assert task.suspension is None
    assert task.previous is not None
    assert task.previous.action == "checkpoint"
    return found


def test_a_pod_that_an_agent_was_resuming_when_it_was_killed_is_resumed_by_the_next_one() -> None:
    """Some of its processes may still be on the host, and placement has ordered its resumption already."""
    core = slices("a")
    said(core, share("a", CHECKPOINT))
    core.handle(m.GrantReceived(share("a")), 0.0)
    again = Agent(NODE, read(write(core.checkpoint()), NODE))
    tried = restores(again.handle(m.Tick(), 0.0))
    assert not any(isinstance(order, m.SuspendSlices) for order in again.handle(m.Tick(), 1.0)), "it is under way"
    again.handle(m.SuspensionDone(tried.request, (m.SuspendResult(tried.tasks[0], "no"),)), 1.0)
    tried = restores(again.handle(m.Tick(), 2.0))
    again.handle(m.SuspensionDone(tried.request, (m.SuspendResult(tried.tasks[0]),)), 3.0)
    body = answer(again.handle(m.GrantReceived(share("a")), 4.0))
    assert isinstance(body, Accepted)
    assert (body.ok, body.whole, body.suspension) == (True, True, None)


def test_a_pod_whose_suspension_failed_in_part_and_then_succeeded_is_not_restored() -> None:
    """The order came twice: by itself and by a sync. Placement was told of the second result, and other pods have the
    GPU."""
    core = slices("a")
    first = core.handle(m.GrantReceived(share("a", CHECKPOINT)), 0.0)[1]
    again = core.handle(sync(share("a", CHECKPOINT)), 0.0)[1]
    assert isinstance(first, m.SuspendSlices)
    assert isinstance(again, m.SuspendSlices)
    core.handle(m.SuspensionDone(first.request, (m.SuspendResult(first.tasks[0], "no", is_partial=True),)), 1.0)
    (told,) = [
        order.body
        for order in core.handle(m.SuspensionDone(again.request, (m.SuspendResult(again.tasks[0]),)), 2.0)
        if isinstance(order, m.Answer)
    ]
    assert isinstance(told, NodeSyncAnswer)
    assert set(told.suspension) == {"g-a"}
    assert not any(isinstance(order, m.SuspendSlices) for order in core.handle(m.Tick(), 3.0))


def test_the_answer_to_an_order_that_changes_nothing_names_its_number() -> None:
    """Placement asks again by a newer order, when an answer was lost or the memory came back after one. Host memory is
    freed by the answer to the last one alone."""
    core = slices("a")
    said(core, share("a", CHECKPOINT))
    assert said(core, msgspec.structs.replace(share("a"), number=4)).number == 4
    body = answer(core.handle(m.GrantReceived(msgspec.structs.replace(share("a"), number=7)), 1.0))
    assert isinstance(body, Accepted)
    assert (body.number, body.whole) == (7, True)
    late = core.handle(m.GrantReceived(msgspec.structs.replace(share("a", CHECKPOINT), number=6)), 2.0)
    assert [type(order) for order in late] == [m.Answer], "an earlier order that comes late changes nothing"


def test_a_resumption_that_is_ordered_again_is_not_said_to_be_done() -> None:
    core = slices("a")
    said(core, share("a", CHECKPOINT))
    core.handle(m.GrantReceived(share("a")), 0.0)
    again = Agent(NODE, read(write(core.checkpoint()), NODE))
    restores(again.handle(m.GrantReceived(share("a")), 0.0))


def test_the_result_of_an_overtaken_suspension_is_ignored() -> None:
    core = slices("a")
    late = core.handle(m.GrantReceived(share("a", PAUSE)), 0.0)[1]
    assert isinstance(late, m.SuspendSlices)
    assert said(core, share("a")).ok
    body = answer(core.handle(m.SuspensionDone(late.request, (m.SuspendResult(late.tasks[0]),)), 0.0))
    assert isinstance(body, Accepted)
    assert (body.suspension, body.reason) == (None, ""), "the answer does not say that the newer order failed"
    assert starts(core, "b", memory=400) == "gpu-compute-full"


def test_a_sync_is_answered_after_its_suspensions_and_names_those_applied() -> None:
    core = slices("a", "b", memory=100, compute=300)
    grants = tuple(share(name, PAUSE, term=2, memory=100, compute=300) for name in "ab")
    orders = core.handle(sync(*grants, term=2), 0.0)
    assert [type(order) for order in orders] == [m.Save, m.SuspendSlices]
    (suspend,) = [order for order in orders if isinstance(order, m.SuspendSlices)]
    done = (m.SuspendResult(suspend.tasks[0]), m.SuspendResult(suspend.tasks[1], "no"))
    body = answer(core.handle(m.SuspensionDone(suspend.request, done), 0.0))
    assert isinstance(body, NodeSyncAnswer)
    assert (body.accepted, body.suspension, len(body.live)) == (True, {"g-a": PAUSE}, 2)
    assert body.live[0].gpus == {"G0": (100, 300)}, "the granted share, whatever it has of it now"


def test_what_a_slice_has_is_told_when_it_is_suspended_and_when_it_has_all_back() -> None:
    """Usage is counted by it. Each event has its own id: the same id is dropped within two minutes."""
    core, told = slices("a"), []
    for number, suspension, why in ((1, THROTTLE, ""), (2, CHECKPOINT, "no"), (3, CHECKPOINT, ""), (4, None, "")):
        order = m.GrantReceived(msgspec.structs.replace(share("a", suspension), number=number))
        told += [one for one in did(core, tasks(core.handle(order, 0.0)), why) if isinstance(one, m.Publish)]
    said = [one.event for one in told if isinstance(one.event, SliceEnforced)]
    assert [(one.container, one.gpus) for one in said] == [
        ("main", {"G0": (500, 100)}), ("main", {}), ("main", {"G0": (500, 600)})
    ]  # fmt: skip
    assert len({one.event_id for one in told}) == 3


def test_what_a_new_leader_orders_again_changes_nothing_and_is_not_told() -> None:
    core = slices("a")
    said(core, share("a", CHECKPOINT))
    (again,) = [
        one for one in core.handle(sync(share("a", CHECKPOINT), term=2), 0.0) if isinstance(one, m.SuspendSlices)
    ]
    assert not events(core.handle(m.SuspensionDone(again.request, (m.SuspendResult(again.tasks[0]),)), 0.0))


def test_a_slice_that_starts_again_after_a_suspension_has_another_event() -> None:
    """With the id of its first one it would be dropped, and the slice be billed for nothing."""
    core = agent()
    found = inventory().inventory
    core.handle(m.InventorySeen(msgspec.structs.replace(found, strategies=("interposer",))), 0.0)
    ids = []
    for number in (1, 3):
        core.handle(m.GrantReceived(msgspec.structs.replace(share("a"), number=number)), 0.0)
        ids += [one.event_id for one in core.handle(start("a"), 0.0) if isinstance(one, m.Publish)]
        core.handle(ended("a"), 0.0)
        core.handle(m.GrantReceived(msgspec.structs.replace(share("a", CHECKPOINT), number=number + 1)), 0.0)
    assert len(set(ids)) == 2


def test_a_container_that_starts_in_a_suspended_pod_is_told_with_what_is_left() -> None:
    core = slices("a")
    said(core, share("a", THROTTLE))
    core.handle(ended("a"), 0.0)
    (event,) = events(core.handle(start("a"), 0.0))
    assert isinstance(event, SliceEnforced)
    assert event.gpus == {"G0": (500, 100)}


def test_a_sync_without_suspensions_is_answered_at_once() -> None:
    orders = slices("a").handle(sync(share("a")), 0.0)
    assert [type(order) for order in orders] == [m.Save, m.Answer]


def test_a_release_ends_the_suspension() -> None:
    core = slices("a")
    said(core, share("a", PAUSE))
    core.handle(release("a"), 0.0)
    assert core.store.ordered_suspension("u-a") == PAUSE, "until its containers have ended"
    assert released(core.handle(ended("a"), 0.0)) == ["g-a"]
    assert core.store.ordered_suspension("u-a") is None


def test_resuming_a_pod_whose_gpu_is_gone_does_not_crash() -> None:
    """Its GPU is gone meanwhile, so no other slice can have its share."""
    core = slices("a")
    said(core, share("a", PAUSE))
    core.handle(m.InventorySeen(Inventory(node=NODE, boot_id="boot-1")), 0.0)
    assert said(core, share("a")).ok


def test_a_partial_checkpoint_frees_nothing_and_is_restored_later() -> None:
    core = slices("a")
    suspend = core.handle(m.GrantReceived(share("a", CHECKPOINT)), 0.0)[1]
    assert isinstance(suspend, m.SuspendSlices)
    body = answer(
        core.handle(
            m.SuspensionDone(suspend.request, (m.SuspendResult(suspend.tasks[0], "801", is_partial=True),)), 0.0
        )
    )
    assert isinstance(body, Accepted)
    assert (body.ok, body.suspension, body.reason) == (True, None, "801")
    assert starts(core, "b", memory=501, compute=0) == "gpu-memory-full"
    back = core.handle(m.Tick(), 0.0)[-1]
    assert isinstance(back, m.SuspendSlices)
    assert (back.tasks[0].previous, back.tasks[0].suspension) == (CHECKPOINT, None)


@pytest.mark.parametrize("leader", [1, 2], ids=["the same leader", "a new leader"])
def test_a_repeated_checkpoint_that_fails_leaves_the_pod_on_the_host(leader: int) -> None:
    """Another pod has its place on the GPU. The driver may be late for once."""
    core = slices("a", memory=1000, compute=1000)
    order = msgspec.structs.replace(share("a", CHECKPOINT, memory=1000, compute=1000), term=leader)
    assert said(core, msgspec.structs.replace(order, term=1)).suspension == CHECKPOINT
    assert starts(core, "b", memory=1000, compute=1000) == ""
    again = said(core, order, "the driver did not answer")
    assert (again.suspension, again.reason) == (CHECKPOINT, "the driver did not answer")
    assert core.occupied()["G0"] == (1000, 1000)
    back = said(core, msgspec.structs.replace(order, suspension=None))
    assert (back.ok, "are not handed over" in back.reason) == (False, True)


def test_the_second_of_two_orders_under_way_that_fails_leaves_the_pod_on_the_host() -> None:
    """Placement repeats an order that has not been answered for some seconds."""
    core = slices("a", memory=1000, compute=1000)
    order = m.GrantReceived(share("a", CHECKPOINT, memory=1000, compute=1000))
    first, second = tasks(core.handle(order, 0.0)), tasks(core.handle(order, 3.0))
    did(core, first)
    body = answer(did(core, second, "the driver did not answer"))
    assert isinstance(body, Accepted)
    assert body.suspension == CHECKPOINT
    assert starts(core, "b", memory=1000, compute=1000) == ""


def test_a_pod_that_may_be_on_the_host_comes_back_only_where_its_place_is_free() -> None:
    """Its checkpoint failed in part after other slices had been given what it had freed."""
    core = slices("a", memory=1000, compute=1000)
    said(core, share("a", CHECKPOINT, memory=1000, compute=1000))
    assert starts(core, "b", memory=1000, compute=1000) == ""
    again = tasks(core.handle(m.GrantReceived(share("a", CHECKPOINT, memory=1000, compute=1000)), 0.0))
    did(core, again, "801", part=True)
    back = core.handle(m.GrantReceived(share("a", memory=1000, compute=1000)), 0.0)
    assert not any(isinstance(order, m.SuspendSlices) for order in back)
    body = answer(back)
    assert isinstance(body, Accepted)
    assert (body.ok, "are not handed over" in body.reason) == (False, True)


def test_a_checkpointed_pod_frees_its_memory_and_starts_no_container() -> None:
    core = slices("a")
    assert said(core, share("a", CHECKPOINT)).suspension == CHECKPOINT
    assert starts(core, "b", memory=1000, compute=1000) == ""
    assert refusal(core.handle(start("a"), 0.0)) == "suspended"


def test_a_failed_restore_of_a_checkpointed_pod_counts_its_whole_memory() -> None:
    core = slices("a")
    said(core, share("a", CHECKPOINT))
    failed = said(core, share("a"), "the driver answers 2")
    assert (failed.ok, failed.suspension, core.store.ordered_suspension("u-a")) == (False, None, CHECKPOINT)
    assert starts(core, "b", memory=501, compute=0) == "gpu-memory-full"


def tasks(orders: list[m.Command]) -> tuple[NodeGrant | NodeSync | None, m.SuspendTask]:
    """What the slices are told."""
    (told,) = [order for order in orders if isinstance(order, m.SuspendSlices)]
    return told.request, told.tasks[0]


def did(core: Agent, told: tuple[Any, m.SuspendTask], why: str = "", *, part: bool = False) -> list[m.Command]:
    return core.handle(m.SuspensionDone(told[0], (m.SuspendResult(told[1], why, is_partial=part),)), 0.0)


def numbered(number: int, suspension: Suspension | None = None) -> m.GrantReceived:
    return m.GrantReceived(msgspec.structs.replace(share("a", suspension), number=number))


def test_memory_that_later_orders_move_to_the_host_is_not_reported_as_back() -> None:
    """A resumption ends when a checkpoint and another resumption are under way already. Found by the simulation."""
    core = slices("a")
    first = tasks(core.handle(numbered(7, CHECKPOINT), 0.0))
    did(core, first, "the driver failed", part=True)
    again = tasks(core.handle(m.Tick(), 0.0))
    repeated = tasks(core.handle(numbered(7, CHECKPOINT), 0.0))
    resumed = tasks(core.handle(numbered(9), 0.0))
    did(core, again)
    known = core.store.get("g-a")
    assert known is not None
    assert known.on_host, "the checkpoint is still to be carried out"
    did(core, repeated)
    body = answer(did(core, resumed, "the driver failed", part=True))
    assert isinstance(body, Accepted)
    assert not body.whole
    last = tasks(core.handle(m.Tick(), 0.0))
    did(core, last)
    known = core.store.get("g-a")
    assert known is not None
    assert not known.on_host


def test_a_pod_that_waits_on_the_host_for_room_is_not_reported_as_back() -> None:
    """What it has beyond its request may not fit now. Placement asks again, and counts the host's memory as taken."""
    core = slices("a")
    did(core, tasks(core.handle(numbered(7, CHECKPOINT), 0.0)))
    for on_host in (True, True, False):
        request, task = tasks(core.handle(numbered(9), 0.0))
        done = m.SuspensionDone(request, (m.SuspendResult(task, on_host=on_host),))
        orders = core.handle(done, 0.0)
        body = answer(orders)
        assert isinstance(body, Accepted)
        assert body.whole is not on_host
        assert len(events(orders)) == (0 if on_host else 1), "what it has is told when it has it"


def test_containers_are_away_from_the_order_to_the_host_until_all_is_back() -> None:
    """A kubelet that was started again starts them without a question until the agent has registered."""
    core = slices("a")
    assert core.store.away() == []
    checkpointed = tasks(core.handle(numbered(7, CHECKPOINT), 0.0))
    assert core.store.away() == [("u-a", "main")], "ordered"
    did(core, checkpointed)
    resumed = tasks(core.handle(numbered(9), 0.0))
    assert core.store.away() == [("u-a", "main")], "not back yet"
    did(core, resumed)
    assert core.store.away() == []
