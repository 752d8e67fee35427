"""A choice among the GPUs of one node for one container, and groups of GPUs that reach each other."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.model.request import PodRequest
from shared.scheduling.topology.fabric import Fabric, places_of

Near = Literal["", "peers", "numa"]
"""`peers`: two GPUs reach each other peer to peer. `numa`: they are on one NUMA node."""


def near_of(request: PodRequest) -> Near:
    """What must hold between any two GPUs of a container."""
    match request.topology:
        case "required":
            return "peers"
        case "numa":
            return "numa"
    return ""


class Choice(msgspec.Struct, frozen=True):
    """What there is to choose from, as masks over the fabric's places."""

    size: int
    fitting: int
    """Where the container fits."""
    idle: int
    """The idle GPUs: those that a choice leaves are what later pods may want whole."""
    rank: tuple[int, ...] = ()
    """How the policy in force orders the places, lower first; empty where it holds all of them equal."""
    near: Near = ""
    """What holds between any two of them; empty: nothing."""
    short: int = 0
    """Where the CPUs beside the GPU do not suffice: of equal sets one with fewer of these is taken."""


def masks_of(fabric: Fabric, near: Near) -> tuple[int, ...]:
    """By place the mask of the others that are near it."""
    return fabric.same_numa if near == "numa" else fabric.peers


def all_near(fabric: Fabric, gpus: int, near: Near) -> bool:
    """Whether each of them is near each other one."""
    masks = masks_of(fabric, near)
    return all(gpus & ~masks[place] == 1 << place for place in places_of(gpus))


def largest_group(fabric: Fabric, among: int, near: Near) -> int:
    """Of these places a largest set in which all are near each other, by Bron and Kerbosch."""
    best, masks = 0, masks_of(fabric, near)

    def grow(chosen: int, possible: int) -> None:
        nonlocal best
        if chosen.bit_count() > best.bit_count():
            best = chosen
        while possible and chosen.bit_count() + possible.bit_count() > best.bit_count():
            place = possible.bit_length() - 1
            possible &= ~(1 << place)
            grow(chosen | 1 << place, possible & masks[place])

    grow(0, among)
    return best
