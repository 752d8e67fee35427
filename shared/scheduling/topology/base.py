"""A choice among the GPUs of one node for one container, and groups of GPUs that reach each other."""

from __future__ import annotations

import msgspec

from shared.scheduling.topology.fabric import Fabric, places_of


class Choice(msgspec.Struct, frozen=True):
    """What there is to choose from, as masks over the fabric's places."""

    size: int
    fitting: int
    """Where the container fits."""
    idle: int
    """The idle GPUs: those that a choice leaves are what later pods may want whole."""
    rank: tuple[int, ...] = ()
    """How the policy in force orders the places, lower first; empty where it holds all of them equal."""
    peers: bool = False
    """Whether all of them must reach each other peer to peer."""


def all_peers(fabric: Fabric, gpus: int) -> bool:
    """Whether each of them reaches each other one peer to peer."""
    return all(gpus & ~fabric.peers[place] == 1 << place for place in places_of(gpus))


def largest_peer_group(fabric: Fabric, among: int) -> int:
    """Of these places a largest set that all reach each other, by Bron and Kerbosch."""
    best = 0

    def grow(chosen: int, possible: int) -> None:
        nonlocal best
        if chosen.bit_count() > best.bit_count():
            best = chosen
        while possible and chosen.bit_count() + possible.bit_count() > best.bit_count():
            place = possible.bit_length() - 1
            possible &= ~(1 << place)
            grow(chosen | 1 << place, possible & fabric.peers[place])

    grow(0, among)
    return best
