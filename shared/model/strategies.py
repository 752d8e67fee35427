"""The sharing strategies: one line each, and those of plug-ins (entry points `kerf.strategies`).

All that Kerf knows of a strategy is derived from here: which one placement chooses, what a node must prove, and which
suspensions a slice supports. The name of a plug-in's strategy is known to every process in which its package is
installed; a message with another name is malformed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

from shared import plugins
from shared.model.strategy import Isolation, Strategy

BUILT_IN: tuple[Strategy, ...] = (
    # Chosen when the container requests whole GPUs. No other container gets the device node.
    Strategy(name="exclusive", promise="hard", unit="gpu", always_offered=True,
             driver="services.node_agent.strategies.exclusive:Exclusive"),
    # Chosen on GPUs in MIG mode. The instance's device nodes are the limit, so the agent needs no driver.
    Strategy(name="mig", promise="hard", unit="instance"),
    # Chosen when the container requests a part of a GPU with compute, and the node's canary has proven the limits.
    Strategy(name="interposer", promise="firm", preference=30, proof="canary",
             limits_compute=True, limits_memory=True, checkpoints=True, moves=True,
             driver="services.node_agent.strategies.interposer:Interposer"),
    # Chosen when the container requests memory alone, or its pod is opportunistic; proven as `interposer`.
    Strategy(name="time_slice", promise="firm", preference=20, preference_unreserved=40, proof="canary",
             takes_turns=True, limits_compute=True, limits_memory=True, checkpoints=True,
             driver="services.node_agent.strategies.time_slice:TimeSlice"),
    # Chosen when the pod asks for `policed`; proven as `interposer` and `time_slice`, of which it takes the rules.
    Strategy(name="policed", promise="policed", only_from="policed", preference=10, proof="canary",
             takes_turns=True, driver_limit=True, limits_compute=True, limits_memory=True, checkpoints=True,
             driver="services.node_agent.strategies.policed:Policed"),
    # Chosen when the pod asks for `hard` and requests memory alone, where the canary has proven the driver's limits.
    Strategy(name="driver", promise="hard", promise_compute="firm", only_from="hard", proof="canary",
             takes_turns=True, driver_limit=True, limits_compute=True,
             driver="services.node_agent.strategies.driver_limited:DriverLimited"),
    # Chosen for a part of one GPU with isolation soft on the nodes of the setting `mps_nodes`, if proven there.
    Strategy(name="mps", promise="soft", preference=10, proof="own", concurrent=True, driver_limit=True,
             limits_memory=True, driver="services.node_agent.strategies.mps:Mps"),
    # Chosen for a pod that agrees to it, when no GPU of its own node is free: a GPU of another node over the network.
    # On the serving node a local strategy limits it (`ContainerGrant.serving`), which keeps its own promise.
    Strategy(name="remote", promise="hard", unit="remote", proof="own"),
    # Chosen for a part of a GPU with isolation soft where the node has proven nothing stronger.
    Strategy(name="advisory", promise="soft", always_offered=True,
             driver="services.node_agent.strategies.advisory:Advisory"),
)  # fmt: skip

NAMES: tuple[str, ...] = (
    *(strategy.name for strategy in BUILT_IN),
    *plugins.names("kerf.strategies", (strategy.name for strategy in BUILT_IN)),
)

if TYPE_CHECKING:
    StrategyName = str
else:
    StrategyName = Literal[NAMES]

ALWAYS_OFFERED: tuple[StrategyName, ...] = tuple(strategy.name for strategy in BUILT_IN if strategy.always_offered)
PROVEN_BY_CANARY: tuple[StrategyName, ...] = tuple(strategy.name for strategy in BUILT_IN if strategy.proof == "canary")
POLICED: tuple[StrategyName, ...] = tuple(strategy.name for strategy in BUILT_IN if strategy.promise == "policed")
(TIME_SLICE,) = (strategy.name for strategy in BUILT_IN if strategy.name == "time_slice")
(MIG,) = (strategy.name for strategy in BUILT_IN if strategy.unit == "instance")
(REMOTE,) = (strategy.name for strategy in BUILT_IN if strategy.unit == "remote")


@cache
def registered() -> dict[str, Strategy]:
    """All strategies by name: the built-in ones, then plug-ins. Raises plugins.PluginError."""
    taken = [strategy.name for strategy in BUILT_IN]
    found = plugins.load("kerf.strategies", Strategy, taken)
    for strategy in found:
        problem = _unsupported(strategy)
        if problem:
            raise plugins.refuse("kerf.strategies", strategy.name, problem)
    return {strategy.name: strategy for strategy in (*BUILT_IN, *found)}


@cache
def by_preference(whole: bool, reserves_compute: bool, isolation: Isolation) -> tuple[Strategy, ...]:
    """The strategies for whole GPUs, or for parts of GPUs, that serve this isolation, best first; of equal ones the
    built-in ones come first."""
    return tuple(
        sorted(
            (
                strategy
                for strategy in registered().values()
                if strategy.unit == ("gpu" if whole else "part")
                and strategy.serves(isolation, reserves_compute=reserves_compute)
            ),
            key=lambda strategy: strategy.preference_for(reserves_compute=reserves_compute),
            reverse=True,
        )
    )


def _unsupported(strategy: Strategy) -> str:
    """Why a plug-in cannot provide such a strategy; empty if it can."""
    if strategy.unit not in ("gpu", "part"):
        return f"its unit is `{strategy.unit}`, which placement gives by Kerf's own strategies; use `part` or `gpu`"
    if strategy.always_offered:
        return "it is always_offered, which is part of the wire format; let its driver's `probe` offer it"
    if strategy.proof == "canary":
        return "its proof is `canary`, which proves Kerf's interposer alone; use `own` or `none`"
    if strategy.driver_limit:
        return "it has driver_limit, which the node agent sets for Kerf's own strategies; set it in your driver"
    if strategy.concurrent:
        return "it is concurrent, for which the node agent starts NVIDIA's MPS; serve the slices in your driver"
    if strategy.promise == "policed":
        return "its promise is `policed`, which the node agent keeps for Kerf's own strategy; use `firm` or `hard`"
    if not strategy.driver:
        return "it has no driver; name the class that implements services.node_agent.strategies.base.Driver"
    return ""
