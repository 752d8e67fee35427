"""Reads what a pod requests from its canonical form. Admission writes that form; all other services read it here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from shared.model import names
from shared.model.kube_object import Quantities
from shared.model.mig import PROFILES, canonical_profile, nominal
from shared.model.objects import Container, Pod
from shared.model.request import GpuAsk, PodRequest, RequestError
from shared.model.request_amounts import MAX_GPUS, MAX_MEMORY_BYTES, ask_for, read_number
from shared.model.request_annotations import with_annotations
from shared.model.request_bounds import check_containers


def has_gpu_request(pod: Pod) -> bool:
    """Whether the pod or any container of it names a canonical GPU resource, sensible or not."""
    return _pod_level(pod) or any(
        resource in container.resources.limits or resource in container.resources.requests
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for resource in (*names.GPU_RESOURCES, *_mig_resources(container))
    )


def _pod_level(pod: Pod) -> bool:
    whole_pod = pod.spec.resources
    return whole_pod is not None and any(names.is_gpu_resource(r) for r in (*whole_pod.limits, *whole_pod.requests))


def read_request(pod: Pod, claimed: Mapping[str, GpuAsk] = MappingProxyType({})) -> PodRequest | None:
    """The pod's GPU request, or None if it requests no GPU. `claimed`: what its ResourceClaims request. Raises
    RequestError that says what to change."""
    if not has_gpu_request(pod) and not claimed:
        return None
    if _pod_level(pod):
        raise RequestError(
            "pod-level-gpu",
            "GPUs cannot be asked for in pod-level resources; name them in the limits of the container that uses them",
        )
    is_bound = bool(pod.spec.node_name)  # it runs, perhaps since a version that knew no bounds
    if not is_bound:
        check_containers(pod)
    asks = {**claimed, **_asks(pod.spec.containers)}
    inits = _asks(_init_containers(pod))
    if inits and not is_bound and not init_share(pod):
        named = " and ".join(f"init container {name!r}" for name in inits)
        raise RequestError(
            "init-larger-than-app",
            f"no app container covers the GPU requests of {named}; init containers share an app container's slice, so "
            "give one of those at least as much",
        )
    asks |= _asks(c for c in pod.spec.init_containers if _is_sidecar(c))
    if not asks:
        raise RequestError(
            "no-gpu-container",
            "the pod names kerf.dev resources but no container asks for a GPU; set kerf.dev/gpu, "
            "kerf.dev/gpu-memory or kerf.dev/gpu-compute to at least 1",
        )
    return with_annotations(asks, pod.metadata.annotations, is_bound=is_bound)


def read_ask(container: Container) -> GpuAsk | None:
    """One container's request. Raises RequestError on limits that contradict each other."""
    limits, where = container.resources.limits, f"container {container.name!r}"
    mig = _mig_resources(container)
    for resource in (*names.GPU_RESOURCES, *mig):
        requested = container.resources.requests.get(resource)
        if requested is not None and read_number(container.resources.requests, resource, where) != read_number(
            limits, resource, where
        ):
            raise RequestError(
                "request-not-limit",
                f"{where}: {resource} has request {requested} and limit {limits.get(resource, 'none')}; GPU "
                "resources need a limit, and a request equal to it or none",
            )
    if any(read_number(limits, resource, where) for resource in mig):
        return _mig_ask(where, limits, mig)
    count = read_number(limits, names.RESOURCE_GPU, where)
    memory_bytes = read_number(limits, names.RESOURCE_GPU_MEMORY, where)
    percent = read_number(limits, names.RESOURCE_GPU_COMPUTE, where)
    memory_percent = read_number(limits, names.RESOURCE_GPU_MEMORY_PERCENT, where)
    if memory_bytes > MAX_MEMORY_BYTES:
        raise RequestError(
            "memory-too-large",
            f"{where}: kerf.dev/gpu-memory is {limits[names.RESOURCE_GPU_MEMORY]}, more than any machine has; "
            "it is in bytes, written like 16Gi",
        )
    if not count and not memory_bytes and not percent and not memory_percent:
        return None
    return ask_for(
        where,
        count,
        memory_bytes,
        percent,
        memory_percent=memory_percent,
        count_named=names.RESOURCE_GPU in limits,
    )


def _mig_resources(container: Container) -> list[str]:
    resources = container.resources
    return sorted({r for r in (*resources.limits, *resources.requests) if r.startswith(names.PREFIX_MIG)})


def _mig_ask(where: str, limits: Quantities, mig: list[str]) -> GpuAsk:
    asked = [resource for resource in mig if read_number(limits, resource, where)]
    beside = [resource for resource in names.GPU_RESOURCES if read_number(limits, resource, where)]
    if len(asked) + len(beside) > 1:
        raise RequestError(
            "mig-and-more",
            f"{where} asks for {' and '.join(asked + beside)}; one container can have MIG instances of one "
            "profile, and nothing else of GPUs beside them",
        )
    text = asked[0].removeprefix(names.PREFIX_MIG)
    profile = canonical_profile(text)
    if profile is None:
        near = difflib.get_close_matches(text, [name.replace("+", ".") for name in PROFILES], n=1, cutoff=0.6)
        raise RequestError(
            "unknown-mig-profile",
            f"{where}: {asked[0]} names no MIG profile"
            + (f"; did you mean {names.PREFIX_MIG}{near[0]}?" if near else f", such as {names.PREFIX_MIG}1g.10gb"),
        )
    count = read_number(limits, asked[0], where)
    if count > MAX_GPUS:
        raise RequestError(
            "too-many-gpus", f"{where}: {asked[0]} is {count}; one container can have at most {MAX_GPUS} instances"
        )
    memory_mib, compute_milli = nominal(profile)
    return GpuAsk(count=count, memory_mib=memory_mib, compute_milli=compute_milli, profile=profile)


def init_share(pod: Pod) -> str:
    """The app container that shares its slice with the pod's init containers: the largest that covers each of them.
    "" if no init container requests a GPU, or no app container covers all that do.

    A sidecar has its own share, and already runs; devices of a ResourceClaim are for the containers that name it.
    Raises RequestError as `read_ask`.
    """
    inits = _asks(_init_containers(pod)).values()
    if not inits:
        return ""
    apps = _asks(pod.spec.containers)
    covering = [name for name, app in apps.items() if all(app.covers(init) for init in inits)]
    return max(covering, key=lambda name: apps[name].hardness, default="")


def _asks(containers: Iterable[Container]) -> dict[str, GpuAsk]:
    return {container.name: ask for container in containers if (ask := read_ask(container)) is not None}


def _init_containers(pod: Pod) -> list[Container]:
    return [container for container in pod.spec.init_containers if not _is_sidecar(container)]


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"
