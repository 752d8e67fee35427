"""The policy's constants: one set for every cluster, blended by how much of what is given comes back."""

from __future__ import annotations

import msgspec


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Weights are milli-GPU of cost for each milli-GPU of the term."""

    patience: float
    """How many offered pods a rest of a GPU may wait for before it counts as lost."""
    mig_giving_up: float
    """The rate, by offered pod, at which the rest of a GPU in MIG mode is given up to pods that it serves at once."""
    mig_giving_up_by_name: float
    """The same for instances that are asked for by name."""
    balance: float
    prices: float
    waste: float
    returning: float
    """The part of what is taken that prices count as supply: it will be free again."""
    temperature: float
    """How loosely pods follow prices, as a fraction of what they ask for."""
    demand: float
    """Expected demand, as a multiple of the usable GPUs."""
    strong_groups: float
    """Weight of whole groups while no smaller pod is rejected."""
    weak_groups: float
    """The same when pods of one GPU are."""
    open_groups: float
    """What a group that is not whole counts for, as a fraction, while no smaller pod is rejected."""
    by_share: float
    """Exponent of a group size's share among the pods of several GPUs."""
    pairs: float
    """How many times as much a pair of free GPUs weighs as its scarcity says: any single pod tears one, and only luck
    makes another."""


FILL = Parameters(
    patience=120,
    mig_giving_up=1 / 120,
    mig_giving_up_by_name=1 / 120,
    balance=4,
    prices=2,
    waste=2,
    returning=0,
    temperature=0.2,
    demand=1.0,
    strong_groups=0.25,
    weak_groups=0.25,
    open_groups=0,
    by_share=0,
    pairs=1,
)
"""Nothing ever ends: what is torn stays torn, and a group that is not whole will never be."""

FLOW = Parameters(
    patience=16,
    mig_giving_up=1 / 6,
    mig_giving_up_by_name=2 / 3,
    balance=2,
    prices=2,
    waste=4,
    returning=1,
    temperature=0.1,
    demand=2,
    strong_groups=2.5,
    weak_groups=0.25,
    open_groups=0.75,
    by_share=0.8,
    pairs=10,
)
"""As much ends as begins: rests heal, and nearly free nodes become free."""


def blend(turnover: float) -> Parameters:
    """Between FILL (turnover 0) and FLOW (1)."""
    mixed = {
        name: (1 - turnover) * getattr(FILL, name) + turnover * getattr(FLOW, name) for name in FILL.__struct_fields__
    }
    return Parameters(**mixed)


BUCKET_MILLI = 60
"""Costs nearer to each other than this are equal, and the first node wins: that concentrates, and empties the
others."""
OPEN_EXPONENT = 1.75
"""A group counts for the more, the nearer it is to being whole."""
SMALL_GPU_MILLI = 300
"""A node whose GPUs all have less left sells CPU at the price of nodes without GPUs."""
PRIOR_PODS = 50
"""Before anything is known, pods of one whole GPU are expected."""
PRIOR_PARTS = 12
"""And beside them, in a cluster that has GPUs in MIG mode, as many that want a part: GPUs are cut for these alone."""
TURNED_AWAY = 0.0025
"""The rate of refused one-GPU pods from which on whole groups have the weak weight."""
OFTEN = 0.007
"""The same from which on groups of more than two have none."""
PAIRS_REFUSED = 0.05
"""The rate of refused two-GPU pods from which on pairs weigh as if they were as scarce as can be."""
