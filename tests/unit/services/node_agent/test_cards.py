"""A network card is handed over to no more pods than may have it, whatever placement has granted."""

from __future__ import annotations

import msgspec

from services.node_agent import messages as m
from services.node_agent.core import Agent
from shared.model.gpu import Nic
from tests.unit.services.node_agent.make import agent, ended, handed, inventory, node_grant, refusal, release, start


def with_cards(name: str, *cards: str, containers: tuple[str, ...] = ("main",)) -> m.GrantReceived:
    came = node_grant(name, memory=100, containers=containers)
    return m.GrantReceived(msgspec.structs.replace(came, grant=msgspec.structs.replace(came.grant, nics=cards)))


def node(pods: int, *grants: m.GrantReceived) -> Agent:
    nics = tuple(Nic(name=f"mlx5_{i}", verbs=f"uverbs{i}", pods=pods) for i in range(2))
    found = m.InventorySeen(msgspec.structs.replace(inventory().inventory, nics=nics))
    return agent(found, *grants)


def test_a_card_that_another_pod_has_is_not_handed_over_until_that_pod_has_ended() -> None:
    core = node(1, with_cards("a", "mlx5_0"), with_cards("b", "mlx5_1", "mlx5_0"))
    assert handed(core.handle(start("a"), 0))
    (refused,) = [order for order in core.handle(start("b"), 0) if isinstance(order, m.RefuseStart)]
    assert refused.code == "nic-taken-here"
    assert "network card mlx5_0 may go to 1 pod(s) at a time, and is handed over to ns/a" in refused.sentence
    core.handle(release("a"), 0)
    assert refusal(core.handle(start("b"), 0)) == "nic-taken-here", "its container has not been seen to end"
    core.handle(ended("a"), 0)
    assert handed(core.handle(start("b"), 0))


def test_a_card_goes_to_as_many_pods_as_may_have_it_and_to_all_containers_of_each() -> None:
    both = ("main", "side")
    core = node(2, *(with_cards(name, "mlx5_0", containers=both) for name in "abc"), with_cards("d", "mlx5_1"))
    assert [refusal(core.handle(start(name, one), 0)) for name in "ab" for one in both] == [""] * 4
    assert refusal(core.handle(start("c"), 0)) == "nic-taken-here"
    assert handed(core.handle(start("d"), 0))
    assert handed(core.handle(start("a"), 0)), "a restarted container has its card already"


def test_a_live_slice_names_the_cards_of_its_grant() -> None:
    core = node(1, with_cards("a", "mlx5_0"), with_cards("b"))
    core.handle(start("a"), 0)
    core.handle(start("b"), 0)
    assert [live.nics for live in core.live()] == [("mlx5_0",), ()]
