"""What the node agent asks of a simulated node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant


class Machine(Protocol):
    """One simulated node: its GPUs, and the containers that use them. The caller passes the time, in Unix seconds."""

    @property
    def inventory(self) -> Inventory: ...

    def start(self, uid: str, container: str, grant_id: str, share: ContainerGrant) -> None:
        """The share was handed over to this container of the pod. Called again for a container that has it already."""

    def stop(self, uid: str, container: str, now: float) -> None:
        """The container has to end, because the release of its grant was requested."""

    def take_ended(self, now: float) -> Sequence[tuple[str, str]]:
        """The containers, by pod UID and name, that have ended since the last call."""
