"""What a dialect is: a way in which pods elsewhere request a share of a GPU, and its translation into canonical
form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from shared.model.kube_object import Quantities
from shared.model.request import RequestError
from shared.model.units import QuantityError, quantity

Json = dict[str, Any]
Place = tuple[str, int]
"""A container by its list ("containers" or "initContainers") and its index there."""

CONTAINER_LISTS = ("containers", "initContainers")
DEFAULT_SCHEDULERS = ("", "default-scheduler")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation decides about foreign dialects."""

    plain_nvidia: bool = False
    """Whether nvidia.com/gpu is Kerf's in this pod's namespace. Only where no enrolled node runs NVIDIA's plugin."""
    gpushare_unit: Literal["GiB", "MiB"] = "GiB"
    """What one aliyun.com/gpu-mem is."""


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign request in canonical form. Amounts are exactly those that the pod named."""

    amounts: dict[Place, dict[str, str]]
    """Kerf's resources with their quantities, for each container that uses GPUs."""
    removed: frozenset[str]
    """The foreign resources, taken out of limits and requests."""
    annotations: dict[str, str] = {}
    """Written where the pod does not say otherwise."""


@runtime_checkable
class Dialect(Protocol):
    """One file each; registered by one line in `__init__.py`."""

    @property
    def name(self) -> str: ...

    @property
    def resources(self) -> frozenset[str]:
        """The extended resources by which a pod is known to speak this dialect."""

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The scheduler names under which its pods run elsewhere, beside the default one."""

    def speaks(self, named: set[str], setting: Setting) -> bool:
        """Whether a pod that names these resources, in amounts above zero, is to be read in this dialect."""

    def translate(self, pod: Json, setting: Setting) -> Translation:
        """Raises RequestError where the request makes no sense in the dialect itself."""


def containers(pod: Json) -> Iterator[tuple[Place, Json]]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate((pod.get("spec") or {}).get(field) or ()):
            yield (field, index), container


def named_resources(pod: Json) -> set[str]:
    """Every resource that a container of the pod names in an amount other than zero."""
    return {
        name
        for _, container in containers(pod)
        for half in amounts(container).values()
        for name, value in half.items()
        if nonzero(value)
    }


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


def amount(container: Json, resource: str) -> int:
    """A foreign resource's whole number, from limits or, failing that, from requests; 0 where it is not named.

    Raises RequestError (not-a-quantity, foreign-fraction, negative) on anything else.
    """
    halves = amounts(container)
    value = halves["limits"].get(resource, halves["requests"].get(resource, 0))
    where = f"container {container.get('name', '')!r}"
    try:
        exact = quantity(str(value))
    except QuantityError as error:
        raise RequestError("not-a-quantity", f"{where}: {resource}: {error}") from None
    if exact.denominator != 1:
        raise RequestError("foreign-fraction", f"{where}: {resource} is {value}; extended resources are whole numbers")
    if exact < 0:
        raise RequestError("negative", f"{where}: {resource} is {value}; it cannot be negative")
    return int(exact)
