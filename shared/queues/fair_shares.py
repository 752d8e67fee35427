"""Computes each queue's fair share of the GPUs: its guarantee, then a part of the rest by weight.

A fair share never exceeds the queue's demand.

The order is that of the tree's keys: guarantees of all, then surplus by priority and weight. A queue of weight 0 may
use what no other queue wants, but it is not part of its fair share. Parents divide their fair share among their
children in the same way. What weights divide into parts of a GPU is rounded to whole GPUs, the largest parts first:
otherwise no queue's fair share would cover a pod of one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from shared.model.units import WHOLE_GPU_MILLI
from shared.queues.tree import Branch, Tree

_ROUNDING = 1e-6


def fair_shares(tree: Tree, waiting: Mapping[str, int]) -> dict[str, float]:
    """Returns GPU milli by queue.

    `waiting`: by queue, the GPU milli requested in addition to what is used (`Queues.wanted`).
    """
    wants: dict[str, float] = {}
    _want(tree.root, waiting, wants)
    found: dict[str, float] = {}
    _divide(tree.root, tree.capacity.gpu_milli, wants, found)
    return found


def _want(branch: Branch, waiting: Mapping[str, int], wants: dict[str, float]) -> float:
    own = (
        sum(_want(child, waiting, wants) for child in branch.children)
        if branch.children
        else branch.used.gpu_milli + waiting.get(branch.name, 0)
    )
    limit = branch.limit[0]
    wants[branch.name] = own if limit is None else min(own, limit)
    return wants[branch.name]


def _divide(parent: Branch, milli: float, wants: Mapping[str, float], found: dict[str, float]) -> None:
    got = {child.name: min(wants[child.name], float(child.guaranteed[0] or 0)) for child in parent.children}
    left = milli - sum(got.values())
    weighty = sorted((child for child in parent.children if child.weight > 0), key=_turn)
    for _, turn in groupby(weighty, key=_turn):
        left -= _pour(list(turn), left, wants, got)
    found |= got
    for child in parent.children:
        _divide(child, got[child.name], wants, found)


def _turn(child: Branch) -> int:
    return -child.priority


def _pour(children: Sequence[Branch], left: float, wants: Mapping[str, float], got: dict[str, float]) -> float:
    """Adds to each queue by its weight until its demand is met; returns how much was added."""
    poured, hungry = 0.0, [child for child in children if wants[child.name] > got[child.name]]
    while hungry and left - poured > 0:
        part = (left - poured) / sum(child.weight for child in hungry)
        filled = [child for child in hungry if wants[child.name] - got[child.name] <= part * child.weight]
        for child in filled or hungry:
            more = min(wants[child.name] - got[child.name], part * child.weight)
            got[child.name] += more
            poured += more
        if not filled:
            _round(hungry, got)
            break
        hungry = [child for child in hungry if child not in filled]
    return poured


def _round(children: Sequence[Branch], got: dict[str, float]) -> None:
    """Rounds to whole GPUs and keeps the total.

    If equal parts compete for one GPU, none gets it, because names must not decide.
    """
    parts = {child.name: got[child.name] % WHOLE_GPU_MILLI for child in children}
    whole = int((sum(parts.values()) + _ROUNDING) // WHOLE_GPU_MILLI)
    ordered = sorted(parts.values(), reverse=True)
    if whole and whole < len(ordered) and ordered[whole - 1] - ordered[whole] < _ROUNDING:
        return
    for name, part in parts.items():
        up = whole > 0 and part >= ordered[whole - 1]
        got[name] += (WHOLE_GPU_MILLI if up else 0) - part
