"""What KAI's nodes and running tasks are to Kerf: GPUs, MIG layouts, and which task is on which of them."""

from __future__ import annotations

from typing import Any

from bench.peercases.cluster import plain_gpu
from shared.book.mig import MigRoom
from shared.model.gpu import Gpu
from shared.model.grant import GpuShare
from shared.model.mig import GEOMETRIES, Geometry, MigInstance, canonical_profile
from shared.model.request import GpuAsk

Case = dict[str, Any]

_MODELS = {
    "A100-40GB": ("NVIDIA-A100-SXM4-40GB", 40_960),
    "A100-80GB": ("NVIDIA-A100-SXM4-80GB", 81_920),
    "H100-80GB": ("NVIDIA-H100-80GB-HBM3", 81_559),
    "A30": ("NVIDIA-A30", 24_576),
}
"""Product and memory by geometry."""


def gpus_of(node: Case) -> tuple[Gpu, ...]:
    """A node of the mixed strategy has instances on as few GPUs as they need; its other GPUs are cut on demand. Of the
    single strategy the GPUs are instances of a size that the case does not state: no task gets a part of one."""
    strategy, name = node.get("mig_strategy"), node["name"]
    if strategy == "single":
        return tuple(_mig_gpu(name, i, "A100-40GB", ()) for i in range(node["gpus"]))
    if strategy != "mixed":
        return tuple(plain_gpu(name, i, node["gpu_memory_mib"]) for i in range(node["gpus"]))
    layouts = _layouts(node.get("mig_instances") or {}, name)
    made = [_mig_gpu(name, i, make, instances) for i, (make, instances) in enumerate(layouts)]
    return (
        *made,
        *(_mig_gpu(name, len(made) + i, node.get("gpu_product") or "A100-40GB", None) for i in range(node["gpus"])),
    )


def _mig_gpu(node: str, index: int, make: str, instances: tuple[MigInstance, ...] | None) -> Gpu:
    """`instances` None: cut on demand."""
    model, memory_mib = _MODELS[make]
    return plain_gpu(
        node,
        index,
        memory_mib,
        model=model,
        mig_enabled=True,
        mig_on_demand=instances is None,
        mig_instances=instances or (),
    )


def _layouts(wanted: dict[str, int], node: str) -> list[tuple[str, tuple[MigInstance, ...]]]:
    """Instances by GPU, each on the first model that has its profile, largest first."""
    left = {canonical_profile(name.removeprefix("nvidia.com/mig-")): count for name, count in wanted.items()}
    layouts: list[tuple[str, tuple[MigInstance, ...]]] = []
    for make in _MODELS:
        profiles = sorted(_geometry(make)[1].profiles, key=lambda p: -p.memory_slices)
        asked = [GpuAsk(count=1, profile=p.name) for p in profiles for _ in range(left.pop(p.name, 0))]
        while asked:
            made, asked = _fill(make, asked, f"MIG-{node}-{len(layouts)}")
            layouts.append((make, made))
    if any(left.values()):
        raise ValueError(f"instances of unknown profiles: {wanted}")
    return layouts


def _fill(make: str, asked: list[GpuAsk], uuid: str) -> tuple[tuple[MigInstance, ...], list[GpuAsk]]:
    """One GPU full of instances, and those that found no place on it."""
    place, geometry = _geometry(make)
    room = MigRoom(place, on_demand=True)
    made: list[MigInstance] = []
    rest: list[GpuAsk] = []
    for ask in asked:
        got = room.take(ask, geometry.least_mib)
        if got is None:
            rest.append(ask)
        else:
            made.append(MigInstance(profile=got.profile, start=got.start, uuid=f"{uuid}-{got.start}"))
    return tuple(made), rest


def _geometry(name: str) -> tuple[int, Geometry]:
    return next((place, g) for place, g in enumerate(GEOMETRIES) if g.name == name)


def shares_of(case: Case) -> dict[str, tuple[GpuShare, ...]]:
    """What each running task holds: the GPU that its label stands for, or the first unused one."""
    held: dict[str, tuple[GpuShare, ...]] = {}
    for node in case["nodes"]:
        gpus = gpus_of(node)
        groups: dict[str, Gpu] = {}
        idle = [gpu for gpu in gpus if not gpu.mig_enabled]
        instances = [(gpu, instance) for gpu in gpus for instance in gpu.mig_instances]
        for task in (
            t
            for job in case["jobs"]
            for t in job["tasks"]
            if t.get("node") == node["name"] and t["state"] not in ("failed", "pending")
        ):
            part = task.get("gpu_fraction") or task.get("gpu_memory_mib")
            chosen: list[tuple[Gpu, MigInstance | None]] = []
            if part:
                for label in task.get("gpu_groups") or [
                    f"own {task['name']} {i}" for i in range(task.get("gpu_devices") or 1)
                ]:
                    if label not in groups:
                        groups[label] = idle.pop(0)
                    chosen.append((groups[label], None))
            else:
                chosen += [(idle.pop(0), None) for _ in range(task.get("gpus") or 0)]
            for resource, count in (task.get("mig_instances") or {}).items():
                profile = canonical_profile(resource.removeprefix("nvidia.com/mig-"))
                taken = [pair for pair in instances if pair[1].profile == profile][:count]
                instances = [pair for pair in instances if pair not in taken]
                chosen += taken
            held[task["name"]] = tuple(_share(node["name"], gpu, task, instance) for gpu, instance in chosen)
    return held


def _share(node: str, gpu: Gpu, task: Case, instance: MigInstance | None) -> GpuShare:
    if instance is not None:
        place = _geometry(next(make for make, (model, _) in _MODELS.items() if model == gpu.model))[0]
        memory_mib, compute_milli = MigRoom(place, on_demand=False).size_of(instance, gpu.memory_mib)
    elif task.get("gpu_fraction"):
        compute_milli = round(task["gpu_fraction"] * 100) * 10
        memory_mib = gpu.memory_mib * compute_milli // 1000
    elif task.get("gpu_memory_mib"):
        memory_mib, compute_milli = task["gpu_memory_mib"], 0
    else:
        memory_mib, compute_milli = gpu.memory_mib, 1000
    return GpuShare(node=node, uuid=gpu.uuid, memory_mib=memory_mib, compute_milli=compute_milli, mig=instance)
