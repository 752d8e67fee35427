"""What NVML says of a GPU's MIG profiles and instances, compared with what placement assumes of such GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from shared.model.gpu import Gpu
from shared.model.grant import GpuShare
from shared.model.mig import GEOMETRIES, MigInstance, canonical_profile, geometry_of, mask_at

_NAME = re.compile(r"(?:^|\s)([0-9]+g\.[0-9]+gb(?:\+me)?)$")


class Place(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A place for one instance: memory slices of one GPU, from `start` on as many as the profile has."""

    gpu: str
    """The GPU's UUID."""
    profile: str
    start: int


def place_of(share: GpuShare) -> Place | None:
    """The place of a share's instance; None if the share is no instance."""
    mig = share.mig
    return None if mig is None else Place(gpu=share.uuid, profile=mig.profile, start=mig.start)


class Own(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, order=True):
    """An instance of the agent's: one that it makes, has made, or has made half."""

    place: Place
    holder: str = ""
    """The UID of the pod for which it was made. Another pod gets another instance, in the same place too."""
    id: int | None = None
    """The driver's id of the GPU instance; None until it is known to be made."""


class SeenProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile as the driver offers it on one GPU."""

    name: str
    """As in `model.mig`; the driver's own name where Kerf does not know the profile."""
    id: int
    """For NVML's calls that create instances."""
    compute_slices: int
    memory_mib: int
    starts: tuple[int, ...]
    """The memory slices at which the driver would place one on an empty GPU."""
    most: int
    """How many of them a GPU can have."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that exists. `profile` is empty if Kerf does not know the profile."""

    id: int
    profile: str
    start: int
    size: int
    """Its memory slices."""
    empty: bool = False
    """It has no compute instance."""

    def at(self, place: Place) -> bool:
        return self.start == place.start and self.profile == place.profile

    def belongs_to(self, own: Own) -> bool:
        """Whether it is this instance of the agent's. One whose id the agent has not noted yet has no compute instance:
        the id is noted before that is made."""
        return self.at(own.place) and (self.empty if own.id is None else self.id == own.id)


def profile_name(name: str) -> str:
    """The profile in a name of the driver's, such as "MIG 1g.10gb+me"; the name itself where there is none."""
    found = _NAME.search(name)
    return (canonical_profile(found[1].replace("+", ".")) if found else None) or name


def problem(gpu: Gpu, seen: Mapping[str, SeenProfile]) -> str:
    """Why placement must not plan instances for this GPU, as a sentence; empty if the driver offers all that it plans.

    Placement decides by a table of published geometries. A GPU on which the driver would refuse one of its decisions
    offers nothing.
    """
    geometry = geometry_of(gpu.model, gpu.memory_mib)
    if geometry is None:
        return f"the MIG profiles of a {gpu.model} with {gpu.memory_mib} MiB are not known to Kerf"
    make = GEOMETRIES[geometry]
    for profile in make.profiles:
        offered = seen.get(profile.name)
        if offered is None:
            return f"its driver offers no profile {profile.name}; a newer driver may"
        if not set(profile.starts) <= set(offered.starts):
            return f"its driver places {profile.name} at {_list(offered.starts)}, and Kerf at {_list(profile.starts)}"
        if offered.memory_mib < make.memory_mib(profile, gpu.memory_mib):
            least_mib = make.memory_mib(profile, gpu.memory_mib)
            return f"its {profile.name} has {offered.memory_mib} MiB, and Kerf expects {least_mib} MiB"
        if offered.compute_slices != profile.compute_slices:
            return f"its {profile.name} has {offered.compute_slices} compute slices, not {profile.compute_slices}"
    return ""


def foreign(gpu: str, standing: Iterable[Standing], own: Iterable[Own]) -> tuple[MigInstance, ...] | None:
    """The instances that are not the agent's, which take their slices from it. None if one of them is of a profile that
    Kerf does not know: then nobody can say what is free."""
    mine = [one for one in own if one.place.gpu == gpu]
    others = [one for one in standing if not any(one.belongs_to(each) for each in mine)]
    if any(not one.profile for one in others):
        return None
    found = (MigInstance(profile=one.profile, start=one.start) for one in others)
    return tuple(sorted(found, key=lambda instance: instance.start))


def trial_place(gpu: Gpu, standing: Iterable[Standing]) -> Place | None:
    """Where the smallest instance fits beside all that exist; None if nowhere."""
    geometry = geometry_of(gpu.model, gpu.memory_mib)
    if geometry is None:
        return None
    used = 0
    for one in standing:
        used |= ((1 << one.size) - 1) << one.start
    smallest = GEOMETRIES[geometry].profiles[0]
    start = next((start for start in smallest.starts if not mask_at(smallest, start) & used), None)
    return None if start is None else Place(gpu=gpu.uuid, profile=smallest.name, start=start)


def _list(starts: Iterable[int]) -> str:
    return ", ".join(str(start) for start in sorted(starts)) or "no slice"
