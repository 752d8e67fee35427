"""What the agent asks of the part that runs servers for GPUs of this node, and clients of other nodes' GPUs.

A server is a process of this node that makes GPU calls for one container of another node, inside an ordinary slice of
this node: the limits of that slice hold for it. The core decides when one starts and ends; this port carries it out.
"""

from __future__ import annotations

from typing import Protocol

from services.node_agent.cdi.spec import ContainerEdits
from shared.model.grant import ContainerGrant
from shared.model.network import RemoteAbility


class RemoteServing(Protocol):
    """Servers and clients of one node. The agent calls nothing twice at the same time for one container.

    It is there also where the node neither serves nor uses GPUs over the network: what runs from before is ended by it.
    """

    def ability(self) -> RemoteAbility:
        """What this node offers now: where it serves, whether its containers may be clients, what was measured.

        The agent asks with each report of its inventory. A change of anything makes a new inventory, which placement
        reads: figures of the network change only when they differ by a fifth or more.
        """

    async def serve(self, uid: str, grant_id: str, container: str, share: ContainerGrant, peer_node: str) -> str:
        """Starts the server of a container of `peer_node`; returns "" once it accepts connections, or why it does not.

        Its lease is written, and the device gate has let it in. `share` has the GPU and the amounts; `share.served` is
        the ordinary slice of this node inside which the server runs. If a server of this container and grant runs
        already, nothing is started. After a failure nothing of it runs.
        """

    def find(self, uid: str, grant_id: str, container: str, peer_node: str) -> bool:
        """Whether the server of this container and grant runs and listens; nothing is started or ended. What lets its
        client in is as for a new one."""

    async def end(self, uid: str, grant_id: str, container: str) -> None:
        """Ends the server, and returns when nothing of it runs: no process of it is on the GPU.

        Nothing to do if none runs. Raises OSError if something still runs: the agent asks again, and the GPU stays
        taken. `grant_id` empty: whatever grant it is of.
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
