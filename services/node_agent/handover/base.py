"""The interfaces between the agent and the servers that hand slices over.

A server (device plugin, DRA) learns from the kubelet that one of Kerf's containers is about to start. It asks the
`AgentPort` for the container's share, has the container's edits written, and only then lets it start. If anything
fails, the container does not start: fail closed. NRI only adds a preference, the CPUs near the GPUs, and works the
other way round: if anything fails, the container starts unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from services.node_agent import messages as m


class AgentPort(Protocol):
    """The agent's core, as the servers see it."""

    async def start_container(
        self, uid: str, container: str, slot: str = "", pod: tuple[str, str] | None = None
    ) -> m.HandOver | m.RefuseStart:
        """Returns the container's share, leased from now on, or why it must not start.

        `pod` is (namespace, name) as the kubelet names the pod: a grant of another pod is refused.
        """

    def init_share(self, uid: str) -> str:
        """The container that shares its slice with this pod's ordinary init containers, or "" if no grant is known."""


class SpecWriter(Protocol):
    """Writes the CDI specs of a share for a container that is about to start."""

    async def write(self, names: Iterable[str], order: m.HandOver) -> None:
        """Writes one CDI spec under each of these device names, atomically: runtimes can read it when this returns.

        Raises OSError if it cannot be written, ValueError if a device of the share does not exist on this host.
        """
