"""What this node has measured of the network to other nodes. Pure.

Placement says which nodes to measure: of each rack few, so that the number of probes grows with the racks and not with
the nodes. A figure is the median of a node's last measurements, so that one that was disturbed changes nothing; and it
is told only when it has changed by a fifth, because each change makes a new inventory. A node that was not reached
several times in a row is told as unreachable: its old figures would draw pods to it that never start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median

from shared.model.network import UNREACHABLE, NetworkLink

KEEP = 5
TELL_AT = 0.2
UNREACHED = 3
"""So many attempts in a row, as one may meet a proxy that is being replaced."""


class Network:
    def __init__(self, keep: int = KEEP) -> None:
        self._measured: dict[str, deque[NetworkLink]] = {}
        self._told: dict[str, NetworkLink] = {}
        self._failed: dict[str, int] = {}
        """How many times in a row each was not reached."""
        self._keep = keep

    def measured(self, node: str, link: NetworkLink) -> bool:
        """Notes a measurement. Whether what is told has changed."""
        self._failed.pop(node, None)
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

    def not_reached(self, node: str) -> bool:
        """Notes that a measurement has failed. Whether what is told has changed."""
        self._failed[node] = self._failed.get(node, 0) + 1
        if self._failed[node] < UNREACHED or self._told.get(node) == UNREACHABLE:
            return False
        self._measured.pop(node, None)  # its next measurement counts by itself
        self._told[node] = UNREACHABLE
        return True

    def keep_only(self, nodes: Collection[str]) -> bool:
        """Forgets the others. Whether what is told has changed."""
        gone = self._told.keys() - set(nodes)
        for node in gone:
            del self._told[node]
        for noted in (self._measured, self._failed):
            for node in noted.keys() - set(nodes):
                del noted[node]
        return bool(gone)

    @property
    def told(self) -> dict[str, NetworkLink]:
        return dict(self._told)


def _differs(told: float, now: float) -> bool:
    return abs(now - told) >= TELL_AT * told
