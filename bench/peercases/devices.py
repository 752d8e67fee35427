"""Nodes, requests and quotas as HAMi's and Volcano's cases have them, in Kerf's words."""

from __future__ import annotations

from typing import Any

from bench.peercases.cluster import CaseCluster, plain_gpu
from services.admission.dialects import vgpu
from services.admission.dialects.selection import selection
from services.placement.scheduling.quota import over_quota
from shared.book.accepts import mismatch
from shared.book.demand import effective
from shared.model import names
from shared.model.gpu import Gpu
from shared.model.grant import GpuShare
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Container, Pod, PodSpec, ResourceQuota, Resources
from shared.model.request_reader import read_request

Case = dict[str, Any]

POD = "pod"
NAMESPACE = "cases"
_ROOMY: Quantities = {"cpu": "1000", "memory": "10000Gi", "pods": "1000"}
_NVIDIA = "NVIDIA"
LEAST_MIB = 1
"""Of a request without any memory, which Kerf does not have."""


def add_node(cluster: CaseCluster, name: str, devices: list[Case], *, health: bool = True) -> None:
    """The devices in use are used by a pod each. `health` False: the cases' word on health means nothing."""
    gpus = []
    for index, device in enumerate(devices):
        state = "unhealthy" if health and not device["healthy"] else "healthy"
        gpus.append(
            plain_gpu(
                name,
                index,
                device["memory_total_mib"],
                uuid=_uuid(name, device, index),
                model=device["model"].replace(" ", "-"),
                state=state,
            )
        )
    cluster.add_node(name, tuple(gpus), allocatable=_ROOMY, labels={})
    for gpu, device in zip(gpus, devices, strict=True):
        if device["slots_used"] or device["memory_used_mib"] or device["cores_used_percent"]:
            compute = device["cores_used_percent"] * 1000 // device["cores_total_percent"]
            share = GpuShare(node=name, uuid=gpu.uuid, memory_mib=device["memory_used_mib"], compute_milli=compute)
            cluster.add_pod(f"on-{gpu.uuid}".lower(), {}, node=name, shares=(share,))


def _uuid(node: str, device: Case, index: int) -> str:
    return device["uuid"] or f"{node}-{index}"


def add_request(
    cluster: CaseCluster, request: Case, annotations: dict[str, str], *, beside: list[tuple[Case, bool]] | None = None
) -> None:
    """`beside`: the requests of further containers, each an init container or not."""
    notes = selection({"metadata": {"annotations": annotations}})
    if request.get("vendor", _NVIDIA) != _NVIDIA:
        notes[names.ANNOTATION_GPU_MODEL] = request["vendor"]
    more = [(f"c{place}", limits_of(other), init) for place, (other, init) in enumerate(beside or ())]
    cluster.add_pod(
        POD,
        limits_of(request),
        annotations=notes,
        beside={name: limits for name, limits, init in more if not init},
        inits={name: limits for name, limits, init in more if init},
    )


def ask_of(request: Case) -> vgpu.PerGpu:
    """A case's request of each GPU, as the dialects read it from a container."""
    memory_mib, percent = request["memory_mib"] or 0, request["memory_percent"] or 0
    return vgpu.PerGpu(
        count=request["gpus"],
        memory_mib=memory_mib if memory_mib or percent else LEAST_MIB,
        percent=0 if memory_mib else percent,
        cores=request["cores_percent"] or 0,
    )


def limits_of(request: Case) -> Quantities:
    """A container's limits in Kerf's resources."""
    return dict(vgpu.canonical(ask_of(request)))


def given(cluster: CaseCluster) -> set[tuple[str, int, int]]:
    """What the pod got: (uuid, memory_mib, compute in percent) of each GPU."""
    grant = cluster.bound[POD][1]
    return {
        (s.uuid, s.memory_mib, s.compute_milli // 10)
        for c in (grant.containers.values() if grant else ())
        for s in c.gpus
    }


def exceeds(quota: Case, namespace: str, containers: list[tuple[Case, bool]], factor: int) -> bool:
    """Whether containers, each with memory_mib and cores_percent in all, init or not, would exceed a namespace's quota
    of GPU memory and cores. Memory in a quota is counted in units of `factor` MiB."""
    hard: dict[str, Any] = {}
    used: dict[str, Any] = {}
    for resource, entry in (quota.get(namespace) or {}).items():
        memory = "mem" in resource
        if entry["limit"] is None or not (memory or "core" in resource):
            continue
        key = f"requests.{names.RESOURCE_GPU_MEMORY if memory else names.RESOURCE_GPU_COMPUTE}"
        hard[key] = f"{entry['limit'] * max(1, factor)}Mi" if memory else str(entry["limit"])
        used[key] = f"{entry['used']}Mi" if memory else str(entry["used"])
    made = ResourceQuota(metadata=Meta(name="quota", namespace=namespace), spec={"hard": hard}, status={"used": used})
    told: dict[bool, list[Container]] = {False: [], True: []}
    for number, (amounts, init) in enumerate(containers):
        limits: Quantities = {
            names.RESOURCE_GPU_MEMORY: f"{amounts['memory_mib']}Mi",
            names.RESOURCE_GPU_COMPUTE: str(amounts["cores_percent"]),
        }
        told[init].append(Container(name=f"c{number}", resources=Resources(limits=limits)))
    pod = Pod(
        metadata=Meta(name=POD, namespace=namespace),
        spec=PodSpec(containers=tuple(told[False]), init_containers=tuple(told[True])),
    )
    return over_quota(pod, (made,)) is not None


def gpu_of(uuid: str) -> Gpu:
    return plain_gpu("node", 0, 1024, uuid=uuid)


def accepts_model(annotations: dict[str, str], model: str) -> bool:
    """Whether a pod with these annotations of HAMi's or Volcano's accepts a GPU of this model."""
    notes = selection({"metadata": {"annotations": annotations}})
    container = Container(name="c", resources=Resources(limits={names.RESOURCE_GPU: "1"}))
    request = read_request(Pod(metadata=Meta(annotations=notes), spec=PodSpec(containers=(container,))))
    gpu = plain_gpu("node", 0, 1024, uuid="GPU-1", model=model.replace(" ", "-"))
    return request is not None and mismatch(request, gpu) is None


def effective_of(uses: list[tuple[Case, bool]]) -> tuple[int, int]:
    """What a pod's containers, init or not, use of one GPU together: memory_mib and percent of compute."""
    made: dict[bool, list[Container]] = {False: [], True: []}
    for number, (device, init) in enumerate(uses):
        limits: Quantities = {"memory_mib": device["memory_mib"], "cores_percent": device["cores_percent"]}
        made[init].append(Container(name=f"c{number}", resources=Resources(limits=limits)))
    spec = PodSpec(containers=tuple(made[False]), init_containers=tuple(made[True]))
    used = effective(Pod(metadata=Meta(name=POD), spec=spec), lambda _, limits: {n: int(v) for n, v in limits.items()})
    return used.get("memory_mib", 0), used.get("cores_percent", 0)
