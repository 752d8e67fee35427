"""What of a GPU in MIG mode will never be used.

Its state is the mask of what is taken of it. W(mask), the expected waste, is found as in `waste`, over masks: when pods
come at rates f_a and a rest is given up at rate e, W(mask) = (e lost(mask) + sum of f_a W(next)) / (e + sum of f_a)
over the asks a that still get an instance. `next` is the mask with the instance that the book would give them, and
lost(mask) is free(mask) times the share of arrivals that get none: what fragmentation is to FGD. So nothing is lost of
a GPU that serves all requests, however long it is empty.

What an instance is larger than the ask is wasted for certain, and is a cost of the decision alone. It is no part of W:
an instance that pods would waste most of would seem to be worth little, and so to cost little.

Free and spare are counted in memory slices, as milli of the GPU's: for these the instances compete, and wherever one
may stand there is compute for it.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.placement.jit import jit
from services.placement.policies.columns import Ask, MigColumns, asked_milli
from services.placement.policies.kerf.mix import Kind
from services.placement.policies.kerf.parameters import PRIOR_PARTS, PRIOR_PODS, Parameters
from shared.book.arrays import NOT_MIG, Arrays, Bools, Ints
from shared.book.mig import MASKS, MigCut, best_start, serving
from shared.model.mig import GEOMETRIES, PROFILES, MigProfile, instance_mask, mask_at

Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.int16]

NONE = -1
MOST = max(len(geometry.profiles) for geometry in GEOMETRIES)
"""Profiles that a GPU can have."""


class Instances(NamedTuple):
    """By `Arrays.cuts` and mask: what can be had, and what will be wasted."""

    free: Ints
    """Milli-GPU in memory slices that are not taken."""
    waste: Floats
    waste_by_name: Floats
    """As instances that are asked for by name are compared, which compete with each other alone."""
    after: Masks
    """Cuts x lines x masks: the mask with one more instance, NONE where there is none. Line p: of the profile p, in the
    order of `_ordered`; line MOST + p: of p, or of the next larger one that can be had."""
    sizes: Ints
    """Cuts x profiles x (place in PROFILES, memory in MiB, compute in milli)."""


@jit
def line_of(cut: int, total_mib: int, ask: Ask, instances: Instances) -> int:
    """The line of `after` that serves an ask, NONE where none does."""
    memory_mib = total_mib * ask.memory_milli // 1000 if ask.memory_milli else ask.memory_mib
    for place in range(MOST):
        profile, mib, milli = instances.sizes[cut, place]
        if ask.profile != NONE:
            if profile == ask.profile:
                return place
        elif mib >= memory_mib and milli >= ask.compute_milli:
            return MOST + place
    return NONE


@jit
def spare_milli(taken: int, total_mib: int, ask: Ask) -> int:
    """What an instance is larger than the ask; one that is asked for by name is as large as it should be."""
    return 0 if ask.profile != NONE else max(0, taken - asked_milli(total_mib, ask))


@jit
def after_taking(cut: int, used: int, total_mib: int, ask: Ask, count: int, instances: Instances) -> int:
    """The mask of a GPU once so many of the ask's instances are taken of it; NONE where it has not as many."""
    line = line_of(cut, total_mib, ask, instances)
    for _ in range(count):
        used = NONE if NONE in (line, used) else int(instances.after[cut, line, used])
    return used


# What follows is called for every GPU. Where none is in MIG mode `mig` and `instances` are None, and of these functions
# only
# their first lines are compiled.


@jit
def cut_of(row: int, gpu: int, mig: MigColumns | None) -> int:
    """A GPU's place in `Arrays.cuts`, or NOT_MIG."""
    if mig is None:
        return NOT_MIG
    return int(mig.cut[row, gpu])


@jit
def alike(row: int, gpu: int, other: int, mig: MigColumns | None) -> bool:
    """Whether two GPUs of a row give the same instances."""
    if mig is None:
        return True
    return bool(mig.cut[row, gpu] == mig.cut[row, other] and mig.used[row, gpu] == mig.used[row, other])


