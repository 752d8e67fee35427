"""What a sharing strategy is: its promise, when it is preferred, and what its slices can do while they run.

This module imports nothing else of Kerf's model: a plug-in's strategy is described with it alone.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Isolation = Literal["hard", "policed", "firm", "soft"]
"""hard: enforced by driver or hardware; policed: a pod beyond its slice is frozen and ended from outside the container
within a stated time; firm: enforced by an interposer in the container; soft: watched and accounted."""

ISOLATION_RANK: dict[str, int] = {"soft": 0, "firm": 1, "policed": 2, "hard": 3}

Unit = Literal["gpu", "part", "instance", "remote"]
"""What a container gets: whole GPUs of its node, parts of them, MIG instances, or one GPU or a part of it on another
node."""

Proof = Literal["none", "canary", "own"]
"""What a node must have seen before it offers the strategy: nothing; that the canary's limits hold on its GPU (for
strategies of the interposer); or what the driver's own `probe` finds out."""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One way of sharing a GPU, as all of Kerf knows it. Its driver runs on the node."""

    name: str
    promise: Isolation
    """The isolation that it can keep at most."""
    promise_compute: Isolation | None = None
    """The same for GPU time that a pod reserves, if it is weaker than for memory."""
    only_from: Isolation = "soft"
    """Pods that ask for a weaker isolation do not get it: they have not agreed to what it does to them."""
    unit: Unit = "part"
    preference: int = 0
    """Of strategies with equal promise the one with the highest number is chosen."""
    preference_unreserved: int | None = None
    """The same for pods that reserve no GPU time; None: as `preference`."""
    always_offered: bool = False
    """Every node offers it. Part of the inventory's wire format, so not for plug-ins."""
    proof: Proof = "none"
    concurrent: bool = False
    """Its slices run at the same time, in one server of the driver for each GPU: no other strategy shares their GPU, a
    container has a part of one GPU only, and a fault of one can end the GPU work of all."""
    takes_turns: bool = False
    """Its slices without reserved GPU time take turns; with the proof `canary`, that must be proven, too."""
    driver_limit: bool = False
    """The driver limits the memory of its pods' cgroups: always if its promise is `hard`, else where that works."""
    limits_compute: bool = False
    """The compute of a running slice can be changed: its pod can be throttled and paused."""
    limits_memory: bool = False
    """The memory limit of a running slice can be changed: its pod can be shrunk."""
    moves: bool = False
    """Memory of a checkpointed slice can come back to another GPU of the node."""
    checkpoints: bool = False
    """The memory of a running slice can be moved to the host, and back."""
    driver: str = ""
    """The node agent's class for it, as `module:name` (services.node_agent.strategies.base.Driver). Empty: none exists
    yet, or the agent needs none."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a strategy's name is empty")
        for field, allowed in (
            ("promise", Isolation),
            ("only_from", Isolation),
            ("unit", Unit),
            ("proof", Proof),
        ):
            if getattr(self, field) not in get_args(allowed):
                raise ValueError(
                    f"strategy {self.name}: {field} is {getattr(self, field)!r}; it must be one of "
                    f"{', '.join(get_args(allowed))}"
                )

    def serves(self, isolation: Isolation, *, reserves_compute: bool) -> bool:
        """Whether a pod that asks for this isolation may get it: its promises are as strong, and the pod asks for
        enough."""
        asked = ISOLATION_RANK[isolation]
        of_time = ISOLATION_RANK[self.promise_compute or self.promise]
        return ISOLATION_RANK[self.promise] >= asked >= ISOLATION_RANK[self.only_from] and (
            not reserves_compute or of_time >= asked
        )

    def preference_for(self, *, reserves_compute: bool) -> tuple[int, int]:
        """Larger is chosen first: the stronger promise, then the preference."""
        own = self.preference if reserves_compute or self.preference_unreserved is None else self.preference_unreserved
        return ISOLATION_RANK[self.promise], own
