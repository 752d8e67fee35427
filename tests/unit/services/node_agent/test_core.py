"""The node agent's core: what it hands over, releases and refuses."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.releases import REPEAT_S
from services.node_agent.state import Checkpoint, CheckpointError, read, write
from shared.contracts.events import Event, GpuStateChanged, NodeInventoried, SliceEnforced, SliceReleased
from shared.contracts.node_commands import NodeSyncAnswer
from tests.unit.services.node_agent.make import (
    NODE,
    accepted,
    agent,
    answer,
    ended,
    events,
    grant,
    handed,
    inventory,
    node_grant,
    refusal,
    release,
    released,
    start,
    sync,
)  # fmt: skip


def synced(orders: list[m.Command]) -> NodeSyncAnswer:
    body = answer(orders)
    assert isinstance(body, NodeSyncAnswer)
    return body


def test_a_grant_is_saved_before_it_is_accepted() -> None:
    """Placement relies on an accepted grant through a crash."""
    orders = agent().handle(grant("a"), 0)
    assert [type(order) for order in orders] == [m.Save, m.Answer]
    assert accepted(orders)


def test_a_repeated_grant_is_not_saved_again() -> None:
    assert [type(order) for order in agent(grant("a")).handle(grant("a"), 0)] == [m.Answer]


def test_a_container_gets_exactly_its_share() -> None:
    orders = agent(grant("a", memory=300)).handle(start("a"), 0)
    hand_over = next(order for order in orders if isinstance(order, m.HandOver))
    assert (hand_over.grant_id, hand_over.share.gpus[0].memory_mib) == ("g-a", 300)
    assert isinstance(orders[0], m.Save)


def test_the_event_of_a_slice_promises_no_more_than_is_enforced() -> None:
    """Whatever was granted, the event says advisory and soft while nothing limits the GPU."""
    (event,) = events(agent(grant("a")).handle(start("a"), 0))
    assert isinstance(event, SliceEnforced)
    assert (event.strategy, event.promise, event.gpus, event.model) == ("advisory", "soft", {"G0": (500, 0)}, "X")


def test_a_restarted_container_gets_the_same_share_without_a_second_event() -> None:
    core = agent(grant("a"), start("a"))
    orders = core.handle(start("a"), 0)
    assert handed(orders)
    assert events(orders) == []


@pytest.mark.parametrize(
    ("before", "asked", "code"),
    [
        ((), start("a"), "no-grant"),
        ((grant("a"),), start("a", "other"), "no-share"),
        ((grant("a"), start("a"), release("a")), start("a"), "grant-leaving"),
        ((grant("a"), release("a")), start("a"), "no-grant"),
        ((grant("a", gpu="G9"),), start("a"), "gpu-gone"),
        ((grant("a"), inventory(gpus=("G0",), state="unhealthy")), start("a"), "gpu-unhealthy"),
        ((grant("a", memory=1001),), start("a"), "gpu-memory-full"),
        ((grant("a"), grant("b", memory=501), start("a")), start("b"), "gpu-memory-full"),
        ((grant("a", compute=600), grant("b", compute=401), start("a")), start("b"), "gpu-compute-full"),
        ((grant("a"), inventory(gpus=("G7", "G1"))), start("a"), "gpu-gone"),
    ],
)
def test_a_start_that_is_not_allowed_is_refused(before: tuple[m.Input, ...], asked: m.Input, code: str) -> None:
    """R7, fail closed: the container does not start, and the kubelet shows why."""
    orders = agent(*before).handle(asked, 0)
    assert refusal(orders) == code
    assert not handed(orders)


def test_the_grant_of_an_unknown_pod_is_fetched() -> None:
    assert m.FetchGrant("u-a", cause=3) in agent().handle(start("a"), 0)


@pytest.mark.parametrize(("memory", "compute", "code"), [(400, 0, "gpu-memory-full"), (0, 400, "gpu-compute-full")])
def test_the_device_gate_counts_all_slices_on_a_gpu(memory: int, compute: int, code: str) -> None:
    core = agent(*(grant(name, memory=memory, compute=compute) for name in "abc"), start("a"), start("b"))
    assert refusal(core.handle(start("c"), 0)) == code


def test_the_share_of_a_releasing_grant_is_not_free() -> None:
    """R7: its container counts as running until it is seen to end."""
    core = agent(grant("a"), start("a"), release("a"), grant("b", memory=501))
    assert refusal(core.handle(start("b"), 0)) == "gpu-memory-full"
    core.handle(ended("a"), 0)
    assert handed(core.handle(start("b"), 0))


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ((grant("a", memory=500), grant("b", memory=500), start("a")), start("b")),
        ((grant("a", memory=900), grant("b", memory=900, gpu="G1"), start("a")), start("b")),
        ((grant("a", memory=900), grant("b", memory=900), start("a"), ended("a")), start("b")),
        ((grant("a"), inventory(state="suspect")), start("a")),
    ],
)
def test_a_start_that_fits_is_handed_over(before: tuple[m.Input, ...], asked: m.Input) -> None:
    assert handed(agent(*before).handle(asked, 0))


# --- giving back ------------------------------------------------------------------------------------------------


def test_a_running_slice_is_released_only_when_its_containers_have_ended() -> None:
    core = agent(grant("a", containers=("x", "y"), memory=100), start("a", "x"), start("a", "y"))
    assert released(core.handle(release("a"), 0)) == []
    assert released(core.handle(ended("a", "x"), 0)) == []
    assert released(core.handle(ended("a", "y"), 0)) == ["g-a"]


@pytest.mark.parametrize("last", [ended("a"), inventory("boot-2")], ids=["its container ends", "the node reboots"])
def test_a_release_is_saved_before_it_is_published(last: m.Input) -> None:
    """Placement grants the share to another pod at once; an agent that forgot the release would hand it over again."""
    orders = agent(grant("a"), start("a"), release("a")).handle(last, 0)
    assert isinstance(orders[0], m.Save)
    assert released(orders) == ["g-a"]


def test_a_container_that_ends_by_itself_releases_nothing() -> None:
    """It may start again by its grant; only placement knows that the pod has finished."""
    core = agent(grant("a"), start("a"))
    assert released(core.handle(ended("a"), 0)) == []
    assert handed(core.handle(start("a"), 0))


@pytest.mark.parametrize("before", [(), (grant("a"),)])
def test_a_grant_without_containers_is_released_at_once(before: tuple[m.Input, ...]) -> None:
    """Also an unknown grant: the promise is that it will never be handed over."""
    orders = agent(*before).handle(release("a"), 0)
    assert isinstance(orders[0], m.Save)
    assert released(orders) == ["g-a"]


def test_a_released_grant_is_not_handed_over_again() -> None:
    """Neither a grant nor a sync revives it, under any term."""
    core = agent(grant("a"), release("a"))
    assert not accepted(core.handle(grant("a", term=9), 0))
    assert synced(core.handle(sync(node_grant("a", term=10), term=10), 0)).tombstones == ("g-a",)
    assert refusal(core.handle(start("a"), 0)) == "no-grant"


def test_a_release_is_repeated_until_it_is_acknowledged() -> None:
    core = agent(grant("a"), release("a"))
    assert released(core.handle(m.Tick(), REPEAT_S - 1)) == []
    assert released(core.handle(m.Tick(), REPEAT_S)) == ["g-a"]
    core.handle(m.ReleasesBooked(("g-a",)), REPEAT_S)
    assert released(core.handle(m.Tick(), 9 * REPEAT_S)) == []


def test_an_acknowledged_release_is_repeated_on_request() -> None:
    """A new leader may not have received it."""
    core = agent(grant("a"), release("a"), m.ReleasesBooked(("g-a",)))
    assert released(core.handle(release("a", term=2), 0)) == ["g-a"]


def test_repeated_events_have_the_same_id() -> None:
    """The stream's deduplication keeps one of them."""
    core = agent(grant("a"))
    ids = {
        o.event_id
        for asked in (release("a"), m.Reconnected())
        for o in core.handle(asked, 0)
        if isinstance(o, m.Publish) and isinstance(o.event, SliceReleased)
    }
    assert len(ids) == 1