@jit
def stake(
    row: int, gpu: int, taken: int, total_mib: int, ask: Ask, mig: MigColumns | None, instances: Instances | None
) -> tuple[int, float, float, float]:
    """Of a GPU in MIG mode, in milli-GPU: what is left, what of it will be wasted, and, where so many of the ask's
    instances are taken, what is lost to others and how much of that is waste."""
    if mig is None:
        return 0, 0.0, 0.0, 0.0
    if instances is None:
        return 0, 0.0, 0.0, 0.0
    cut, used = mig.cut[row, gpu], mig.used[row, gpu]
    waste = instances.waste if ask.profile == NONE else instances.waste_by_name
    rest, before = int(instances.free[cut, used]), float(waste[cut, used])
    after = after_taking(cut, used, total_mib, ask, taken, instances) if taken else NONE
    if after == NONE:
        return rest, before, 0.0, 0.0
    given = rest - int(instances.free[cut, after])
    more = waste[cut, after] - before
    return rest, before, given + more, more + taken * spare_milli(given // taken, total_mib, ask)


@jit
def filled_first(
    row: int, fit: Bools, scores: Ints, totals: Ints, ask: Ask, mig: MigColumns | None, instances: Instances | None
) -> Ints:
    """The GPU columns of a row for all instances of an ask, one for each: those of the best score are filled first.
    Fewer than asked for where there are no more. By column: whether one instance fits, its score, the GPU's MiB."""
    gpus = np.zeros(ask.gpus, np.int64)
    found = 0
    if mig is None:
        return gpus[:0]
    if instances is None:
        return gpus[:0]
    for gpu in np.argsort(-scores, kind="mergesort"):
        used = mig.used[row, gpu]
        while found < ask.gpus and fit[gpu]:
            used = after_taking(mig.cut[row, gpu], used, totals[gpu], ask, 1, instances)
            if used == NONE:
                break
            gpus[found] = gpu
            found += 1
    return gpus[:found]


@jit
def expected_waste(free: Ints, after: Masks, rates: Floats, give_up: float) -> Floats:
    """W in milli-GPU by mask. `rates`: the share of arrivals by line of `after`."""
    waste = np.zeros(free.size)
    offered = rates.sum()
    for mask in range(free.size - 1, -1, -1):  # an instance only adds bits
        above, served = 0.0, 0.0
        for line in range(rates.size):
            got = after[line, mask]
            if rates[line] > 0.0 and got != NONE:
                above += rates[line] * waste[got]
                served += rates[line]
        lost = free[mask] * (1 - served / offered) if offered > 0.0 else float(free[mask])
        waste[mask] = (give_up * lost + above) / (give_up + served)
    return waste


def make_instances(
    arrays: Arrays, kinds: list[Kind], counts: list[float], takes: list[Bools], parameters: Parameters
) -> Instances | None:
    """None where no GPU is in MIG mode. `counts`: arrivals by kind; `takes`: by kind, the GPU kinds that it would
    take."""
    count = len(arrays.cuts)
    if not count:
        return None
    result = Instances(
        np.zeros((count, MASKS), np.int64),
        np.zeros((count, MASKS)),
        np.zeros((count, MASKS)),
        np.full((count, 2 * MOST, MASKS), NONE, np.int16),
        np.full((count, MOST, 3), NONE, np.int64),
    )
    demands: dict[tuple[int, str, int], Floats] = {}
    for place, cut in enumerate(arrays.cuts):
        known = constants_of(cut)
        result.free[place], result.after[place], result.sizes[place] = known.free, known.after, known.sizes
        make = (cut.geometry, cut.model, cut.total_mib)
        if make not in demands:
            demands[make] = _demand(arrays, cut, kinds, counts, takes)
        rates = demands[make].copy()
        offered = [p for p in range(MOST) if known.after[p, known.empty] != NONE]
        largest = max(offered, key=lambda p: _milli(cut.geometry, p), default=NONE)
        if largest != NONE:  # as GPUs begin with pods that want them whole
            rates[largest] += PRIOR_PODS
        rates[MOST] += PRIOR_PARTS
        total = sum(counts) + PRIOR_PODS + PRIOR_PARTS
        rates /= total
        result.waste[place] = expected_waste(known.free, known.after, rates, parameters.mig_giving_up)
        result.waste_by_name[place] = expected_waste(known.free, known.after, rates, parameters.mig_giving_up_by_name)
    return result


def prior_part_milli(arrays: Arrays) -> int:
    """The size of the parts that are expected before anything is known: the smallest instance of any GPU in MIG mode.
    0 where there is none."""
    return min((_milli(cut.geometry, 0) for cut in arrays.cuts), default=0)


def untouched_milli(arrays: Arrays, instances: Instances) -> Floats:
    """By cut: what of such a GPU is of use while nothing of it is granted."""
    empty = [constants_of(cut).empty for cut in arrays.cuts]
    cuts = np.arange(len(empty))
    result: Floats = instances.free[cuts, empty] - instances.waste[cuts, empty]
    return result


def _demand(arrays: Arrays, cut: MigCut, kinds: list[Kind], counts: list[float], takes: list[Bools]) -> Floats:
    """Arrivals by line. A pod of several instances is as many arrivals."""
    gpu = next(
        i for i, k in enumerate(arrays.kinds) if k.mig_enabled and (k.model, k.memory_mib) == (cut.model, cut.total_mib)
    )
    ordered = _ordered(cut.geometry)
    rates = np.zeros(2 * MOST)
    for kind, count, accepted in zip(kinds, counts, takes, strict=True):
        if kind.ask is None or not accepted[gpu]:
            continue
        place = ordered.index(serving(cut.geometry, kind.ask, cut.total_mib)[0])
        rates[place if kind.ask.profile else MOST + place] += count * kind.ask.count
    return rates


class Constants(NamedTuple):
    free: Ints
    after: Masks
    sizes: Ints
    empty: int
    """The mask while nothing is granted."""


@lru_cache(maxsize=1024)
def constants_of(cut: MigCut) -> Constants:
    """The part of a cut's value that does not depend on later pods."""
    make = GEOMETRIES[cut.geometry]
    slices = make.memory_slices
    free: Ints = np.array([slices - (mask & (1 << slices) - 1).bit_count() for mask in range(MASKS)]) * 1000 // slices
    after, sizes = np.full((2 * MOST, MASKS), NONE, np.int16), np.full((MOST, 3), NONE, np.int64)
    ordered = _ordered(cut.geometry)
    for place, profile in enumerate(ordered):
        after[place] = _on_demand(cut.geometry, profile) if cut.instances is None else _of_layout(cut, profile)
        # a request for memory and compute never gets the media extensions
        size = (NONE, NONE) if profile.media else (make.memory_mib(profile, cut.total_mib), make.compute_milli(profile))
        sizes[place] = PROFILES.index(profile.name), *size
    larger = np.full(MASKS, NONE, np.int16)
    for place in range(len(ordered) - 1, -1, -1):
        if not ordered[place].media:
            larger = after[MOST + place] = np.where(after[place] != NONE, after[place], larger)
    empty = 0
    if cut.instances is not None:
        empty = MASKS - 1
        for instance in cut.instances:
            empty &= ~instance_mask(cut.geometry, instance)
    return Constants(free, after, sizes, empty)


def _on_demand(geometry: int, profile: MigProfile) -> list[int]:
    starts = [best_start(geometry, profile, used) for used in range(MASKS)]
    return [NONE if start is None else used | mask_at(profile, start) for used, start in enumerate(starts)]


def _of_layout(cut: MigCut, profile: MigProfile) -> Ints:
    masks = np.arange(MASKS)
    after: Ints = np.full(MASKS, NONE)
    for instance in cut.instances or ():
        taken = instance_mask(cut.geometry, instance)
        if instance.profile == profile.name and taken:
            after = np.where((after == NONE) & (masks & taken == 0), masks | taken, after)
    return after


@cache
def _ordered(geometry: int) -> list[MigProfile]:
    """The smallest first, as `serving` gives them; those with media extensions last. Whatever covers an ask, all those
    after it cover it too."""
    return sorted(GEOMETRIES[geometry].profiles, key=lambda p: (p.media, p.memory_slices, p.compute_slices))


def _milli(geometry: int, place: int) -> int:
    return _ordered(geometry)[place].memory_slices * 1000 // GEOMETRIES[geometry].memory_slices
