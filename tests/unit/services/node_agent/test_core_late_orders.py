"""Orders that are late, repeated, reordered, or about pods that were never bound (R6)."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.releases import REPEAT_S
from services.node_agent.state import read, write
from shared.contracts.node_commands import Accepted, NodeGrant, NodeRelease, NodeSync, NodeSyncAnswer
from shared.model.grant import ContainerGrant, Grant
from shared.model.suspension import Suspension
from tests.unit.services.node_agent.make import (
    NODE,
    accepted,
    agent,
    answer,
    grant,
    handed,
    node_grant,
    refusal,
    release,
    released,
    start,
)


def numbered(name: str, number: int, *, term: int = 7, decided: int | None = None, **changes: object) -> NodeGrant:
    """A grant order with this number. `decided`: the term in which the grant was decided."""
    made = node_grant(name, term=term)
    inner = msgspec.structs.replace(made.grant, term=term if decided is None else decided)
    return msgspec.structs.replace(made, **({"grant": inner, "number": number} | changes))


def came(name: str, number: int, **how: object) -> m.GrantReceived:
    return m.GrantReceived(numbered(name, number, **how))


def sync(number: int, *grants: NodeGrant, term: int = 7) -> m.SyncReceived:
    return m.SyncReceived(NodeSync(term=term, node=NODE, grants=grants, number=number))


def dead(orders: list[m.Command]) -> bool:
    body = answer(orders)
    assert isinstance(body, Accepted)
    return body.dead


def restarted(made: Agent) -> Agent:
    return Agent(NODE, read(write(made.checkpoint()), NODE))


# --- syncs that come late ---------------------------------------------------------------------------------------


def test_a_sync_composed_before_a_grant_does_not_void_it() -> None:
    """Two copies of a sync: placement grants after the answer to the first, and the second copy arrives after the
    grant."""
    core = agent(sync(1), came("a", 3))
    core.handle(sync(2), 0)
    assert handed(core.handle(start("a"), 0))
    assert accepted(core.handle(came("a", 3), 0))


def test_a_sync_composed_after_a_grant_that_does_not_name_it_voids_it() -> None:
    core = agent(came("a", 3))
    core.handle(sync(4), 0)
    assert refusal(core.handle(start("a"), 0)) == "no-grant"


def test_a_sync_of_a_later_term_voids_grants_of_any_number() -> None:
    core = agent(came("a", 900, term=7))
    core.handle(sync(1, term=8), 0)
    assert refusal(core.handle(start("a"), 0)) == "no-grant"


def test_an_overtaken_sync_is_ignored() -> None:
    """It would restore older orders, such as a suspension that has ended."""
    core = agent(sync(5, numbered("a", 5)))
    assert core.handle(sync(4), 0) == []
    assert handed(core.handle(start("a"), 0))


def test_a_sync_resumes_no_pod_whose_suspension_has_overtaken_it() -> None:
    """Others may have its GPU by now. What the answer says is what its slices have."""
    suspension = Suspension(action="pause", plan_id="p")
    parts = {"main": ContainerGrant(strategy="interposer", gpus=node_grant("a").grant.containers["main"].gpus)}
    inner = Grant(grant_id="g-a", term=7, containers=parts)
    core = agent(sync(1), came("a", 3, grant=inner))
    core.handle(start("a"), 0)
    (_, ordered) = core.handle(came("a", 9, grant=inner, suspension=suspension), 0)
    assert isinstance(ordered, m.SuspendSlices)
    core.handle(m.SuspensionDone(ordered.request, tuple(m.SuspendResult(task) for task in ordered.tasks)), 0)
    orders = core.handle(sync(6, numbered("a", 6, grant=inner)), 0)
    assert not any(isinstance(order, m.SuspendSlices) for order in orders)
    body = answer(orders)
    assert isinstance(body, NodeSyncAnswer)
    assert body.suspension == {"g-a": suspension}
    assert any(isinstance(order, m.SuspendSlices) for order in core.handle(sync(10, numbered("a", 10, grant=inner)), 0))


def test_a_sync_that_was_overtaken_still_says_that_a_pod_is_bound() -> None:
    core = agent(sync(1), came("a", 9, unbound=True))
    core.handle(sync(6, numbered("a", 6)), 0)
    assert handed(core.handle(start("a"), 0))


def test_the_answer_to_a_sync_repeats_its_number() -> None:
    body = answer(agent().handle(sync(12), 0))
    assert isinstance(body, NodeSyncAnswer)
    assert body.number == 12


def test_the_number_of_the_newest_sync_survives_a_restart() -> None:
    made = restarted(agent(sync(5, numbered("a", 5))))
    assert made.handle(sync(4), 0) == []


def test_a_sync_without_a_number_voids_only_grants_of_earlier_terms() -> None:
    """A placement before 0.2 does not number its orders.

    Two copies of its sync may wait at an agent, with a grant between them.
    """
    core = agent(grant("a", term=1))
    core.handle(m.SyncReceived(NodeSync(term=1, node=NODE)), 0)
    assert refusal(core.handle(start("a"), 0)) == ""
    earlier = agent(grant("a", term=1))
    earlier.handle(m.SyncReceived(NodeSync(term=2, node=NODE)), 0)
    assert refusal(earlier.handle(start("a"), 0)) == "no-grant"


# --- orders about one grant -------------------------------------------------------------------------------------


def test_an_overtaken_order_about_a_grant_changes_nothing() -> None:
    suspension = Suspension(action="pause", plan_id="p")
    parts = {"main": ContainerGrant(strategy="interposer", gpus=node_grant("a").grant.containers["main"].gpus)}
    grant = Grant(grant_id="g-a", term=7, containers=parts)
    late = came("a", 4, grant=grant, suspension=suspension)
    assert any(isinstance(order, m.SuspendSlices) for order in agent(came("a", 3, grant=grant)).handle(late, 0)), (
        "an order that is in time does"
    )
    core = agent(came("a", 9, grant=grant))
    commands = core.handle(late, 0)
    assert not any(isinstance(order, m.SuspendSlices) for order in commands)
    assert accepted(commands)
    assert core.store.ordered_suspension("u-a") is None


# --- grants whose pods were not seen bound ----------------------------------------------------------------------


def test_a_grant_whose_pod_was_not_seen_bound_starts_nothing() -> None:
    core = agent(sync(1, numbered("a", 1, unbound=True)))
    orders = core.handle(start("a"), 0)
    assert refusal(orders) == "no-grant"
    assert m.FetchGrant("u-a", cause=4) in orders
    assert core.store.startable() == ()


def test_a_pod_starts_once_placement_confirms_that_it_is_bound() -> None:
    core = agent(sync(1, numbered("a", 1, unbound=True)), came("a", 2))
    assert handed(core.handle(start("a"), 0))


def test_an_overtaken_order_still_confirms_that_the_pod_is_bound() -> None:
    """A pod that was bound once stays bound with that grant."""
    core = agent(sync(5, numbered("a", 5, unbound=True)))
    orders = core.handle(came("a", 3), 0)
    assert [type(order) for order in orders] == [m.Save, m.Answer]
    assert handed(core.handle(start("a"), 0))


def test_a_later_leader_cannot_undo_that_a_pod_was_seen_bound() -> None:
    core = agent(came("a", 1))
    core.handle(sync(1, numbered("a", 1, term=8, decided=7, unbound=True), term=8), 0)
    assert handed(core.handle(start("a"), 0))


def test_the_grant_that_the_pod_was_bound_with_counts() -> None:
    """The hold was void and its order arrived late: the pod has another grant by now."""
    other = numbered("a", 2)
    other = msgspec.structs.replace(other, grant=msgspec.structs.replace(other.grant, grant_id="g-second"))
    core = agent(m.GrantReceived(other))
    core.handle(sync(3, other, numbered("a", 3, unbound=True)), 0)
    (hand_over,) = [order for order in core.handle(start("a"), 0) if isinstance(order, m.HandOver)]
    assert hand_over.grant_id == "g-second"


def test_releasing_a_void_hold_keeps_the_grant_of_the_pod() -> None:
    second = numbered("a", 2)
    second = msgspec.structs.replace(second, grant=msgspec.structs.replace(second.grant, grant_id="g-second"))
    core = agent(sync(1, numbered("a", 1, unbound=True)), m.GrantReceived(second), start("a"))
    assert released(core.handle(m.ReleaseReceived(NodeRelease(term=7, uid="u-a", grant_id="g-a")), 0)) == ["g-a"]
    assert not accepted(core.handle(came("a", 9), 0))
    assert [live.grant_id for live in core.live()] == ["g-second"]


def test_an_unbound_hold_stays_unbound_after_a_restart() -> None:
    made = restarted(agent(sync(1, numbered("a", 1, unbound=True))))
    assert refusal(made.handle(start("a"), 0)) == "no-grant"


# --- terms that are closed --------------------------------------------------------------------------------------


def test_a_sync_closes_the_earlier_terms() -> None:
    """An unnamed grant of an earlier term is void, even if this agent never received it.

    Its Binding was lost with the log and took effect late, and another pod may have its GPU.
    """
    core = agent(sync(1, term=7))
    orders = core.handle(came("a", 2, term=7, decided=6), 0)
    assert not accepted(orders)
    assert dead(orders)
    assert refusal(core.handle(start("a"), 0)) == "no-grant"
    assert core.syncs.is_void(Grant(grant_id="g-a", term=6, containers={}))


def test_a_grant_of_an_earlier_term_named_by_the_sync_is_valid() -> None:
    core = agent(sync(1, numbered("a", 1, decided=3)))
    assert accepted(core.handle(came("a", 2, decided=3), 0))
    assert handed(core.handle(start("a"), 0))


def test_a_later_sync_does_not_reopen_a_closed_term() -> None:
    """The later leader has found the pod bound, by a Binding that was lost from its predecessors' log."""
    core = agent(sync(1, term=7))
    body = answer(core.handle(sync(1, numbered("a", 1, term=8, decided=6), term=8), 0))
    assert isinstance(body, NodeSyncAnswer)
    assert body.tombstones == ("g-a",)
    assert refusal(core.handle(start("a"), 0)) == "no-grant"


