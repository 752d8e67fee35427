"""Cordons of GPUs, and the pods on a GPU that fails."""

from __future__ import annotations

import json

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.gpu_state.evictions import AGAIN_S
from services.node_agent.state import Ailment, GpuHistory, read, write
from shared.contracts.events import GpuStateChanged
from shared.contracts.node_commands import NodeCordon, NodeCordonAnswer
from tests.unit.services.node_agent.make import (
    NODE,
    agent,
    answer,
    ended,
    events,
    grant,
    handed,
    inventory,
    release,
    start,
    sync,
)


def cordon(gpu: str = "", *, undo: bool = False, by: str = "ada", reason: str = "") -> m.CordonRequested:
    return m.CordonRequested(NodeCordon(node=NODE, gpu=gpu, undo=undo, by=by, reason=reason))


def cordon_answer(orders: list[m.Command]) -> NodeCordonAnswer:
    body = answer(orders)
    assert isinstance(body, NodeCordonAnswer)
    return body


def states(made: Agent) -> list[str]:
    assert made.gpus.inventory is not None
    return [gpu.state for gpu in made.gpus.inventory.gpus]


def restarted(made: Agent) -> Agent:
    return Agent(NODE, read(write(made.checkpoint()), NODE))


def test_a_cordoned_gpu_is_draining_and_its_reason_names_the_operator() -> None:
    core = agent()
    orders = core.handle(cordon("G1", reason="a noisy fan"), 0)
    assert [type(order) for order in orders] == [m.Save, m.PutInventory, m.Publish, m.Publish, m.Answer], (
        "saved before it is answered"
    )
    changed = [event for event in events(orders) if isinstance(event, GpuStateChanged)]
    assert [(event.uuid, event.state, event.reason) for event in changed] == [
        ("G1", "draining", "cordoned by ada: a noisy fan")
    ]
    assert (states(core), cordon_answer(orders).gpus) == (["healthy", "draining"], ("G1",))


def test_a_node_cordon_covers_all_gpus_and_survives_polls_and_restarts() -> None:
    core = agent(cordon())
    core.handle(inventory(), 1)
    assert states(core) == ["draining", "draining"]
    again = restarted(core)
    again.handle(inventory(), 2)
    assert states(again) == ["draining", "draining"]
    again.handle(cordon(undo=True), 3)
    assert states(again) == ["healthy", "healthy"]


def test_undoing_a_node_cordon_keeps_the_cordon_of_a_single_gpu() -> None:
    core = agent(cordon("G0", by="bob"), cordon(), cordon(undo=True))
    assert states(core) == ["draining", "healthy"]


def test_a_single_gpu_of_a_cordoned_node_cannot_be_uncordoned() -> None:
    refused = cordon_answer(agent(cordon()).handle(cordon("G0", undo=True), 1))
    assert (refused.ok, "whole node" in refused.reason) == (False, True)


def test_a_cordon_of_an_unknown_gpu_is_refused() -> None:
    refused = cordon_answer(agent().handle(cordon("G9"), 1))
    assert (refused.ok, "no GPU G9" in refused.reason) == (False, True)


def test_a_cordon_before_the_first_inventory_is_refused() -> None:
    assert not cordon_answer(Agent(NODE).handle(cordon(), 1)).ok


def test_an_unhealthy_gpu_stays_unhealthy_under_a_cordon() -> None:
    core = agent(inventory(state="unhealthy", reason="Xid 79"), cordon())
    assert states(core) == ["unhealthy", "unhealthy"]


def test_a_repeated_cordon_changes_nothing_and_lists_the_remaining_pods() -> None:
    """It lists the pods that run and those that are yet to start, but not the pods on the other GPU."""
    core = agent(grant("runs"), grant("waits", memory=100), grant("other", gpu="G1"), start("runs"))
    core.handle(cordon("G0"), 1)
    orders = core.handle(cordon("G0", by="bob"), 2)
    assert [type(order) for order in orders] == [m.Answer]
    assert {(pod.name, pod.running) for pod in cordon_answer(orders).pods} == {("runs", True), ("waits", False)}
    for event in (release("waits"), release("runs"), ended("runs")):
        core.handle(event, 3)
    assert cordon_answer(core.handle(cordon("G0"), 4)).pods == ()


def test_a_pod_with_a_grant_may_still_start_on_a_draining_gpu() -> None:
    core = agent(grant("a"), cordon("G0"))
    assert handed(core.handle(start("a"), 1))


def test_uncordoning_a_gpu_clears_its_ailments() -> None:
    """A cordoned GPU that waits for a reset is assumed to have had it."""
    orders = agent().handle(cordon("G0", undo=True), 1)
    assert [order.gpus for order in orders if isinstance(order, m.ClearAilments)] == [("G0",)]


def test_a_change_of_ailments_alone_is_saved() -> None:
    core = agent()
    seen = m.InventorySeen(inventory().inventory, (Ailment(uuid="G0", reason="Xid 48", boot_id="boot-1"),))
    assert [type(order) for order in core.handle(seen, 1)] == [m.Save]
    assert core.handle(seen, 2) == []
    assert restarted(core).gpus.ailments == seen.ailments


def test_a_change_of_the_history_of_a_gpu_alone_is_saved() -> None:
    core = agent()
    history = GpuHistory(uuid="G0", boot_id="boot-1", fault="Xid 4711", fault_at_s=17, ecc_volatile=0)
    seen = m.InventorySeen(inventory().inventory, histories=(history,))
    assert [type(order) for order in core.handle(seen, 1)] == [m.Save]
    assert core.handle(seen, 2) == []
    assert restarted(core).gpus.histories == (history,)


def test_a_checkpoint_of_an_agent_that_kept_no_histories_is_read() -> None:
    before = json.loads(write(agent(grant("a"), start("a")).checkpoint()))
    assert before.pop("gpu_histories", None) is None
    found = read(json.dumps(before).encode(), NODE)
    assert (found.gpu_histories, len(found.leases)) == ((), 1)


def evictions(orders: list[m.Command]) -> list[str]:
    return [f"{e.name}: {e.reason}" for order in orders if isinstance(order, m.EvictPods) for e in order.evictions]


def test_pods_on_an_unhealthy_gpu_are_not_evicted_by_default() -> None:
    core = agent(grant("a"), start("a"), inventory(state="unhealthy", reason="Xid 79"))
    assert core.handle(m.Tick(), 100) == []


def test_with_evict_unhealthy_eviction_is_requested_until_the_pods_are_gone() -> None:
    """Repeated after a while, because a budget may have refused; never for pods on a GPU that is only suspect."""
    made = Agent(NODE, evict_unhealthy=True)
    for event in (
        inventory(),
        sync(),
        *(grant("a"), grant("b", memory=1), start("a")),
        inventory(state="suspect"),
    ):
        made.handle(event, 0)
    assert made.handle(m.Tick(), 1) == []
    made.handle(inventory(state="unhealthy", reason="Xid 79"), 2)
    expected = ["a: GPU G0 is unhealthy: Xid 79", "b: GPU G0 is unhealthy: Xid 79"]
    assert evictions(made.handle(m.Tick(), 3)) == expected
    assert made.handle(m.Tick(), 4) == []
    made.handle(release("b"), 5)
    assert evictions(made.handle(m.Tick(), 3 + AGAIN_S)) == expected[:1]
