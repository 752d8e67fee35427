"""To which nodes an agent measures the network: a few of each rack, so that probes grow with racks, not with nodes."""

from __future__ import annotations

import hashlib

from services.placement.core import Core
from services.placement.engine.links import rack_of
from services.placement.queries import Answers
from shared.contracts.queries import REMOTE_PEERS, RemotePeer, RemotePeersAnswer, RemotePeersQuery

PEERS_A_RACK = 2
"""Each node measures so many of each rack. A rack of 20 nodes is measured by 40 pairs from every other one."""


def remote_peers(core: Core, query: RemotePeersQuery) -> RemotePeersAnswer:
    """The same ones each time for one node, and others for another (rendezvous hashing, Thaler and Ravishankar 1998):
    one that comes or goes changes no other pair."""
    if query.node not in core.book.nodes:
        return RemotePeersAnswer(error=f"there is no node {query.node}")
    racks: dict[str, list[RemotePeer]] = {}
    for node in core.book.nodes.values():
        address = "" if node.inventory is None else node.inventory.remote.address
        if address and node.object is not None and node.name != query.node:
            racks.setdefault(rack_of(node), []).append(RemotePeer(node=node.name, address=address))
    chosen = [
        peer
        for rack in sorted(racks)
        for peer in sorted(racks[rack], key=lambda peer: _weight(query.node, peer.node))[:PEERS_A_RACK]
    ]
    return RemotePeersAnswer(peers=tuple(chosen))


def _weight(node: str, peer: str) -> bytes:
    return hashlib.blake2b(f"{node}/{peer}".encode(), digest_size=8).digest()


ANSWERS: Answers = {REMOTE_PEERS.name: lambda core, query, _: remote_peers(core, query)}
