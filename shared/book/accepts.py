"""Which GPUs a pod accepts: model, generation, capability, memory, and GPUs that it names or excludes by UUID."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

import msgspec

from shared.contracts.explain import Reason
from shared.model.generations import capability_tenths, generation_of
from shared.model.gpu import Gpu, Inventory
from shared.model.request import PodRequest
from shared.model.units import format_mib


def has_gpu_constraints(request: PodRequest) -> bool:
    """Whether it would not take just any GPU."""
    return bool(
        request.models
        or request.models_not
        or request.generations
        or request.capability_min
        or request.memory_min_mib
        or request.uuids
        or request.uuids_not
    )


class GpuConstraints(msgspec.Struct, frozen=True):
    """The GPU constraints of a request, in the request's own words."""

    models: tuple[str, ...]
    models_not: tuple[str, ...]
    generations: tuple[str, ...]
    capability_min: int
    memory_min_mib: int
    uuids: tuple[str, ...]
    uuids_not: tuple[str, ...]


def gpu_constraints(request: PodRequest | None) -> GpuConstraints | None:
    """None where it takes any GPU."""
    if request is None or not has_gpu_constraints(request):
        return None
    return GpuConstraints(
        models=request.models,
        models_not=request.models_not,
        generations=request.generations,
        capability_min=request.capability_min,
        memory_min_mib=request.memory_min_mib,
        uuids=request.uuids,
        uuids_not=request.uuids_not,
    )


def accepted(request: PodRequest, inventory: Inventory) -> frozenset[str]:
    """The UUIDs of a node's GPUs that it would take, were they free."""
    if not has_gpu_constraints(request):
        return frozenset(gpu.uuid for gpu in inventory.gpus)
    return frozenset(gpu.uuid for gpu in inventory.gpus if mismatch(request, gpu) is None)


def why_none(request: PodRequest, inventory: Inventory) -> Reason:
    """What keeps a pod from all of a node's GPUs: of several reasons the one that most of them have."""
    reasons = Counter(reason for gpu in inventory.gpus if (reason := mismatch(request, gpu)) is not None)
    return reasons.most_common(1)[0][0]


def mismatch(request: PodRequest | GpuConstraints, gpu: Gpu) -> Reason | None:
    """Why a pod would not take this GPU even if it were empty."""
    if not model_matches(gpu.model, request.models):
        return Reason(
            code="gpu-model",
            sentence=f"the node has {gpu.model}, the pod accepts {' or '.join(request.models)}",
            helps=f"add {gpu.model} to kerf.dev/gpu-model",
        )
    if request.models_not and model_matches(gpu.model, request.models_not):
        return Reason(
            code="gpu-model-not",
            sentence=f"the node has {gpu.model}, the pod excludes {' and '.join(request.models_not)}",
            helps="shorten kerf.dev/gpu-model-not",
        )
    generation = generation_of(gpu.compute_capability)
    if request.generations and generation not in request.generations:
        has = f"{generation} GPUs" if generation else f"{gpu.model} of an unknown generation"
        return Reason(
            code="gpu-generation",
            sentence=f"the node has {has}, the pod accepts {' or '.join(request.generations)}",
            helps=f"add {generation} to kerf.dev/gpu-generation" if generation else "drop kerf.dev/gpu-generation",
        )
    if (capability_tenths(gpu.compute_capability) or 0) < request.capability_min:
        has = (
            f"compute capability {gpu.compute_capability}"
            if gpu.compute_capability
            else "an unknown compute capability"
        )
        helps = (
            f"lower kerf.dev/gpu-capability-min to {gpu.compute_capability}"
            if gpu.compute_capability
            else "drop kerf.dev/gpu-capability-min"
        )
        return Reason(
            code="gpu-capability",
            sentence=f"the node's GPUs have {has}, the pod needs {request.capability_min / 10:.1f} or more",
            helps=helps,
        )
    if gpu.memory_mib < request.memory_min_mib:
        return Reason(
            code="gpu-memory-min",
            sentence=f"the pod wants GPUs of at least {format_mib(request.memory_min_mib)}, the node's have "
            f"{format_mib(gpu.memory_mib)}",
            helps=f"lower kerf.dev/gpu-memory-min to {gpu.memory_mib}Mi",
            lacking=request.memory_min_mib - gpu.memory_mib,
        )
    if request.uuids and gpu.uuid not in request.uuids:
        return Reason(
            code="gpu-uuid", sentence="the pod names other GPUs by their UUIDs", helps="drop kerf.dev/gpu-uuid"
        )
    if gpu.uuid in request.uuids_not:
        return Reason(
            code="gpu-uuid-not",
            sentence="the pod excludes these GPUs by their UUIDs",
            helps="drop kerf.dev/gpu-uuid-not",
        )
    return None


@lru_cache(maxsize=4096)
def model_matches(model: str, wanted: tuple[str, ...]) -> bool:
    """Whether a GPU model is one of those requested: whole words of its name, ignoring case, so that A10 is not an
    A100. None requested: any."""
    return not wanted or any(
        re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", model, re.IGNORECASE) for name in wanted
    )
