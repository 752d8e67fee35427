"""Creates, finds and destroys MIG instances through NVML. Every call blocks; all raise pynvml.NVMLError."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from services.node_agent.messages import SliceNotReady
from services.node_agent.mig.layout import Own, SeenProfile, Standing, profile_name
from services.node_agent.nvml_calls import UNKNOWN, text
from shared.model.mig import canonical_profile

Ids = tuple[int, int]
"""The ids of GPU instance and compute instance."""


class MigError(SliceNotReady):
    """An instance cannot be made or destroyed. The text says why."""

    code = "mig-not-ready"


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


def stands(handle: Any, own: Own) -> bool:
    """Whether an instance of the agent's exists, whole or not."""
    return any(one.belongs_to(own) for one in standing(handle, profiles(handle)))


def make_gpu_instance(handle: Any, own: Own) -> int:
    """Makes the GPU instance of `own` and returns its id; the one that stands if it is made already.

    Raises MigError if an instance of others has slices of the place; then nothing was made.
    """
    place, offered = own.place, profiles(handle)
    profile = offered.get(place.profile)
    if profile is None:
        raise MigError(f"the driver offers no MIG profile {place.profile} on GPU {place.gpu}")
    there = standing(handle, offered)
    mine = next((one.id for one in there if one.belongs_to(own)), None)
    if mine is not None:
        return mine
    slices = pynvml.c_nvmlGpuInstancePlacement_t(start=place.start, size=_size(handle, profile))
    try:
        gi = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(slices))
    except pynvml.NVMLError_InsufficientResources as error:
        names = ", ".join(f"{one.profile or 'an unknown one'} at {one.start}" for one in there)
        raise MigError(
            f"MIG instance {place.profile} at slice {place.start} of GPU {place.gpu} cannot be made beside "
            f"{names or 'what the driver reports'}"
        ) from error
    return int(pynvml.nvmlGpuInstanceGetInfo(gi).id)


def fill(handle: Any, own: Own) -> Ids:
    """Returns the ids of an instance with one compute instance that fills it, which is made if there is none."""
    gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, own.id)
    number, wanted = _filling(gi, profiles(handle)[own.place.profile].compute_slices)
    fills, others = _compute_instances(gi, lambda seen: seen == wanted)
    for other in others:
        pynvml.nvmlComputeInstanceDestroy(other)
    ci = fills[0] if fills else pynvml.nvmlGpuInstanceCreateComputeInstance(gi, number)
    return int(pynvml.nvmlGpuInstanceGetInfo(gi).id), int(pynvml.nvmlComputeInstanceGetInfo_v2(ci).id)


def destroy(handle: Any, own: Own) -> None:
    """Destroys an instance of the agent's; does nothing if it does not stand.

    Raises MigError if processes use it: nothing is destroyed then.
    """
    place, offered = own.place, profiles(handle)
    profile = offered.get(place.profile)
    for gi in () if profile is None else _gpu_instances(handle, profile):
        seen = _standing(gi, place.profile)
        if not seen.belongs_to(own):
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
    empty = not _compute_instances(gi, lambda _: True)[0]
    return Standing(id=info.id, profile=known, start=info.placement.start, size=info.placement.size, empty=empty)


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
