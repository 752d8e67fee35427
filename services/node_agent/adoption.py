"""What an agent takes over at its start: the slices of the containers that run. Pure."""

from __future__ import annotations

from collections.abc import Collection

from services.node_agent import moving
from services.node_agent.core import Agent
from services.node_agent.strategies.rules import NO_OVERRIDE, Override
from services.node_agent.strategies.slices import Key, Slice, running_slice
from services.node_agent.strategies.suspension import override_for
from services.node_agent.suspensions import HALF_RESUMED
from shared.contracts.node_commands import LiveSlice
from shared.model.strategies import StrategyName
from shared.model.suspension import Suspension


def running(agent: Agent, strategies: Collection[StrategyName]) -> tuple[list[Slice], dict[Key, Override]]:
    """The slices of these strategies, as they are now, and the overrides of all."""
    grants = {came.uid: came.grant for came in agent.store.startable()}
    in_force = agent.store.in_force(agent.node)
    slices = [running_slice(live, grants.get(live.uid), agent.node) for live in in_force if live.strategy in strategies]
    overrides = {
        (live.uid, live.container): override_for(_ordered(agent, live), NO_OVERRIDE, live.gpus) for live in in_force
    }
    return slices, overrides


def _ordered(agent: Agent, live: LiveSlice) -> Suspension | None:
    """The suspension of a slice that runs. One whose memory is on its way to other GPUs has no GPU yet."""
    known = agent.store.get(live.grant_id)
    under_way = known is not None and moving.is_under_way(known)
    return HALF_RESUMED if under_way else agent.store.ordered_suspension(live.uid)
