"""Resizing of slices: what is counted, promised and applied when, and what a restart of the agent keeps."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from shared.contracts.events import SliceEnforced
from shared.contracts.node_commands import Accepted, NodeGrant, NodeSyncAnswer
from shared.model.grant import Grant
from tests.unit.services.node_agent.make import (
    NODE,
    answer,
    ended,
    events,
    handed,
    inventory,
    refusal,
    release,
    start,
    sync,
)
from tests.unit.services.node_agent.test_suspensions import PAUSE, restarted, share, slices


def amended(name: str, memory: int, amendment: int = 1, compute: int = 300) -> NodeGrant:
    given = share(name, memory=memory, compute=compute)
    return msgspec.structs.replace(given, grant=msgspec.structs.replace(given.grant, amendment=amendment))


def shrinking(name: str, memory: int, *, has: NodeGrant | None = None) -> NodeGrant:
    """An order to use less. `has`: the grant that is amended, if it was before."""
    held = has or share(name, compute=300)
    return msgspec.structs.replace(held, shrink=amended(name, memory, held.grant.amendment + 1).grant)


def task_of(orders: list[m.Command]) -> m.ResizeSlices:
    (task,) = [order for order in orders if isinstance(order, m.ResizeSlices)]
    return task


def does(core: Agent, order: NodeGrant, reason: str = "") -> Accepted:
    """The order, what its slices do, and the answer."""
    asked = task_of(core.handle(m.GrantReceived(order), 0.0))
    return said(core.handle(m.ResizeDone(asked.request, asked.task, reason), 0.0))


def said(orders: list[m.Command]) -> Accepted:
    body = answer(orders)
    assert isinstance(body, Accepted)
    return body


def mib(grant: Grant | None) -> int:
    return -1 if grant is None else grant.containers["main"].gpus[0].memory_mib


def in_force(core: Agent) -> int:
    (live,) = core.store.in_force(NODE)
    return live.gpus["G0"][0]


def test_a_growth_counts_from_the_order_on_and_is_answered_when_the_slices_have_it() -> None:
    core = slices("a", compute=300)
    asked = task_of(core.handle(m.GrantReceived(amended("a", 900)), 0.0))
    assert (mib(asked.task.before), mib(asked.task.after), asked.task.shrinks) == (500, 900, False)
    assert (core.occupied()["G0"], in_force(core)) == ((900, 300), 500)
    done = core.handle(m.ResizeDone(asked.request, asked.task), 0.0)
    assert (said(done).amendment, said(done).not_resized, in_force(core)) == (1, "", 900)
    (event,) = events(done)
    assert isinstance(event, SliceEnforced)
    assert event.gpus == {"G0": (900, 300)}


def test_another_amendment_of_the_same_number_is_not_believed() -> None:
    """etcd was restored, and the pod was resized anew. Its slices have what the first one gave them, so that is what
    the device gate counts."""
    core = slices("a", compute=300)
    does(core, amended("a", 900))
    again = msgspec.structs.replace(amended("a", 400), term=2, number=1)
    said(core.handle(m.GrantReceived(again), 0.0))
    assert (core.occupied()["G0"], in_force(core)) == ((900, 300), 900)
    smaller = shrinking("a", 300, has=amended("a", 900))
    assert mib(does(core, msgspec.structs.replace(smaller, term=2, number=2)).shrunk) == 300


def test_a_growth_that_failed_is_tried_again_and_not_said_to_be_done() -> None:
    core = slices("a", compute=300)
    answered = does(core, amended("a", 900), "the memory has not come back yet")
    assert (answered.amendment, answered.not_resized) == (0, "the memory has not come back yet")
    asked = task_of(core.handle(m.Tick(), 1.0))
    core.handle(m.ResizeDone(None, asked.task), 1.0)
    assert in_force(core) == 900
    assert said(core.handle(m.GrantReceived(amended("a", 900)), 0.0)).amendment == 1


def test_a_growth_beyond_the_device_is_refused_and_counts_nothing() -> None:
    core = slices("a", "b", compute=300)
    answered = said(core.handle(m.GrantReceived(amended("a", 600)), 0.0))
    assert answered.ok
    assert answered.amendment == 0
    assert "Insufficient memory on GPU G0: 500 MiB of 1000 MiB are not handed over" in answered.not_resized
    assert core.occupied()["G0"] == (1000, 600)


def test_less_is_promised_only_when_the_slices_have_it_and_then_counts() -> None:
    core = slices("a", compute=300)
    asked = task_of(core.handle(m.GrantReceived(shrinking("a", 100)), 0.0))
    assert asked.task.shrinks
    assert core.occupied()["G0"] == (500, 300)
    done = core.handle(m.ResizeDone(asked.request, asked.task), 0.0)
    assert isinstance(done[0], m.Save), "durable before said"
    assert mib(said(done).shrunk) == 100
    assert core.occupied()["G0"] == (100, 300)


def test_less_is_not_promised_when_the_program_has_more() -> None:
    core = slices("a", compute=300)
    answered = does(core, shrinking("a", 100), "it has 400 MiB")
    assert (answered.shrunk, answered.not_resized) == (None, "it has 400 MiB")
    assert core.occupied()["G0"] == (500, 300)


def test_a_promise_holds_for_a_restart_of_container_and_agent_until_the_grant_is_amended() -> None:
    core = slices("a", compute=300)
    does(core, shrinking("a", 100))
    core = restarted(core)
    core.handle(m.GrantReceived(share("a", compute=300, term=2)), 0.0)
    core.handle(ended("a"), 0.0)
    (order,) = [order for order in core.handle(start("a"), 0.0) if isinstance(order, m.HandOver)]
    assert order.share.gpus[0].memory_mib == 100
    told = answer(core.handle(sync(share("a", compute=300, term=2), term=2), 0.0))
    assert isinstance(told, NodeSyncAnswer)
    assert (told.resizes, mib(told.shrunk["g-a"])) == (True, 100)
    withdrawn = msgspec.structs.replace(amended("a", 500), term=2)
    assert does(core, withdrawn).shrunk is None
    assert core.occupied()["G0"] == (500, 300)


def test_an_amendment_never_goes_back() -> None:
    core = slices("a", compute=300)
    does(core, amended("a", 900, amendment=2))
    assert said(core.handle(m.GrantReceived(amended("a", 500, amendment=1)), 0.0)).amendment == 2
    assert in_force(core) == 900


def test_an_agent_that_restarts_while_a_slice_grows_goes_on_with_what_it_had() -> None:
    core = slices("a", compute=300)
    core.handle(m.GrantReceived(amended("a", 900)), 0.0)
    core = restarted(core)
    assert (in_force(core), core.occupied()["G0"]) == (500, (900, 300))
    assert mib(task_of(core.handle(m.Tick(), 0.0)).task.after) == 900


def test_a_container_that_starts_while_its_slice_grows_has_the_larger_amounts() -> None:
    core = slices("a", compute=300)
    core.handle(m.GrantReceived(amended("a", 900)), 0.0)
    core.handle(ended("a"), 0.0)
    assert handed(core.handle(start("a"), 0.0))
    assert refusal(core.handle(start("a"), 0.0)) == ""
    assert core.occupied()["G0"] == (900, 300)


def test_a_suspended_pod_gets_its_amounts_when_it_has_resumed() -> None:
    core = slices("a", compute=300)
    paused = msgspec.structs.replace(amended("a", 900), suspension=PAUSE)
    (suspend,) = [o for o in core.handle(m.GrantReceived(paused), 0.0) if isinstance(o, m.SuspendSlices)]
    core.handle(m.SuspensionDone(paused, tuple(map(m.SuspendResult, suspend.tasks))), 0.0)
    assert not [order for order in core.handle(m.Tick(), 0.0) if isinstance(order, m.ResizeSlices)]
    (resume,) = [o for o in core.handle(m.GrantReceived(amended("a", 900)), 0.0) if isinstance(o, m.SuspendSlices)]
    core.handle(m.SuspensionDone(amended("a", 900), tuple(map(m.SuspendResult, resume.tasks))), 0.0)
    assert mib(task_of(core.handle(m.Tick(), 0.0)).task.after) == 900


def both(memory: int, amendment: int = 0) -> NodeGrant:
    """A grant of two containers with as much each."""
    given = share("a", memory=memory, compute=300, containers=("main", "side"))
    return msgspec.structs.replace(given, grant=msgspec.structs.replace(given.grant, amendment=amendment))


def test_a_container_that_starts_while_its_pod_shrinks_is_refused_and_starts_with_less_afterwards() -> None:
    core = slices(compute=300)
    core.handle(m.GrantReceived(both(400)), 0.0)
    assert handed(core.handle(start("a"), 0.0))
    order = msgspec.structs.replace(both(400), shrink=both(100, amendment=1).grant, number=1)
    asked = task_of(core.handle(m.GrantReceived(order), 0.0))
    assert refusal(core.handle(start("a", "side"), 0.0)) == "resizing"
    assert mib(said(core.handle(m.ResizeDone(asked.request, asked.task), 0.0)).shrunk) == 100
    (given,) = [order for order in core.handle(start("a", "side"), 0.0) if isinstance(order, m.HandOver)]
    assert given.share.gpus[0].memory_mib == 100


def test_less_is_not_promised_for_a_container_that_was_not_shrunk() -> None:
    core = slices(compute=300)
    core.handle(m.GrantReceived(both(400)), 0.0)
    assert handed(core.handle(start("a"), 0.0))
    assert handed(core.handle(start("a", "side"), 0.0))
    order = msgspec.structs.replace(both(400), shrink=both(100, amendment=1).grant, number=1)
    asked = task_of(core.handle(m.GrantReceived(order), 0.0))
    partly = msgspec.structs.replace(asked.task, containers=("main",))
    assert said(core.handle(m.ResizeDone(asked.request, partly), 0.0)).shrunk is None
    assert task_of(core.handle(m.Tick(), 1.0)).task.containers == ("main", "side")


def test_an_order_about_other_gpus_changes_nothing() -> None:
    core = slices("a", compute=300)
    other = msgspec.json.decode(msgspec.json.encode(amended("a", 100).grant).replace(b'"G0"', b'"G9"'), type=Grant)
    for order in (
        msgspec.structs.replace(share("a", compute=300), shrink=other),
        msgspec.structs.replace(share("a", compute=300), grant=other),
    ):
        core.handle(m.GrantReceived(order), 0.0)
        assert not [one for one in core.handle(m.Tick(), 1.0) if isinstance(one, m.ResizeSlices)]
        assert (in_force(core), core.occupied()["G0"]) == (500, (500, 300))


def test_a_shrink_that_was_withdrawn_while_it_was_done_is_undone_and_not_promised() -> None:
    core = slices("a", compute=300)
    asked = task_of(core.handle(m.GrantReceived(msgspec.structs.replace(shrinking("a", 100), number=5)), 0.0))
    withdrawn = msgspec.structs.replace(share("a", compute=300), number=6)
    assert "are being resized" in said(core.handle(m.GrantReceived(withdrawn), 0.0)).not_resized, "not settled yet"
    assert said(core.handle(m.ResizeDone(asked.request, asked.task), 0.0)).shrunk is None
    assert (in_force(core), core.occupied()["G0"]) == (100, (500, 300))
    restored = task_of(core.handle(m.GrantReceived(withdrawn), 0.0))
    assert (mib(restored.task.after), restored.task.shrinks) == (500, False)
    done = said(core.handle(m.ResizeDone(restored.request, restored.task), 0.0))
    assert (done.not_resized, in_force(core)) == ("", 500)


def test_an_agent_that_restarts_while_a_slice_shrinks_restores_what_nobody_wants_to_shrink_any_more() -> None:
    core = slices("a", compute=300)
    (save, asked) = core.handle(m.GrantReceived(shrinking("a", 100)), 0.0)
    assert (type(save), type(asked)) == (m.Save, m.ResizeSlices)
    core = restarted(core)
    core.handle(sync(share("a", compute=300, term=2), term=2), 0.0)
    restored = task_of(core.handle(m.Tick(), 0.0))
    assert (mib(restored.task.after), restored.task.shrinks) == (500, False)
    assert core.occupied()["G0"] == (500, 300)


@pytest.mark.parametrize("grows", [False, True])
def test_a_shrink_that_is_refused_leaves_what_was_in_force(grows: bool) -> None:
    core = slices("a", compute=300)
    if grows:
        does(core, amended("a", 900), "other slices have borrowed it")
    does(core, shrinking("a", 100, has=amended("a", 900) if grows else None), "it has 400 MiB")
    assert in_force(core) == 500
    again = [one for one in core.handle(m.Tick(), 0.0) if isinstance(one, m.ResizeSlices)]
    assert [mib(one.task.after) for one in again] == ([900] if grows else [])


def test_a_growth_that_is_ordered_while_a_shrink_is_refused_is_done() -> None:
    core = slices("a", compute=300)
    asked = task_of(core.handle(m.GrantReceived(shrinking("a", 100)), 0.0))
    core.handle(m.GrantReceived(amended("a", 900)), 0.0)
    core.handle(m.ResizeDone(asked.request, asked.task, "it has 400 MiB"), 0.0)
    assert in_force(core) == 500
    assert mib(task_of(core.handle(m.Tick(), 0.0)).task.after) == 900


def test_a_shrink_of_the_leader_before_ends_with_the_sync_of_the_next() -> None:
    core = slices("a", compute=300)
    asked = task_of(core.handle(m.GrantReceived(shrinking("a", 100)), 0.0))
    core.handle(sync(share("a", compute=300, term=2), term=2), 0.0)
    assert said(core.handle(m.ResizeDone(asked.request, asked.task), 0.0)).shrunk is None
    assert mib(task_of(core.handle(m.Tick(), 0.0)).task.after) == 500


def test_slices_that_could_not_be_restored_are_restored_later() -> None:
    core = slices("a", compute=300)
    asked = task_of(core.handle(m.GrantReceived(shrinking("a", 100)), 0.0))
    answered = said(core.handle(m.ResizeDone(asked.request, asked.task, "it has 400 MiB", is_partial=True), 0.0))
    assert (answered.shrunk, answered.not_resized) == (None, "it has 400 MiB")
    assert mib(task_of(core.handle(m.Tick(), 1.0)).task.after) == 500


def test_a_sync_has_a_pod_promise_less_before_its_container_starts() -> None:
    """An agent without a checkpoint: an amendment to less may be on its way by an earlier promise."""
    core = slices()
    told = answer(core.handle(sync(shrinking("a", 100)), 0.0))
    assert isinstance(told, NodeSyncAnswer)
    assert [mib(promise) for promise in told.shrunk.values()] == [100]
    (order,) = [order for order in core.handle(start("a"), 0.0) if isinstance(order, m.HandOver)]
    assert [gpu.memory_mib for gpu in order.share.gpus] == [100]


def test_slices_that_run_promise_nothing_by_a_sync() -> None:
    core = slices("a")
    told = answer(core.handle(sync(shrinking("a", 100)), 0.0))
    assert isinstance(told, NodeSyncAnswer)
    assert not told.shrunk
    assert mib(does(core, shrinking("a", 100)).shrunk) == 100


def test_without_a_sync_no_grant_is_taken_and_no_order_answered() -> None:
    """An agent without a checkpoint: it may be the order of an earlier leader, by a grant that was amended since."""
    core = Agent(NODE)
    seen = inventory().inventory
    core.handle(m.InventorySeen(msgspec.structs.replace(seen, strategies=("advisory", "interposer"))), 0.0)
    assert core.handle(m.GrantReceived(share("a")), 0.0) == []
    assert core.handle(release("a"), 0.0) == []
    assert refusal(core.handle(start("a"), 0.0)) == "no-grant"
    core.handle(sync(msgspec.structs.replace(amended("a", 100), term=2), term=2), 0.0)
    (order,) = [order for order in core.handle(start("a"), 0.0) if isinstance(order, m.HandOver)]
    assert mib(msgspec.structs.replace(share("a").grant, containers={"main": order.share})) == 100


def test_the_gate_counts_what_slices_still_have_of_a_grant_that_was_amended_to_less() -> None:
    """Not promised before: the amendment came by a promise that is lost. What their program has is not taken."""
    core = slices("a")
    asked = task_of(core.handle(m.GrantReceived(amended("a", 100, compute=600)), 0.0))
    assert (mib(asked.task.after), asked.task.shrinks) == (100, True)
    assert core.occupied()["G0"] == (500, 600)
    core.handle(m.ResizeDone(asked.request, asked.task, "the program has more"), 0.0)
    assert core.occupied()["G0"] == (500, 600)
    again = task_of(core.handle(m.Tick(), 1.0))
    core.handle(m.ResizeDone(again.request, again.task, "it cannot be written back", is_partial=True), 1.0)
    assert core.occupied()["G0"] == (500, 600)
    assert [order for at in range(2, 11) for order in core.handle(m.Tick(), float(at))] == [], "less and less often"
    again = task_of(core.handle(m.Tick(), 11.0))
    core.handle(m.ResizeDone(again.request, again.task), 11.0)
    rest = task_of(core.handle(m.Tick(), 12.0))
    core.handle(m.ResizeDone(rest.request, rest.task), 12.0)
    assert core.occupied()["G0"] == (100, 600)
    assert core.handle(m.Tick(), 13.0) == []


def test_a_promise_before_the_start_is_kept_where_another_amendment_was_under_way() -> None:
    core = slices("a", compute=300)
    growth = task_of(core.handle(m.GrantReceived(amended("a", 900)), 0.0))
    core.handle(m.ResizeDone(growth.request, growth.task, "what was lent has not come back"), 0.0)
    core.handle(ended("a"), 0.0)
    told = said(core.handle(m.GrantReceived(shrinking("a", 100, has=amended("a", 900))), 0.0))
    assert mib(told.shrunk) == 100


def test_a_sync_promises_nothing_of_slices_that_are_being_resized() -> None:
    core = slices("a", compute=300)
    task_of(core.handle(m.GrantReceived(amended("a", 900)), 0.0))
    core.handle(ended("a"), 0.0)
    order = msgspec.structs.replace(shrinking("a", 100, has=amended("a", 900)), term=2)
    told = answer(core.handle(sync(order, term=2), 0.0))
    assert isinstance(told, NodeSyncAnswer)
    assert not told.shrunk


def test_a_growth_that_waits_for_lent_memory_waits_on_when_less_is_wanted() -> None:
    """It gets no memory that is still lent, and promises the smaller amounts."""
    core = slices("a", compute=300)
    growth = task_of(core.handle(m.GrantReceived(amended("a", 900)), 0.0))
    core.handle(m.ResizeDone(growth.request, growth.task, "what was lent has not come back"), 0.0)
    asked = task_of(core.handle(m.GrantReceived(shrinking("a", 800, has=amended("a", 900))), 0.0))
    assert (mib(asked.task.before), mib(asked.task.after)) == (500, 500)
    told = said(core.handle(m.ResizeDone(asked.request, asked.task), 0.0))
    assert (mib(told.shrunk), told.amendment, in_force(core)) == (800, 0, 500)
    rest = task_of(core.handle(m.Tick(), 1.0))
    assert (mib(rest.task.after), rest.task.shrinks) == (800, False)
    core.handle(m.ResizeDone(rest.request, rest.task), 1.0)
    assert in_force(core) == 800
