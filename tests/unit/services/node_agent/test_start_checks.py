"""The isolation that the agent promises for a slice, and the starts that it refuses because it cannot enforce it."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from shared.contracts.events import SliceEnforced
from shared.model.grant import ContainerGrant
from shared.model.strategies import StrategyName
from tests.unit.services.node_agent.make import agent, events, inventory, node_grant, refusal, start


def granted(strategy: StrategyName) -> m.GrantReceived:
    came = node_grant("a")
    containers = {
        name: ContainerGrant(strategy=strategy, gpus=part.gpus) for name, part in came.grant.containers.items()
    }
    return m.GrantReceived(
        msgspec.structs.replace(came, grant=msgspec.structs.replace(came.grant, containers=containers))
    )


def seen(*strategies: StrategyName, simulated: bool = False) -> m.InventorySeen:
    found = inventory()
    return m.InventorySeen(
        msgspec.structs.replace(found.inventory, strategies=("exclusive", "advisory", *strategies), simulated=simulated)
    )


@pytest.mark.parametrize(
    ("strategy", "simulated", "promise"),
    [
        ("advisory", False, "soft"),
        ("exclusive", False, "hard"),
        ("interposer", False, "firm"),
        ("time_slice", False, "firm"),
        ("exclusive", True, "soft"),
    ],
)
def test_the_promise_follows_the_strategy_and_is_soft_on_a_hollow_node(
    strategy: StrategyName, simulated: bool, promise: str
) -> None:
    core = agent(seen("interposer", "time_slice", simulated=simulated), granted(strategy))
    (event,) = events(core.handle(start("a"), 0.0))
    assert isinstance(event, SliceEnforced)
    assert (event.strategy, event.promise) == (strategy, promise)


def test_a_strategy_no_longer_offered_starts_nothing_and_running_slices_go_on() -> None:
    core = agent(seen("interposer"), granted("interposer"))
    assert refusal(core.handle(start("a"), 0.0)) == ""
    core.handle(seen(), 1.0)
    assert refusal(core.handle(start("a"), 2.0)) == "strategy-not-offered"
    assert len(core.live()) == 1
    core.handle(seen("interposer"), 3.0)
    assert refusal(core.handle(start("a"), 4.0)) == ""
