"""Creates, finds and destroys MIG instances through NVML. Every call blocks; all raise pynvml.NVMLError."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from services.node_agent.mig.layout import Place, SeenProfile, Standing, profile_name
from services.node_agent.nvml_calls import UNKNOWN, text
from shared.model.mig import canonical_profile

Ids = tuple[int, int]
"""The ids of GPU instance and compute instance."""


class MigError(OSError):
    """An instance cannot be made or destroyed. The text says why."""


def profiles(handle: Any) -> dict[str, SeenProfile]:
    """The profiles that the driver offers on this GPU, by name."""
    found: dict[str, SeenProfile] = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV(handle, number)
        except UNKNOWN:
            continue  # not on this GPU
        name = profile_name(text(info.name))
        found[name] = SeenProfile(
            name=name,
            id=info.id,
            compute_slices=info.sliceCount,
            memory_mib=info.memorySizeMB,
            starts=_starts(handle, info.id),
            most=info.instanceCount,
        )
    return found


def standing(handle: Any, offered: dict[str, SeenProfile]) -> tuple[Standing, ...]:
    """All GPU instances, with and without compute instances."""
    return tuple(_standing(gi, profile.name) for profile in offered.values() for gi in _gpu_instances(handle, profile))


def stands(handle: Any, place: Place) -> bool:
    """Whether there is an instance at this place, whole or not."""
    return any(one.at(place) for one in standing(handle, profiles(handle)))


def make(handle: Any, place: Place) -> Ids:
    """Makes an instance with one compute instance that fills it, and returns its ids.

    Idempotent: what exists of it, after a failure or a crash, is completed. Raises MigError if another instance has
    slices of the place.
    """
    offered = profiles(handle)
    profile = offered.get(place.profile)
    if profile is None:
        raise MigError(f"the driver offers no MIG profile {place.profile} on GPU {place.gpu}")
    gi = next((gi for gi in _gpu_instances(handle, profile) if _standing(gi, place.profile).at(place)), None)
    if gi is None:
        slices = pynvml.c_nvmlGpuInstancePlacement_t(start=place.start, size=_size(handle, profile))
        try:
            gi = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(slices))
        except pynvml.NVMLError_InsufficientResources as error:
            there = ", ".join(f"{one.profile or 'an unknown one'} at {one.start}" for one in standing(handle, offered))
            raise MigError(
                f"MIG instance {place.profile} at slice {place.start} of GPU {place.gpu} cannot be made beside "
                f"{there or 'what the driver reports'}"
            ) from error
    number, wanted = _filling(gi, profile.compute_slices)
    fills, others = _compute_instances(gi, lambda seen: seen == wanted)
    for other in others:
        pynvml.nvmlComputeInstanceDestroy(other)
    ci = fills[0] if fills else pynvml.nvmlGpuInstanceCreateComputeInstance(gi, number)
    return pynvml.nvmlGpuInstanceGetInfo(gi).id, pynvml.nvmlComputeInstanceGetInfo_v2(ci).id


def destroy(handle: Any, place: Place) -> None:
    """Destroys an instance; does nothing if there is none at this place.

    Raises MigError if processes use it: nothing is destroyed then.
    """
    offered = profiles(handle)
    profile = offered.get(place.profile)
    if profile is None:
        return
    for gi in _gpu_instances(handle, profile):
        seen = _standing(gi, place.profile)
        if not seen.at(place):
            continue
        users = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.gpuInstanceId == seen.id]
        if users:
            raise MigError(
                f"MIG instance {place.profile} at slice {place.start} of GPU {place.gpu} is used by process "
                f"{', '.join(str(pid) for pid in users)}"
            )
        for ci in _compute_instances(gi, lambda _: True)[0]:
            pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)


def _starts(handle: Any, profile_id: int) -> tuple[int, ...]:
    return tuple(sorted(placement.start for placement in _placements(handle, profile_id)))


def _size(handle: Any, profile: SeenProfile) -> int:
    """The memory slices of an instance."""
    return next(int(placement.size) for placement in _placements(handle, profile.id))


def _placements(handle: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
    return list(room)[: count.value]


def _gpu_instances(handle: Any, profile: SeenProfile) -> list[Any]:
    room = (pynvml.c_nvmlGpuInstance_t * max(1, profile.most))()
    count = ctypes.c_uint(len(room))
    pynvml.nvmlDeviceGetGpuInstances(handle, profile.id, room, ctypes.byref(count))
    return list(room)[: count.value]


def _standing(gi: Any, name: str) -> Standing:
    info = pynvml.nvmlGpuInstanceGetInfo(gi)
    known = name if canonical_profile(name.replace("+", ".")) else ""
    return Standing(id=info.id, profile=known, start=info.placement.start, size=info.placement.size)


def _filling(gi: Any, slices: int) -> tuple[int, int]:
    """The compute instance profile that fills a GPU instance: (its id for creation, its slices)."""
    for _, info in _compute_profiles(gi):
        if info.sliceCount == slices:
            return int(info.id), int(info.sliceCount)
    raise MigError(f"the driver offers no compute instance of {slices} slices")


def _compute_profiles(gi: Any) -> list[tuple[int, Any]]:
    found = []
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            found.append((number, pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, number, 0)))
        except UNKNOWN:
            continue  # not in this instance
    return found


def _compute_instances(gi: Any, chosen: Callable[[int], bool]) -> tuple[list[Any], list[Any]]:
    """The compute instances of a GPU instance, apart by their slices: those that are chosen, and the others."""
    yes: list[Any] = []
    no: list[Any] = []
    for _, info in _compute_profiles(gi):
        room = (pynvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        count = ctypes.c_uint(len(room))
        pynvml.nvmlGpuInstanceGetComputeInstances(gi, info.id, room, ctypes.byref(count))
        (yes if chosen(info.sliceCount) else no).extend(list(room)[: count.value])
    return yes, no
