"""What the agent asks of the part that runs servers for GPUs of this node, and clients of other nodes' GPUs.

A server is a process of this node that makes GPU calls for one container of another node, inside an ordinary slice of
this node: the limits of that slice hold for it. The core decides when one starts and ends; this port carries it out.
"""

from __future__ import annotations

from typing import Protocol

from services.node_agent.cdi.spec import ContainerEdits
from shared.model.grant import ContainerGrant


class RemoteServing(Protocol):
    """Servers and clients of one node. The agent calls nothing twice at the same time for one container."""

    async def serve(self, uid: str, grant_id: str, container: str, share: ContainerGrant, peer_node: str) -> str:
        """Starts the server of a container of `peer_node`; returns "" once it accepts connections, or why it does not.

        `share` has the GPU, the amounts, and in `serving` the strategy that limits the server. If a server of this
        container and grant runs already, nothing is started. After a failure nothing of it runs.
        """

    async def end(self, uid: str, grant_id: str, container: str) -> None:
        """Ends the server, and returns when nothing of it runs: no process of it is on the GPU.

        Nothing to do if none runs. Raises OSError if something still runs: the agent asks again, and the GPU stays
        taken.
        """

    def running(self) -> frozenset[tuple[str, str]]:
        """(uid, container) of the servers of which anything runs now, also of those that an earlier agent started."""

    async def client_edits(
        self, uid: str, grant_id: str, container: str, share: ContainerGrant, address: str
    ) -> ContainerEdits:
        """What the runtime changes in a container of this node that uses a GPU at `address` ("host:port").

        Raises SliceNotReady (services.node_agent.messages) if the container must not start now.
        """

    async def client_ended(self, uid: str, container: str) -> None:
        """The container has ended, and will not start again before `client_edits` is called again."""