# --- terms and syncs --------------------------------------------------------------------------------------------


def test_an_older_term_is_refused() -> None:
    core = agent(grant("a", term=5))
    assert not accepted(core.handle(grant("b", term=4), 0))
    assert not accepted(core.handle(release("a", term=4), 0))
    refused = synced(core.handle(sync(term=4), 0))
    assert (refused.accepted, refused.term) == (False, 5)


@pytest.mark.parametrize("runs", [(), (start("a"),)])
def test_a_grant_id_stays_with_its_first_pod(runs: tuple[m.Input, ...]) -> None:
    """A grant id is unique for ever, so the same id with another pod is an error or a theft."""
    core = agent(grant("a"), *runs)
    taken = msgspec.structs.replace(node_grant("a", term=2), uid="u-b")
    assert not accepted(core.handle(m.GrantReceived(taken), 0))
    core.handle(sync(taken, term=2), 0)
    assert [known.uid for known in core.store.startable()] == ["u-a"]


def test_the_term_survives_a_restart() -> None:
    made = Agent(NODE, read(write(agent(grant("a", term=5)).checkpoint()), NODE))
    assert not accepted(made.handle(grant("b", term=4), 0))


def test_a_sync_for_another_node_is_refused() -> None:
    assert not synced(agent().handle(sync(node="n2"), 0)).accepted


