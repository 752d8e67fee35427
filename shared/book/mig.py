"""The fit arithmetic of GPUs in MIG mode: which instances still fit, and which place leaves the most to others.

What is taken of a GPU is one mask: a bit for each memory slice, and MEDIA for its set of media extensions
(`model.mig`).
"""

from __future__ import annotations

from functools import cache, lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from shared.model.mig import (
    GEOMETRIES,
    PROFILE_BIT,
    PROFILES,
    Geometry,
    MigInstance,
    MigProfile,
    instance_mask,
    mask_at,
    profile_in,
)
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI

MASKS = 1 << 9


def possible(profile: MigProfile, used: int) -> tuple[int, ...]:
    """The starts at which one more instance fits beside the taken slices."""
    return tuple(start for start in profile.starts if not mask_at(profile, start) & used)


@cache
def best_start(geometry: int, profile: MigProfile, used: int) -> int | None:
    """The start after which the most placements, of all profiles, are still possible: of several the first. None where
    the profile does not fit. (Number of placements left: "configuration capability", Turkkan et al., 2024.)"""
    return max(possible(profile, used), key=lambda start: _left(geometry, used | mask_at(profile, start)), default=None)


@cache
def _left(geometry: int, used: int) -> int:
    return sum(len(possible(p, used)) for p in GEOMETRIES[geometry].profiles)


def _fits() -> npt.NDArray[np.int64]:
    table = np.zeros((len(GEOMETRIES), MASKS), np.int64)
    for place, geometry in enumerate(GEOMETRIES):
        for used in range(MASKS):
            table[place, used] = sum(PROFILE_BIT[p.name] for p in geometry.profiles if possible(p, used))
    return table


FITS = _fits()
"""By geometry and mask of what is taken: the mask of profiles of which one more instance fits."""


class MigCut(msgspec.Struct, frozen=True):
    """What GPUs in MIG mode have in common that give the same instances: make, and layout where it is fixed."""

    geometry: int
    model: str
    total_mib: int
    instances: tuple[MigInstance, ...] | None
    """Of a fixed layout, without their UUIDs; None: cut on demand."""


class MigRoom(msgspec.Struct):
    """A GPU in MIG mode. If instances are made on demand, it offers every placement; else the existing instances."""

    geometry: int
    on_demand: bool
    instances: tuple[MigInstance, ...] = ()
    """For a GPU with instances on demand: foreign instances, whose slices are taken."""
    granted: int = 0
    """The mask of what grants take. Overlapping grants count once; `Ledger.overbooked` reports them."""

    @property
    def make(self) -> Geometry:
        return GEOMETRIES[self.geometry]

    def cut(self, model: str, total_mib: int) -> MigCut:
        """`model`, `total_mib`: of the GPU."""
        layout = sorted((instance.start, instance.profile) for instance in self.instances)
        fixed = (
            None if self.on_demand else tuple(MigInstance(profile=profile, start=start) for start, profile in layout)
        )
        return MigCut(self.geometry, model, total_mib, fixed)

    @property
    def used(self) -> int:
        """The mask of what no new instance can have."""
        if self.on_demand:
            return self.granted | _mask_of(self.geometry, self.instances)
        return self.granted | ~_mask_of(self.geometry, self.instances) & (MASKS - 1)

    @property
    def bits(self) -> int:
        """The mask of profiles of which one more instance can be had."""
        return self._bits(self.granted)

    @property
    def offers(self) -> int:
        """The same, were nothing granted."""
        return self._bits(0)

    def _bits(self, granted: int) -> int:
        if self.on_demand:
            return int(FITS[self.geometry, granted | _mask_of(self.geometry, self.instances)])
        found = 0
        for instance in self.instances:
            mask = instance_mask(self.geometry, instance)
            if mask and not mask & granted:
                found |= PROFILE_BIT[instance.profile]
        return found

    def _is_free(self, instance: MigInstance) -> bool:
        mask = instance_mask(self.geometry, instance)
        return bool(mask) and not mask & self.granted

    def size(self, profile: MigProfile, total_mib: int) -> tuple[int, int]:
        """(memory_mib, compute_milli) of an instance."""
        return self.make.memory_mib(profile, total_mib), self.make.compute_milli(profile)

    def size_of(self, instance: MigInstance, total_mib: int) -> tuple[int, int]:
        """The same, of a profile that such GPUs have; else nothing."""
        profile = profile_in(self.geometry, instance.profile)
        return (0, 0) if profile is None else self.size(profile, total_mib)

    def capacity(self, total_mib: int) -> tuple[int, int]:
        """(memory_mib, compute_milli) that instances for grants can have together: never more than the GPU, whatever
        its node says of it."""
        sizes = [self.size_of(instance, total_mib) for instance in self.instances]
        whole = self.size(self.make.profiles[-1], total_mib)
        standing = min(whole[0], sum(mib for mib, _ in sizes)), min(whole[1], sum(milli for _, milli in sizes))
        if not self.on_demand:
            return standing
        return whole[0] - standing[0], whole[1] - standing[1]

    def take(self, ask: GpuAsk, total_mib: int) -> MigInstance | None:
        """The smallest instance that serves the ask, at its best place: now granted. None where none can be had."""
        return next(
            (got for profile in serving(self.geometry, ask, total_mib) if (got := self._take(profile)) is not None),
            None,
        )

    def _take(self, profile: MigProfile) -> MigInstance | None:
        if self.on_demand:
            start = best_start(self.geometry, profile, self.used)
            found = None if start is None else MigInstance(profile=profile.name, start=start)
        else:
            found = next((i for i in self.instances if i.profile == profile.name and self._is_free(i)), None)
        if found is not None:
            self.granted |= mask_at(profile, found.start)
        return found


@lru_cache(maxsize=4096)
def _mask_of(geometry: int, instances: tuple[MigInstance, ...]) -> int:
    mask = 0
    for instance in instances:
        mask |= instance_mask(geometry, instance)
    return mask


@lru_cache(maxsize=4096)
def serving(geometry: int, ask: GpuAsk, total_mib: int) -> tuple[MigProfile, ...]:
    """The profiles that serve an ask on such a GPU, smallest first: the one that it names, or those that cover it. A
    whole GPU is never an instance, and no process can use two instances, so neither is a part of several GPUs; nor one
    that may use more than it requests, for an instance cannot grow."""
    if ask.profile:
        named = profile_in(geometry, ask.profile)
        return () if named is None else (named,)
    if ask.whole or ask.count > 1 or ask.bursts:
        return ()
    make = GEOMETRIES[geometry]
    needed_mib = total_mib * ask.memory_milli // WHOLE_GPU_MILLI if ask.memory_milli else ask.memory_mib
    covering = [
        p
        for p in make.profiles
        if not p.media and make.memory_mib(p, total_mib) >= needed_mib and make.compute_milli(p) >= ask.compute_milli
    ]
    return tuple(sorted(covering, key=lambda p: (p.memory_slices, p.compute_slices)))


@lru_cache(maxsize=4096)
def serving_bits(geometry: int, ask: GpuAsk, total_mib: int) -> int:
    """The mask of `serving`."""
    return sum(PROFILE_BIT[p.name] for p in serving(geometry, ask, total_mib))


def names_of(bits: int) -> tuple[str, ...]:
    return tuple(name for name in PROFILES if PROFILE_BIT[name] & bits)
