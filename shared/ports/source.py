"""What the watcher asks of a cluster, real or simulated: objects in as facts, a few kinds of writes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shared.bus.port import Bus, Subscription
from shared.contracts.facts import Fact
from shared.kube.writes import Writes

Emit = Callable[[Sequence[Fact]], None]


class Source(Protocol):
    """Facts come through `emit` in the order in which the cluster had them, per kind; nothing is left out, and a
    version of an object comes once. Between kinds there is no order."""

    @property
    def synced(self) -> bool:
        """Whether everything that existed at the start has been emitted."""

    @property
    def detail(self) -> str:
        """The state of the connection to the cluster, as a sentence for the health report."""

    @property
    def troubled(self) -> int:
        """How many kinds are not followed now, and may be out of date."""

    @property
    def writes(self) -> Writes: ...

    async def run(self, emit: Emit) -> None:
        """For ever. Raises only on what no retry can mend (no configuration, no permission at all)."""

    async def wait_synced(self) -> None: ...

    async def refresh(self) -> None:
        """Lists nodes and pods again, consistently: when this returns, everything that was true before the call has
        been emitted (rule R5)."""

    async def reaches(self) -> bool:
        """Whether pods and nodes are followed, and the cluster answers a question of now. Does not raise."""

    async def serve(self, bus: Bus, log: Any) -> list[Subscription]:
        """Subscribes to the orders that only this cluster takes from the bus. The caller stops the subscriptions."""

    async def close(self) -> None: ...