def test_a_grant_of_the_term_of_the_sync_is_valid() -> None:
    core = agent(sync(1, term=7))
    assert accepted(core.handle(came("a", 2, term=7), 0))


def test_a_closed_term_stays_closed_after_a_restart_and_for_later_leaders() -> None:
    made = restarted(agent(sync(1, term=7)))
    assert dead(made.handle(came("a", 1, term=9, decided=6), 0))


def test_a_released_grant_is_refused_as_dead() -> None:
    assert dead(agent(grant("a"), release("a")).handle(grant("a"), 0))


@pytest.mark.parametrize(
    "refused",
    [came("a", 1, term=6), m.GrantReceived(msgspec.structs.replace(numbered("b", 9), uid="u-x"))],
    ids=["an older term", "another pod"],
)
def test_other_refusals_do_not_report_the_grant_as_dead(refused: m.GrantReceived) -> None:
    assert not dead(agent(came("b", 1)).handle(refused, 0))


# --- what else must not be forgotten ----------------------------------------------------------------------------


def test_a_void_grant_named_by_a_sync_is_dead_for_good() -> None:
    """The answer is durable: a later agent gives the same one, under any term."""
    core = agent(sync(1, term=7))
    core.handle(sync(1, numbered("a", 1, term=8, decided=6), term=8), 0)
    assert "g-a" in core.checkpoint().tombstones


