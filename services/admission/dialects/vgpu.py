"""Virtual GPUs as HAMi and Volcano have them: a number of GPUs, and of each its memory and its percent of compute.

Both are read from a container in the same order: limits before requests, an amount of memory before a percentage. No
memory named means all of it (HAMi pkg/device/nvidia/device.go:GenerateResourceRequests, Volcano
pkg/scheduler/api/devices/nvidia/vgpu/utils.go:resourcereqs).
"""

from __future__ import annotations

import msgspec

from services.admission.dialects.base import Json, Vgpu, amount, where_of, written_resources
from shared.model import names
from shared.model.request import RequestError

_ALL = 100
_MOST_MIB = 1 << 24
"""16 TiB on one GPU: more is a quantity in bytes, or one that was written with a unit."""


class Names(msgspec.Struct, frozen=True):
    """The resources of such a dialect."""

    count: str
    memory: str
    percent: str
    cores: str
    alone_with_all_memory: bool = False
    """Whether a container that writes no cores, and of memory nothing or a percentage of 100, is alone on its GPUs."""

    @property
    def all(self) -> frozenset[str]:
        return frozenset((self.count, self.memory, self.percent, self.cores))


class PerGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A container's request of each of its GPUs."""

    count: int
    memory_mib: int = 0
    """0: a percentage, or all of it."""
    percent: int = 0
    """Of the memory; 0: an amount, or all of it."""
    cores: int = 0
    """Percent of the compute; 0: none is reserved."""

    @property
    def whole(self) -> bool:
        """Whether no other pod may be on the GPU: all compute is exclusive there, and so is all memory."""
        return self.cores == _ALL or (not self.memory_mib and self.percent in (0, _ALL) and not self.cores)


def read(container: Json, of: Names, setting: Vgpu) -> PerGpu | None:
    """The container's request; None where it names no GPU. Raises RequestError."""
    where = where_of(container)
    count, memory, percent, cores = (amount(container, name) for name in (of.count, of.memory, of.percent, of.cores))
    if not (count or memory or percent or cores):
        return None
    count = count or setting.default_gpus
    if not count:
        raise RequestError(
            "foreign-amount",
            f"{where}: it names no {of.count}; write how many GPUs, or {names.RESOURCE_GPU_MEMORY} alone",
        )
    memory_mib = memory * setting.memory_factor
    if memory_mib > _MOST_MIB:
        raise RequestError(
            "foreign-unit",
            f"{where}: {of.memory} is {memory}; it is a plain number of {_unit(setting)} on each GPU, written without "
            f"a unit. In bytes it is {names.RESOURCE_GPU_MEMORY}",
        )
    if percent > _ALL:
        raise RequestError(
            "foreign-amount",
            f"{where}: {of.percent} is {percent}; it is the percentage of each GPU's memory, at most {_ALL}. Several "
            f"GPUs are {of.count}; in Kerf's words {names.RESOURCE_GPU_MEMORY_PERCENT}",
        )
    if cores > _ALL:
        raise RequestError(
            "foreign-amount",
            f"{where}: {of.cores} is {cores}; it is the percentage of each GPU's compute, at most {_ALL}. Several GPUs "
            f"are {of.count}; in Kerf's words {names.RESOURCE_GPU_COMPUTE}",
        )
    if of.alone_with_all_memory and _wants_all(container, of, percent):
        return PerGpu(count=count, cores=_ALL)
    if not memory_mib and not percent:
        memory_mib = setting.default_memory_mib
    return PerGpu(
        count=count,
        memory_mib=memory_mib,
        percent=0 if memory_mib else percent or _ALL,
        cores=cores or setting.default_cores,
    )


def _wants_all(container: Json, of: Names, percent: int) -> bool:
    """By what is written, in whatever amount: an amount of 0 is one."""
    written = written_resources(container)
    return of.cores not in written and (percent == _ALL or written.isdisjoint((of.memory, of.percent)))


def canonical(ask: PerGpu) -> dict[str, str]:
    """The request in Kerf's resources, which are a container's totals."""
    gpus = {names.RESOURCE_GPU: str(ask.count)}
    if ask.whole:
        return gpus
    memory = (
        {names.RESOURCE_GPU_MEMORY: f"{ask.memory_mib * ask.count}Mi"}
        if ask.memory_mib
        else {names.RESOURCE_GPU_MEMORY_PERCENT: str((ask.percent or _ALL) * ask.count)}
    )
    return gpus | memory | ({names.RESOURCE_GPU_COMPUTE: str(ask.cores * ask.count)} if ask.cores else {})


def _unit(setting: Vgpu) -> str:
    return "MiB" if setting.memory_factor == 1 else f"{setting.memory_factor} MiB"


def isolation(pod: Json, annotation: str) -> dict[str, str]:
    """Kerf's isolation for the sharing mode that the pod names. hami-core, a library in the container, is what a share
    is anyway; several modes by commas mean any of them. Raises RequestError."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(annotation)
    modes = {part.strip() for part in str(text or "").split(",")} - {""}
    if modes and modes.isdisjoint(("hami-core", "mig")):
        raise RequestError(
            "foreign-field",
            f"annotation {annotation} is {text!r}, which Kerf does not offer; there are hami-core and mig. In Kerf's "
            f"words {names.ANNOTATION_ISOLATION}: firm keeps a share to its limits, hard gives a MIG instance",
        )
    return {names.ANNOTATION_ISOLATION: "hard"} if "mig" in modes and "hami-core" not in modes else {}
