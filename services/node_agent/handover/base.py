"""What a way of handing over needs of the agent, and what the agent needs of it.

A way (device plugin, DRA) learns from the kubelet that a container of ours is about to start. It asks the `AgentPort` for the
container's share, has the edits of the container written, and only then lets it start. Whatever fails on the way, the
container does not start: closed, never open. NRI adds what is only a wish, the CPUs beside the GPUs, and is the other way
round: whatever fails there, the container starts as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from services.node_agent import messages as m


class AgentPort(Protocol):
    """The agent's core, as a way of handing over sees it."""

    async def start_container(
        self, uid: str, container: str, slot: str = "", pod: tuple[str, str] | None = None
    ) -> m.HandOver | m.RefuseStart:
        """The container's share, leased from now on, or why it must not start. `pod` is (namespace, name) as the kubelet
        names the pod: a grant that is of another one is refused."""

    def largest_container(self, uid: str) -> str:
        """The container of this pod's grant with the largest share: ordinary init containers run within it. Empty where
        there is no grant."""


class SpecWriter(Protocol):
    """Makes a share true for a container that is about to start."""

    async def write(self, names: Iterable[str], order: m.HandOver) -> None:
        """Writes one CDI spec under each of these device names. Durable enough to be read when it returns: whole or not at all.

        Raises OSError where it cannot be written, ValueError where a device of the share has no place on this host.
        """


class HandoverServer(Protocol):
    """One way of handing over. Its start and its end are the agent's."""

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Lets calls in flight end, and takes no new ones."""
