"""What a dialect is: a way in which pods elsewhere request a share of a GPU, and its translation into canonical
form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from shared.model.kube_object import Quantities
from shared.model.request import RequestError
from shared.model.units import QuantityError, quantity

Json = dict[str, Any]
Place = tuple[str, int]
"""A container by its list ("containers" or "initContainers") and its index there."""

CONTAINER_LISTS = ("containers", "initContainers")
DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_SCHEDULERS = ("", DEFAULT_SCHEDULER)


class Vgpu(msgspec.Struct, frozen=True, kw_only=True):
    """An installation's settings of HAMi or of Volcano's vGPUs: what a pod alone does not say."""

    memory_factor: int = 1
    """MiB in one unit of memory (HAMi's memoryFactor, the device plugin's --gpu-memory-factor)."""
    default_gpus: int = 1
    """GPUs of a container that names memory or cores alone (defaultGPUNum)."""
    default_memory_mib: int = 0
    """Memory on each GPU of a container that names none (defaultMem); 0: all of it."""
    default_cores: int = 0
    """Percent of each GPU's compute of a container that names none (defaultCores)."""
    high_priority_class: str = ""
    """The PriorityClass of pods with nvidia.com/priority 0; empty: they name one themselves, or are refused."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation decides about foreign dialects."""

    plain_nvidia: bool = False
    """Whether nvidia.com/gpu is Kerf's in this pod's namespace. Only where no enrolled node runs NVIDIA's plugin."""
    gpushare_unit: Literal["GiB", "MiB"] = "GiB"
    """What one aliyun.com/gpu-mem is."""
    default_priority_class: str = ""
    """The cluster's PriorityClass with globalDefault, which the API server has written into pods that name none."""
    hami: Vgpu = Vgpu()
    volcano: Vgpu = Vgpu()
    taken_over: bool = False
    """Whether the pod names a scheduler all of whose pods Kerf takes over, those without GPUs too."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What of a pod tells which dialect it speaks."""

    named: frozenset[str]
    """The resources that its containers name in amounts above zero."""
    written: frozenset[str] = frozenset()
    """Those, and the ones in amounts of zero."""
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    scheduler: str = ""


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign request in canonical form. Amounts are exactly those that the pod named."""

    amounts: dict[Place, dict[str, str]]
    """Kerf's resources with their quantities, for each container that uses GPUs."""
    removed: frozenset[str]
    """The foreign resources, taken out of limits and requests."""
    annotations: dict[str, str] = {}
    """Written where the pod does not say otherwise."""
    labels: dict[str, str] = {}
    """Likewise."""
    priority_class: str = ""
    """The pod's PriorityClass; empty: the one that it has."""


@runtime_checkable
class Dialect(Protocol):
    """One file each; registered by one line in `__init__.py`."""

    @property
    def name(self) -> str: ...

    @property
    def resources(self) -> frozenset[str]:
        """All extended resources that the dialect reads. Another GPU resource beside them is a mixture."""

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The scheduler names under which its pods run elsewhere, beside the default one."""

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        """Whether such a pod is to be read in this dialect. Of several dialects the first of the list reads it."""

    def translate(self, pod: Json, setting: Setting) -> Translation:
        """Raises RequestError where the request makes no sense in the dialect itself."""


def own_priority_class(pod: Json, setting: Setting) -> str:
    """The PriorityClass that the pod names itself; empty: none."""
    named = str((pod.get("spec") or {}).get("priorityClassName") or "")
    return "" if named == setting.default_priority_class else named


def containers(pod: Json) -> Iterator[tuple[Place, Json]]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate((pod.get("spec") or {}).get(field) or ()):
            yield (field, index), container


def manifest_of(pod: Json) -> Manifest:
    metadata = pod.get("metadata") or {}
    return Manifest(
        named=frozenset(named_resources(pod)),
        written=frozenset(name for _, container in containers(pod) for name in written_resources(container)),
        annotations=metadata.get("annotations") or {},
        labels=metadata.get("labels") or {},
        scheduler=(pod.get("spec") or {}).get("schedulerName") or "",
    )


def named_resources(pod: Json) -> set[str]:
    """Every resource that a container of the pod names in an amount other than zero."""
    return {
        name
        for _, container in containers(pod)
        for half in amounts(container).values()
        for name, value in half.items()
        if nonzero(value)
    }


def written_resources(container: Json) -> set[str]:
    """Every resource that a container names, in whatever amount."""
    return {name for half in amounts(container).values() for name in half}


def nonzero(value: object) -> bool:
    """Whether a quantity is anything but zero; an invalid quantity counts, so that it is refused later."""
    text = str(value)
    if text[:1] in "123456789":
        return True
    try:
        return text != "0" and quantity(text) != 0
    except QuantityError:
        return True


def amounts(container: Json) -> dict[str, Quantities]:
    resources = container.get("resources") or {}
    return {half: resources.get(half) or {} for half in ("limits", "requests")}


def written(container: Json, resource: str) -> str | int:
    """A resource's quantity as it is written, in limits or, failing that, in requests; 0 where it is not named."""
    halves = amounts(container)
    return halves["limits"].get(resource, halves["requests"].get(resource, 0))


def where_of(container: Json) -> str:
    return f"container {container.get('name', '')!r}"


def refuse_annotations(pod: Json, refused: Mapping[str, str]) -> None:
    """Refuses a pod with one of these annotations (foreign-field); the text beside it says what to write instead."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    for key, instead in refused.items():
        if key in annotations:
            raise RequestError("foreign-field", f"annotation {key} has no meaning in Kerf; {instead}")


def amount(container: Json, resource: str) -> int:
    """A foreign resource's whole number, from limits or, failing that, from requests; 0 where it is not named.

    Raises RequestError (not-a-quantity, foreign-fraction, negative) on anything else.
    """
    where, value = where_of(container), written(container, resource)
    try:
        exact = quantity(str(value))
    except QuantityError as error:
        raise RequestError("not-a-quantity", f"{where}: {resource}: {error}") from None
    if exact.denominator != 1:
        raise RequestError("foreign-fraction", f"{where}: {resource} is {value}; extended resources are whole numbers")
    if exact < 0:
        raise RequestError("negative", f"{where}: {resource} is {value}; it cannot be negative")
    return int(exact)
