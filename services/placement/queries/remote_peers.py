"""Which nodes an agent measures the network to. Few of each rack, so that probes grow with racks and not with nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from services.placement.core import Core
from services.placement.queries import Answers
from shared.contracts.queries import REMOTE_PEERS, RemotePeer, RemotePeersAnswer, RemotePeersQuery

PER_RACK = 2
MOST = 64


def remote_peers(core: Core, query: RemotePeersQuery) -> RemotePeersAnswer:
    links = core.remote_places.links
    links.refresh()
    error = "" if core.nodes.open else "this leader has just begun: it may not know all nodes yet"
    if query.node not in links.askers:
        return RemotePeersAnswer(error=error)  # its pods use no GPU of other nodes, so no link of it is asked for
    chosen = sample(query.node, links.served, links.all_racks)
    return RemotePeersAnswer(
        peers=tuple(RemotePeer(node=name, address=links.served[name]) for name in chosen), error=error
    )


def sample(node: str, serving: Iterable[str], racks: Mapping[str, str]) -> list[str]:
    """At most MOST serving nodes, its own rack's first: up to PER_RACK of each.

    The draw is the same each time for one node and another for other nodes, so that together they measure all; a node
    that comes or goes changes no other pair (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    drawn = sorted((name for name in serving if name != node), key=lambda name: _draw(node, name))
    of_rack: dict[str, list[str]] = {}
    for name in drawn:
        of_rack.setdefault(racks[name], []).append(name)
    own = racks.get(node)
    ordered = sorted(of_rack, key=lambda rack: (rack != own, _draw(node, rack)))
    return [name for rack in ordered for name in of_rack[rack][:PER_RACK]][:MOST]


def _draw(node: str, name: str) -> bytes:
    return hashlib.blake2b(f"{node}\0{name}".encode(), digest_size=8).digest()


ANSWERS: Answers = {
    REMOTE_PEERS.name: lambda core, query, _: remote_peers(core, query),
}