def test_tombstones_survive_a_restart() -> None:
    made = restarted(agent(grant("a"), release("a"), m.ReleasesBooked(("g-a",))))
    assert not accepted(made.handle(grant("a"), 0))
    assert refusal(made.handle(start("a"), 0)) == "no-grant"


def test_an_unacknowledged_release_is_repeated_after_a_restart() -> None:
    made = restarted(agent(grant("a"), release("a")))
    assert released(made.handle(m.Tick(), REPEAT_S)) == ["g-a"]


def test_a_releasing_grant_that_is_sent_again_starts_nothing() -> None:
    """A late order, or a later leader that does not know of the pod's end."""
    core = agent(m.GrantReceived(node_grant("a", containers=("x", "y"), memory=100)), start("a", "x"), release("a"))
    core.handle(m.GrantReceived(node_grant("a", term=2, containers=("x", "y"), memory=100)), 0)
    assert refusal(core.handle(start("a", "y"), 0)) == "grant-leaving"


def test_a_release_order_of_an_older_term_is_refused() -> None:
    core = agent(came("a", 1, term=7))
    assert released(core.handle(release("a", term=6), 0)) == []
    assert handed(core.handle(start("a"), 0))


def test_a_sync_of_an_older_term_changes_nothing() -> None:
    core = agent(came("a", 1, term=7))
    core.handle(sync(9, numbered("b", 9, term=6), term=6), 0)
    assert handed(core.handle(start("a"), 0))
    assert refusal(core.handle(start("b"), 0)) == "no-grant"


def test_a_sync_does_not_revive_a_released_grant() -> None:
    core = agent(came("a", 1), m.ReleaseReceived(NodeRelease(term=7, uid="u-a", grant_id="g-a")))
    core.handle(sync(5, numbered("a", 5)), 0)
    assert core.checkpoint().known == ()