def test_a_sync_adds_grants_voids_the_others_and_reports_live_slices() -> None:
    """Named grants become known; the others are dead unless they run; every live slice is reported."""
    core = agent(grant("runs"), start("runs"), grant("idle"))
    reply = synced(core.handle(sync(node_grant("new", term=2, memory=100), term=2), 0))
    assert [live.grant_id for live in reply.live] == ["g-runs"]
    assert reply.live[0].gpus == {"G0": (500, 0)}
    assert handed(core.handle(start("new"), 0))
    assert not accepted(core.handle(grant("idle", term=2), 0))


# --- devices ----------------------------------------------------------------------------------------------------


def test_an_unchanged_inventory_is_not_published() -> None:
    assert agent().handle(inventory(), 0) == []


def test_a_changed_inventory_raises_the_generation() -> None:
    orders = agent().handle(inventory(state="suspect", reason="slow"), 0)
    put = next(order.inventory for order in orders if isinstance(order, m.PutInventory))
    assert put.generation == 2
    said = events(orders)
    assert isinstance(said[0], NodeInventoried)
    assert sum(said[0].gpus_by_model.values()) == said[0].gpus == 2
    assert [(e.uuid, e.state) for e in said if isinstance(e, GpuStateChanged)] == [("G0", "suspect"), ("G1", "suspect")]


def test_an_inventory_has_the_id_of_its_checkpoint() -> None:
    """Also that of an agent that goes on with it, and no other change follows from that."""
    core = Agent(NODE, Checkpoint(node=NODE, checkpoint_id="b"))
    put = next(order for order in core.handle(inventory(), 0) if isinstance(order, m.PutInventory))
    successor = Agent(NODE, read(write(core.checkpoint()), NODE))
    assert successor.handle(inventory(), 0) == []
    again = next(o for o in successor.handle(inventory("boot-2"), 0) if isinstance(o, m.PutInventory))
    assert [seen.inventory.checkpoint_id for seen in (put, again)] == ["b", "b"]


def test_a_removed_gpu_is_published_as_gone() -> None:
    commands = events(agent().handle(inventory(gpus=("G0",)), 0))
    assert [(e.uuid, e.state) for e in commands if isinstance(e, GpuStateChanged)] == [("G1", "gone")]


