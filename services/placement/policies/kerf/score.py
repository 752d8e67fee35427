"""The parts added up, for many nodes at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.placement.jit import jit
from services.placement.policies.columns import Ask, Columns, rest_after, rest_milli
from services.placement.policies.kerf.balance import imbalance
from services.placement.policies.kerf.groups import group_value
from services.placement.policies.kerf.mig import NONE, Instances, alike, cut_of, filled_first, stake
from services.placement.policies.kerf.parameters import BUCKET_MILLI, SMALL_GPU_MILLI
from services.placement.policies.kerf.waste import STEP_MILLI
from shared.book.arrays import NOT_MIG, Bools, Ints

Floats = npt.NDArray[np.float64]

UNFIT = -(1 << 40)
TERMS = ("balance", "prices", "waste", "groups")


class Tables(NamedTuple):
    """What has been learned. Prices are milli-GPU a milli-core, a byte and a milli-GPU."""

    waste: Floats
    """GPU kinds x steps of rest."""
    price: Floats
    """Node classes x 3; the last row is the pool of nodes without usable GPUs."""
    groups: Floats
    """GPU kinds x group sizes, as `group_value` takes them, weight included."""
    weights: Floats
    """Of balance, prices and waste."""
    instances: Instances | None
    """Of GPUs in MIG mode, where there are any."""


@jit
def cost_terms(row: int, gpus: Ints, columns: Columns, tables: Tables, ask: Ask, terms: Floats) -> None:
    """Writes what it costs, by TERMS in milli-GPU and weighted, to give the ask these GPU columns of a row. A column
    stands there as often as it gives an instance."""
    count = columns.gpu_count[row]
    usable, free, free_after, kind, large = 0.0, 0, 0, 0, False
    lost, waste = 0.0, 0.0
    for gpu in range(count):
        total = columns.gpu_total_mib[row, gpu]
        rest = rest_milli(columns.gpu_free_mib[row, gpu], columns.gpu_free_milli[row, gpu], total)
        kind, cut = columns.gpu_kind[row, gpu], cut_of(row, gpu, columns.mig)
        taken = 0
        for chosen in gpus:
            taken += chosen == gpu
        if cut == NOT_MIG or rest == 0:
            before = tables.waste[kind, rest // STEP_MILLI]
            if rest == 1000:
                free += 1
                free_after += 0 if taken else 1
            if taken:
                after = rest_after(columns.gpu_free_mib[row, gpu], columns.gpu_free_milli[row, gpu], total, ask)
                wasted = tables.waste[kind, after // STEP_MILLI] - before
                waste += wasted
                lost += rest - after + wasted
        else:
            rest, before, loss, wasted = stake(row, gpu, taken, total, ask, columns.mig, tables.instances)
            waste += wasted
            lost += loss
        usable += rest - before
        large = large or rest >= SMALL_GPU_MILLI
    price = tables.price[columns.node_class[row]] if large else tables.price[-1]
    gpu_price = tables.price[columns.node_class[row], 2]
    cost = price[0] * ask.cpu_milli + price[1] * ask.memory_bytes + gpu_price * lost
    terms[0] = 0.0
    if count > 0:
        cpu, memory = float(max(1, columns.cpu_total[row])), float(max(1, columns.memory_total[row]))
        before = imbalance(
            usable, count, max(0, columns.cpu_free[row]) / cpu, max(0, columns.memory_free[row]) / memory
        )
        cpu_left = max(0, columns.cpu_free[row] - ask.cpu_milli) / cpu
        memory_left = max(0, columns.memory_free[row] - ask.memory_bytes) / memory
        terms[0] = tables.weights[0] * (imbalance(usable - lost, count, cpu_left, memory_left) - before)
    terms[1] = tables.weights[1] * cost
    terms[2] = tables.weights[2] * waste
    terms[3] = 0.0
    if free != free_after:
        terms[3] = group_value(free, count, tables.groups[kind]) - group_value(free_after, count, tables.groups[kind])


@jit
def points(terms: Floats) -> int:
    """A cost as a score: higher is better, and what lies in one bucket is equal."""
    return int(-np.floor(terms.sum() / BUCKET_MILLI + 0.999))


@jit
def rate_gpus(row: int, fit: Bools, columns: Columns, tables: Tables, ask: Ask, terms: Floats, scores: Ints) -> int:
    """For an ask of one GPU: a score by GPU column of the row, UNFIT where it does not fit; returns the best."""
    best = UNFIT
    gpus = np.zeros(1, np.int64)
    for gpu in range(fit.size):
        scores[gpu] = UNFIT
        if not fit[gpu]:
            continue
        previous = gpu - 1
        if (
            previous >= 0
            and fit[previous]
            and columns.gpu_free_mib[row, gpu] == columns.gpu_free_mib[row, previous]
            and columns.gpu_free_milli[row, gpu] == columns.gpu_free_milli[row, previous]
            and columns.gpu_kind[row, gpu] == columns.gpu_kind[row, previous]
            and alike(row, gpu, previous, columns.mig)
        ):
            scores[gpu] = scores[previous]
            continue
        gpus[0] = gpu
        cost_terms(row, gpus, columns, tables, ask, terms)
        scores[gpu] = points(terms)
        best = max(best, scores[gpu])
    return best


@jit
def rate_rows(rows: Ints, fit: Bools, columns: Columns, tables: Tables, ask: Ask) -> Ints:
    """A score by row: its best GPU's for an ask of one, else that of its first fitting ones; UNFIT where they are too
    few. `fit` by row and column."""
    result = np.full(rows.size, UNFIT)
    terms, scores = np.zeros(4), np.zeros(fit.shape[1], np.int64)
    for place in range(rows.size):
        row = rows[place]
        if ask.gpus == 1 or ask.profile != NONE:
            result[place] = rate_gpus(row, fit[place], columns, tables, ask, terms, scores)
            if ask.gpus == 1:
                continue
            gpus = filled_first(row, fit[place], scores, columns.gpu_total_mib[row], ask, columns.mig, tables.instances)
            result[place] = UNFIT
        else:
            gpus = np.flatnonzero(fit[place])[: ask.gpus]
        if gpus.size == ask.gpus:
            cost_terms(row, gpus, columns, tables, ask, terms)
            result[place] = points(terms)
    return result
