"""The network between nodes, as agents measure it, and what a node offers for GPUs of other nodes."""

from __future__ import annotations

import msgspec


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a node reaches another one. Raises ValueError on figures that no network has."""

    rtt_us: int
    """Round trip of a small message, in microseconds."""
    mib_s: int
    """Bandwidth of one connection, in MiB/s."""

    def __post_init__(self) -> None:
        if not (0 < self.rtt_us <= MAX_RTT_US and 0 < self.mib_s <= MAX_MIB_S):
            raise ValueError(f"no network has a round trip of {self.rtt_us} us and {self.mib_s} MiB/s")


MAX_RTT_US = 60_000_000
MAX_MIB_S = 1 << 24
UNREACHABLE = NetworkLink(rtt_us=MAX_RTT_US, mib_s=1)
"""Of a node that could not be reached at all. No program may become so slow."""


class RemoteAbility(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node offers for GPUs over the network (strategy `remote`), as its agent has tried it."""

    address: str = ""
    """"host:port" at which its GPUs serve pods of other nodes; empty: they serve none."""
    client: bool = False
    """Its pods may use GPUs of other nodes."""
    network: dict[str, NetworkLink] = {}
    """How it reaches other nodes, by name, as far as it was measured."""
