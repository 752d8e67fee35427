"""Makes the drivers of a node's strategies. Each strategy names its driver, so that plug-ins bring theirs along."""

from __future__ import annotations

from typing import cast

from services.node_agent.strategies.base import Driver, NodeTools
from shared import plugins
from shared.model import strategies
from shared.model.strategies import StrategyName
from shared.model.strategy import Strategy

_VERBS = ("probe", "prepare", "edits", "adjust", "observe", "release")


def make_drivers(tools: NodeTools) -> dict[StrategyName, Driver]:
    """Returns the drivers by strategy. Raises plugins.PluginError if the driver of a plug-in cannot be made."""
    return {strategy.name: _driver(strategy, tools) for strategy in strategies.registered().values() if strategy.driver}


def _driver(strategy: Strategy, tools: NodeTools) -> Driver:
    try:
        made = plugins.resolve(strategy.driver)(strategy, tools)
    except Exception as error:
        if strategy in strategies.BUILT_IN:
            raise
        problem = f"its driver {strategy.driver} cannot be made: {type(error).__name__}: {error}; repair the package"
        raise plugins.refuse("kerf.strategies", strategy.name, problem) from error
    missing = [verb for verb in _VERBS if not callable(getattr(made, verb, None))]
    if missing:
        problem = f"its driver {strategy.driver} has no {', '.join(missing)}; implement {Driver.__module__}.Driver"
        raise plugins.refuse("kerf.strategies", strategy.name, problem)
    return cast(Driver, made)
