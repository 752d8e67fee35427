"""From what has been seen to the tables that `score` reads."""

from __future__ import annotations

import numpy as np

from services.placement.policies.kerf.fairness import Fairness, fair_groups
from services.placement.policies.kerf.groups import MOST, scarcity
from services.placement.policies.kerf.mig import make_instances, prior_part_milli, untouched_milli
from services.placement.policies.kerf.mix import Kind, Mix, accepts, sizes_on
from services.placement.policies.kerf.parameters import PRIOR_PARTS, PRIOR_PODS, Parameters
from services.placement.policies.kerf.prices import CPU_UNIT_MILLI, MEMORY_UNIT_BYTES, START, Floats, settle
from services.placement.policies.kerf.score import Tables
from services.placement.policies.kerf.waste import STEP_MILLI, STEPS, expected_waste
from shared.book.arrays import NOT_MIG, Arrays, Bools, Ints
from shared.model.units import WHOLE_GPU_MILLI

_NOTHING_GPUS = 0.01


def make_tables(
    arrays: Arrays, mix: Mix, fairness: Fairness, parameters: Parameters, log_prices: Floats
) -> tuple[Tables, Floats]:
    """The tables as of now, and the log prices to start from next time (classes and the pool x 3)."""
    kinds = sorted(mix.counts, key=lambda kind: -mix.counts[kind])
    counts = np.array([mix.counts[kind] for kind in kinds], np.float64)
    takes = [accepts(kind, arrays) for kind in kinds]
    waste = _waste(arrays, mix, kinds, takes, parameters.patience)
    instances = make_instances(arrays, kinds, counts.tolist(), takes, parameters)
    present = arrays.gpu_total_mib > 0
    rest = np.where(
        present, np.minimum(arrays.gpu_free_milli, arrays.gpu_free_mib * 1000 // np.maximum(arrays.gpu_total_mib, 1)), 0
    )
    rest = np.maximum(rest, 0)
    kind = np.maximum(arrays.gpu_kind, 0)
    usable = np.where(present, rest - waste[kind, rest // STEP_MILLI], 0.0)
    untouched = np.where(present, WHOLE_GPU_MILLI - waste[kind, STEPS], 0.0)
    whole = rest == WHOLE_GPU_MILLI
    if instances is not None:
        in_mig = arrays.gpu_mig_cut != NOT_MIG
        whole &= ~in_mig
        state = arrays.gpu_mig_cut[in_mig], arrays.gpu_mig_used[in_mig]
        rest[in_mig] = np.where(rest[in_mig] > 0, instances.free[state], 0)
        usable[in_mig] = np.where(rest[in_mig] > 0, rest[in_mig] - instances.waste[state], 0.0)
        untouched[in_mig] = untouched_milli(arrays, instances)[state[0]]
    gpus = np.array([_gpus_asked(kind) for kind in kinds], np.float64)
    asked = float((counts * gpus).sum())
    groups = np.zeros((len(arrays.kinds), MOST + 1))
    log_prices = _for_classes(log_prices, len(arrays.classes))
    if asked > 0:
        share = np.zeros(MOST + 1)
        for one, part in zip(kinds, counts * gpus / asked, strict=True):
            if one.ask is not None and one.ask.count > 1 and not one.ask.profile:
                share[min(MOST, one.ask.count)] += part
        weights = scarcity(share, whole.sum(axis=1), float(rest.sum()), parameters.by_share)
        groups = fair_groups(weights, fairness.rates(len(arrays.kinds)), parameters)
        log_prices = _prices(arrays, kinds, counts / asked, takes, usable, untouched, parameters, log_prices)
    price = np.exp(log_prices) * 1000 / np.array([CPU_UNIT_MILLI, MEMORY_UNIT_BYTES, 1000])
    weights = np.array([parameters.balance, parameters.prices, parameters.waste])
    return Tables(waste, price, groups, weights, instances), log_prices


def _gpus_asked(kind: Kind) -> float:
    """GPUs that a pod of this kind asks for, by its compute; memory alone counts as a part by the median GPU."""
    if kind.ask is None:
        return 0.0
    return kind.ask.count * (1.0 if kind.ask.whole else max(kind.ask.compute_milli, 1) / 1000)


def _waste(arrays: Arrays, mix: Mix, kinds: list[Kind], takes: list[Bools], patience: float) -> Floats:
    result = np.zeros((max(1, len(arrays.kinds)), STEPS + 1))  # a row to look up even where there is no GPU at all
    rates = np.zeros(result.shape)
    rates[:, STEPS] = PRIOR_PODS
    part, expected = prior_part_milli(arrays), mix.total + PRIOR_PODS
    if part:
        rates[:, -(-part // STEP_MILLI)] = PRIOR_PARTS
        expected += PRIOR_PARTS
    for kind, accepted in zip(kinds, takes, strict=True):
        if kind.count == 1:
            steps = np.minimum(STEPS, -(-sizes_on(kind, arrays) // STEP_MILLI)).astype(np.int64)
            for gpu in np.flatnonzero(accepted).tolist():
                rates[gpu, steps[gpu]] += mix.counts[kind]
    for gpu in range(len(arrays.kinds)):
        result[gpu] = expected_waste(rates[gpu] / expected, 1 / patience)
    return result


def _prices(
    arrays: Arrays,
    kinds: list[Kind],
    per_gpu: Floats,
    takes: list[Bools],
    usable: Floats,
    untouched: Floats,
    parameters: Parameters,
    log_prices: Floats,
) -> Floats:
    """`per_gpu`: pods by kind for each GPU asked for. `usable`: milli-GPU by GPU, and were nothing of it given:
    `untouched`."""
    classes = len(arrays.classes)
    left = usable.sum(axis=1) / 1000
    everything = untouched.sum(axis=1) / 1000
    back = parameters.returning
    gpu = left + back * np.maximum(everything - left, 0)
    known = arrays.pods_free >= 0
    cpu = np.where(known, np.maximum(arrays.cpu_free, 0) * (1 - back) + back * arrays.cpu_total, 0) / CPU_UNIT_MILLI
    memory = (
        np.where(known, np.maximum(arrays.memory_free, 0) * (1 - back) + back * arrays.memory_total, 0)
        / MEMORY_UNIT_BYTES
    )
    where = np.where(gpu > _NOTHING_GPUS, arrays.node_class, classes)
    supply = np.stack(
        [_sum_by(where, column, classes + 1) for column in (cpu, memory, np.where(where < classes, gpu, 0.0))], axis=1
    )
    need = np.array([(k.cpu_milli / CPU_UNIT_MILLI, k.memory_bytes / MEMORY_UNIT_BYTES, _gpus_asked(k)) for k in kinds])
    optional = need[:, 2] > 0
    open_to = np.array([_classes_for(kind, accepted, arrays) for kind, accepted in zip(kinds, takes, strict=True)])
    return settle(
        log_prices, supply, need, per_gpu * gpu.sum() * parameters.demand, open_to, optional, parameters.temperature
    )


def _for_classes(log_prices: Floats, classes: int) -> Floats:
    """With a start for classes that are new; the pool stays last."""
    grown = np.full((classes + 1, 3), START)
    grown[: len(log_prices) - 1], grown[-1] = log_prices[:-1], log_prices[-1]
    return grown


def _classes_for(kind: Kind, takes: Bools, arrays: Arrays) -> list[bool]:
    """Whether the kind could go to each class of nodes, and to the pool. One GPU can give several instances."""
    if kind.ask is None:
        return [True] * (len(arrays.classes) + 1)
    needed = 1 if kind.ask.profile else kind.count
    return [sum(1 for gpu in gpus if takes[gpu]) >= needed for gpus in arrays.classes] + [False]


def _sum_by(where: Ints, amounts: Floats, count: int) -> Floats:
    result: Floats = np.bincount(where, weights=amounts, minlength=count)[:count].astype(np.float64)
    return result