def test_a_reboot_ends_all_leases() -> None:
    """No container of the last boot runs: releasing grants are released, the others may be started again."""
    core = agent(grant("a"), start("a"), grant("b"), start("b"), release("a"))
    assert released(core.handle(inventory("boot-2"), 0)) == ["g-a"]
    assert core.live() == ()
    assert handed(core.handle(start("b"), 0))


def test_a_grant_on_a_replaced_gpu_does_not_start() -> None:
    core = agent(grant("a"), inventory("boot-2", ("G8", "G9")))
    assert refusal(core.handle(start("a"), 0)) == "gpu-gone"


def test_inventory_and_releases_are_published_again_after_a_reconnect() -> None:
    core = agent(grant("a"), release("a"))
    orders = core.handle(m.Reconnected(), 0)
    assert any(isinstance(order, m.PutInventory) for order in orders)
    assert released(orders) == ["g-a"]


def test_an_agent_that_starts_publishes_once_what_each_slice_has() -> None:
    """The one before may have been killed when the lease was on disk, and its event was not out."""
    core = agent(grant("a"), grant("b"))

    def published(orders: list[m.Command]) -> list[tuple[Event, str]]:
        return [(order.event, order.event_id) for order in orders if isinstance(order, m.Publish)]

    said = published(core.handle(start("a"), 0.0))
    again = Agent(NODE, core.checkpoint())
    assert published(again.handle(inventory(), 0.0)) == said
    assert published(again.handle(inventory(), 1.0)) == []
    rebooted = Agent(NODE, core.checkpoint()).handle(inventory("boot-2"), 0.0)
    assert not any(isinstance(event, SliceEnforced) for event in events(rebooted)), "nothing runs"


# --- the checkpoint ---------------------------------------------------------------------------------------------


def test_a_checkpoint_contains_the_whole_state() -> None:
    core = agent(grant("a"), start("a"), grant("b"), release("b"), grant("c"), start("c"), release("c"))
    again = Agent(NODE, read(write(core.checkpoint()), NODE))
    assert again.checkpoint() == core.checkpoint()
    assert again.live() == core.live()
    assert released(again.handle(ended("c"), 0)) == ["g-c"]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "cannot be read"),
        (b'{"version":1', "cannot be read"),
        (b'{"version":7,"node":"n1"}', "version 7"),
        (b'{"version":1,"node":"n2"}', "node 'n2'"),
    ],
)
def test_a_checkpoint_that_cannot_be_trusted_is_refused(payload: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(payload, NODE)


def test_a_strategy_that_no_pod_uses_does_not_keep_an_earlier_version_from_starting() -> None:
    """It does not know the name, and could not read a checkpoint that has it."""
    seen = inventory().inventory
    offers = m.InventorySeen(msgspec.structs.replace(seen, strategies=(*seen.strategies, "interposer")))
    core = agent(offers)
    assert core.gpus.inventory is not None
    assert "interposer" in core.gpus.inventory.strategies
    assert b"interposer" not in write(core.checkpoint())


def test_a_grant_with_an_unknown_strategy_is_refused_with_its_pod() -> None:
    saved = write(agent(grant("a"), grant("b")).checkpoint())
    at = saved.rindex(b'"advisory"')
    with pytest.raises(CheckpointError, match=r"the grant of pod ns/b: .*'partition_v3'"):
        read(saved[:at] + b'"partition_v3"' + saved[at + len(b'"advisory"') :], NODE)


def test_the_number_of_acknowledged_tombstones_is_limited() -> None:
    made = Agent(NODE, keep_tombstones=3)
    made.handle(sync(), 0)
    for i in range(6):
        made.handle(release(str(i)), 0)
        made.handle(m.ReleasesBooked((f"g-{i}",)), 0)
    assert made.checkpoint().tombstones == ("g-3", "g-4", "g-5")


def test_a_tombstone_is_kept_until_its_release_is_acknowledged() -> None:
    made = Agent(NODE, keep_tombstones=2)
    made.handle(sync(), 0)
    for i in range(5):
        made.handle(release(str(i)), 0)
    assert len(made.checkpoint().tombstones) == 5
