"""Predicts the slowdown of a container by those that share its GPU.

A container that has the GPU for itself runs kernels in the part `busy` of its time; the rest is its own. Others stretch
only that part. By which factor, depends on the way in which the GPU is shared:

- *alone*: not at all.
- *concurrent* (MPS): kernels run beside each other until SMs or memory bandwidth are used up, then they take as much
  longer as more is asked for than there is. Each neighbour asks for its part while it is busy. Cache and DRAM are
  contended before the bandwidth is used up: CONTENTION. Memory-bound jobs beside each other lost some 30 % by MPS where
  favourable ones gained 30 % (Villarrubia et al., arXiv 2604.22430); Elvinger et al. (SoCC 2025, arXiv 2501.16909) show
  which resources contend below full use; pairs of trainings measured by Gavel (OSDI 2020) run at 0.48 to 1.0.
- *turns* (the interposer's gate, time slices of the driver): one kernel at a time. A neighbour has the GPU for its busy
  part, so the stretch is one and the sum of these; SWITCH is what changing between contexts costs: two saturating
  processes get 0.46 of solo each under the driver's time slicing. A container with reserved GPU time gets that,
  whatever others do, and never more. Each request waits at the gate for work in flight, at most GATE_US of each
  neighbour (`Policy.reserved_in_flight_us` of the agent).
- *partition* (MIG): nobody is noticed. What it needs of SMs and bandwidth comes out of its instance (MISO, SoCC 2022).

What is predicted beyond 1 is scaled by the sensitivity that `learning.py` has learned of the container's owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from shared.model.strategies import registered
from shared.model.strategy import Strategy
from shared.model.units import WHOLE_GPU_MILLI
from shared.model.use import UseProfile

Way = Literal["alone", "concurrent", "turns", "partition"]
WAYS: tuple[Way, ...] = ("alone", "concurrent", "turns", "partition")
CONTENTION = 0.25
SWITCH = 1.08
GATE_US = 2000


class Sharer(msgspec.Struct, frozen=True):
    """One container on one GPU."""

    use: UseProfile
    reserved_milli: int = 0
    """The GPU time that is reserved for it, where slices take turns; 0: none."""
    sm_milli: int = WHOLE_GPU_MILLI
    """The part of the SMs that its instance has, or that it is capped to."""
    bandwidth_milli: int = WHOLE_GPU_MILLI
    """The part of the memory bandwidth that its instance has."""


def way_of(strategy: str) -> Way:
    """How slices of a strategy share a GPU. A strategy that is not known here counts as one that takes turns."""
    known: Strategy | None = registered().get(strategy)
    if known is None or known.unit == "part":
        return "concurrent" if known is not None and known.concurrent else "turns"
    return "partition" if known.unit == "instance" else "alone"


def slowdown_of(me: Sharer, others: Sequence[Sharer], way: Way) -> float:
    """How many times as long `me` takes as on a GPU of its own, at least 1, beside `others` on the same GPU."""
    if way == "alone":
        return 1.0
    busy = me.use.busy_milli / 1000
    if way == "turns":
        found = _by_turns(me, others, busy)
    else:
        beside = others if way == "concurrent" else ()
        found = 1 - busy + busy * _stretch(me, beside)
    return 1.0 + me.use.sensitivity_milli / 1000 * max(0.0, found - 1.0)


def _stretch(me: Sharer, others: Sequence[Sharer]) -> float:
    """How many times as long its kernels take."""
    sm, bandwidth = me.use.sm_milli / 1000, me.use.bandwidth_milli / 1000
    others_sm = sum(o.use.busy_milli * min(o.use.sm_milli, o.sm_milli) for o in others) / 1e6
    others_bandwidth = sum(o.use.busy_milli * o.use.bandwidth_milli for o in others) / 1e6
    own = max(1.0, 1000 * sm / max(1, me.sm_milli), 1000 * bandwidth / max(1, me.bandwidth_milli))
    return max(own, sm + others_sm, bandwidth + others_bandwidth) + CONTENTION * min(bandwidth, others_bandwidth)


def _by_turns(me: Sharer, others: Sequence[Sharer], busy: float) -> float:
    free = 1.0
    shared = 0.0
    for other in others:
        theirs = other.use.busy_milli / 1000
        if other.reserved_milli:
            free -= min(theirs, other.reserved_milli / 1000)
        else:
            shared += theirs
    waits = _gate(me, others, busy)
    if me.reserved_milli:
        return max(1.0, 1000 * busy / me.reserved_milli) + waits
    switch = SWITCH if others else 1.0
    stretch = (1 + shared * switch) / max(0.05, free)
    return 1 - busy + busy * stretch + waits


def _gate(me: Sharer, others: Sequence[Sharer], busy: float) -> float:
    """The waits at the gate in multiples of its time: each request meets each neighbour's work in flight as often as
    that is busy, and waits for half of it."""
    if not me.use.request_us:
        return 0.0
    waits_us = sum(o.use.busy_milli / 2000 * min(GATE_US, o.use.request_us or GATE_US) for o in others)
    return waits_us * busy / me.use.request_us
