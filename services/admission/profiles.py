"""Profiles of namespaces: in `debug` pods share GPUs, in `train` they have whole ones.

A profile fills in what a pod leaves open, and refuses what contradicts it. It never changes an amount that a pod names.
The API server's policies `kerf-amounts` and `kerf-profile` have the same in CEL.
"""

from __future__ import annotations

from typing import Literal

from services.admission.dialects.base import Json, amounts, containers, nonzero
from shared.model import names
from shared.model.kube_object import Quantities
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.model.request_amounts import MAX_GPUS
from shared.model.request_reader import read_ask
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, quantity

Profile = Literal["", "debug", "train"]
DEBUG: Profile = "debug"
TRAIN: Profile = "train"


def fill_in(pod: Json, memory_percent: int) -> tuple[Json, str]:
    """Gives each container that names whole GPUs and no amount `memory_percent` of each one's memory.

    Returns the pod, and what was filled in (empty: nothing). A pod that asks for `hard` isolation stays as it is:
    `check` refuses it, because a part would not give it what it asks for.
    """
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if annotations.get(names.ANNOTATION_ISOLATION) == "hard":
        return pod, ""
    new = {field: list(pod["spec"][field]) for field in ("containers", "initContainers") if pod["spec"].get(field)}
    filled: list[str] = []
    for (field, index), container in containers(pod):
        count = _count_alone(amounts(container)["limits"])
        if not count:
            continue
        value = str(memory_percent * count)
        resources = dict(container["resources"])
        for half, values in amounts(container).items():
            if values or half == "limits":
                resources[half] = values | {names.RESOURCE_GPU_MEMORY_PERCENT: value}
        new[field][index] = container | {"resources": resources}
        filled.append(f"{container.get('name', '')} {names.RESOURCE_GPU_MEMORY_PERCENT}={value}")
    if not filled:
        return pod, ""
    note = f"{DEBUG}: {', '.join(filled)}"
    metadata = metadata | {"annotations": annotations | {names.ANNOTATION_PROFILE: note}}
    return pod | {"metadata": metadata, "spec": pod["spec"] | new}, note


def _count_alone(limits: Quantities) -> int:
    """The number of GPUs of a container that names nothing else of them; 0 if it names more, or no valid number."""
    if any(
        nonzero(value) for name, value in limits.items() if names.is_gpu_resource(name) and name != names.RESOURCE_GPU
    ):
        return 0
    try:
        count = quantity(str(limits.get(names.RESOURCE_GPU, 0)))
    except QuantityError:
        return 0
    return int(count) if count.denominator == 1 and 0 < count <= MAX_GPUS else 0


def warnings(namespace: str, filled: str) -> tuple[str, ...]:
    """What the user is told of what `fill_in` has filled in."""
    return (f"namespace {namespace} has the profile {filled}; whole GPUs are shared there",) if filled else ()


def check(pod: Pod, profile: Profile, namespace: str) -> None:
    """Refuses what contradicts the profile: all of a GPU in `debug`, a part of one in `train`."""
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        ask = read_ask(container)
        if ask is None:
            continue
        where = f"container {container.name!r}"
        if profile == DEBUG and (ask.whole or ask.memory_milli >= WHOLE_GPU_MILLI):
            raise RequestError(
                "profile-debug",
                f"{where} asks for all of a GPU, and namespace {namespace} has the profile debug, where pods share "
                "them; ask for less, or for kerf.dev/gpu alone without isolation hard, or use another namespace",
            )
        if profile == TRAIN and not ask.whole:
            raise RequestError(
                "profile-train",
                f"{where} asks for a part of a GPU, and namespace {namespace} has the profile train, where pods have "
                "whole GPUs; set kerf.dev/gpu alone, or use another namespace",
            )
