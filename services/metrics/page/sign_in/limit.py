"""How many sign-ins are tried: each costs the API server two requests."""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from collections.abc import Callable

from services.metrics.page.sign_in import Denied

MAX_OF_ONE_PEER = 30
"""In a window. A proxy or an Ingress is one peer, with all its users: whatever reaches the port can write the header
that names another address."""
MAX_OF_ALL = 240
"""In a window. Far above one peer's, so that one address cannot keep all others out."""
WINDOW_S = 10.0
_IPV6_PREFIX = 64


class SignInLimit:
    """Counts the sign-ins of the last seconds, by peer and together."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._recent: deque[tuple[float, str]] = deque()
        self._by_peer: Counter[str] = Counter()

    def count(self, address: str) -> None:
        """Raises Denied where the peer, or all together, tried too many; such a try does not count."""
        now, peer = self._monotonic(), _peer(address)
        while self._recent and now - self._recent[0][0] >= WINDOW_S:
            _, gone = self._recent.popleft()
            self._by_peer[gone] -= 1
            if not self._by_peer[gone]:
                del self._by_peer[gone]
        if self._by_peer[peer] >= MAX_OF_ONE_PEER or len(self._recent) >= MAX_OF_ALL:
            raise Denied("too many sign-ins at once; try again in some seconds", 429)
        self._recent.append((now, peer))
        self._by_peer[peer] += 1


def _peer(address: str) -> str:
    """One machine has all IPv6 addresses of a /64, so these count as one."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, _IPV6_PREFIX), strict=False))
