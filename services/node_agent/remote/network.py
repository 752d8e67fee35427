"""What this node has measured of the network to other nodes. Pure.

Placement says which nodes to measure: of each rack few, so that the number of probes grows with the racks and not with
the nodes. A figure is the median of a node's last measurements, so that one that was disturbed changes nothing; and it
is told only when it has changed by a fifth, because each change makes a new inventory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median

from shared.model.network import NetworkLink

KEEP = 5
TELL_AT = 0.2


class Network:
    def __init__(self, keep: int = KEEP) -> None:
        self._measured: dict[str, deque[NetworkLink]] = {}
        self._told: dict[str, NetworkLink] = {}
        self._keep = keep

    def measured(self, node: str, link: NetworkLink) -> bool:
        """Notes a measurement. Whether what is told has changed."""
        links = self._measured.setdefault(node, deque(maxlen=self._keep))
        links.append(link)
        now = NetworkLink(
            rtt_us=round(median(one.rtt_us for one in links)), mib_s=round(median(one.mib_s for one in links))
        )
        told = self._told.get(node)
        if told is not None and not (_differs(told.rtt_us, now.rtt_us) or _differs(told.mib_s, now.mib_s)):
            return False
        self._told[node] = now
        return True

    def keep_only(self, nodes: Collection[str]) -> bool:
        """Forgets the others. Whether what is told has changed."""
        gone = self._told.keys() - set(nodes)
        for node in gone:
            del self._told[node]
        for node in self._measured.keys() - set(nodes):
            del self._measured[node]
        return bool(gone)

    @property
    def told(self) -> dict[str, NetworkLink]:
        return dict(self._told)


def _differs(told: float, now: float) -> bool:
    return abs(now - told) >= TELL_AT * told
