"""What goes wrong in a simulated cluster. Here: nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from services.placement import messages as m
from shared.contracts.commands import Answer, Evict
from tests.support.harness.placement import Respond

if TYPE_CHECKING:
    from tests.support.harness.cluster import Cluster

Execute = Callable[[Evict, str], Answer | None]


class Conditions:
    """A cluster in which nothing goes wrong. `Faults` and others override what they disturb."""

    def begin(self, cluster: Cluster) -> None:
        """Called once, before the cores get their first input."""
        self.cluster = cluster

    def begin_step(self) -> None:
        """Called before the time advances."""

    def respond(self, command: m.Command, respond: Respond) -> list[m.Input]:
        """Returns what the surroundings answer to a command of placement."""
        return respond(command)

    def evict(self, order: Evict, plan_id: str, execute: Execute) -> Answer | None:
        """Executes an eviction; returns None on success."""
        return execute(order, plan_id)

    def hear(self, event: Any) -> None:
        """Called with each public event of placement."""
