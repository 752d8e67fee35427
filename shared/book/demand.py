"""What a pod needs of a node besides GPUs, as kube-scheduler counts it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shared.model import names
from shared.model.kube_object import Quantities
from shared.model.objects import Container, ContainerStatus, Pod, PodSpec, PodStatus
from shared.model.pod_resize import RESIZABLE, is_infeasible
from shared.model.units import milli, whole

MOST = 1 << 48
"""Amounts are cut here (256 TiB, or as many thousandths of a core): sums over a node stay within its arrays' integers.
A negative one counts as none: it would give a node more than it has."""

_PLAIN = ("cpu", "memory", "ephemeral-storage")


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    cpu_milli: int = 0
    memory_bytes: int = 0
    ephemeral_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    """Other resources by name, without Kerf's own GPU resources, which the book counts per GPU."""


def beyond(wanted: Demand, given: Demand) -> Demand:
    """What is left of `wanted` when `given` is taken from it; never negative."""
    had = dict(given.extended)
    rest = ((name, amount - had.get(name, 0)) for name, amount in wanted.extended)
    return Demand(
        cpu_milli=max(0, wanted.cpu_milli - given.cpu_milli),
        memory_bytes=max(0, wanted.memory_bytes - given.memory_bytes),
        ephemeral_bytes=max(0, wanted.ephemeral_bytes - given.ephemeral_bytes),
        extended=tuple((name, amount) for name, amount in rest if amount > 0),
    )


def demand_of(pod: Pod) -> Demand:
    """What the pod needs of its node. Raises QuantityError where a request is no quantity."""
    running = effective(pod, _amounts)
    return Demand(
        cpu_milli=running.get("cpu", 0),
        memory_bytes=running.get("memory", 0),
        ephemeral_bytes=running.get("ephemeral-storage", 0),
        extended=tuple(sorted((name, amount) for name, amount in running.items() if name not in _PLAIN and amount)),
    )


def effective(pod: Pod, amounts: Callable[[Quantities, Quantities], dict[str, int]]) -> dict[str, int]:
    """The pod's effective request, of the resources that `amounts` reads from a container's requests and limits:
    containers and sidecars run together; an ordinary init container runs beside the sidecars that were started before
    it; the larger of the two counts, plus overhead. Pod-level resources, where set, take the place of the sum. (KEP-753
    and KEP-2837; component-helpers' PodRequests.) While a pod is resized the larger of what it asks for and what it has
    counts, and of a resize that is infeasible what it has.

    Raises QuantityError where a request is no quantity.
    """
    infeasible = is_infeasible(pod)
    statuses = {one.name: one for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)}

    def of(asker: Container | PodSpec, status: ContainerStatus | PodStatus | None) -> dict[str, int]:
        asked = {} if asker.resources is None else amounts(asker.resources.requests, asker.resources.limits)
        if status is None or status.resources is None:
            return asked
        has = amounts(status.resources.requests, {})
        _raise_to(has, amounts(status.allocated_resources, {}))
        for name in [name for name in RESIZABLE if name in asked and name in has]:
            asked[name] = has[name] if infeasible else max(asked[name], has[name])
        return asked

    running: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(running, of(container, statuses.get(container.name)))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            _add(sidecars, of(container, statuses.get(container.name)))
            _raise_to(peak, sidecars)
        else:
            together = dict(sidecars)
            _add(together, of(container, None))
            _raise_to(peak, together)
    _add(running, sidecars)
    _raise_to(running, peak)
    running |= of(pod.spec, pod.status)
    if pod.spec.overhead:
        _add(running, amounts(pod.spec.overhead, {}))
    return running


def _amounts(requests: Quantities, limits: Quantities) -> dict[str, int]:
    """Requests; where only a limit is named the API server has already copied it, and we read it the same way."""
    return {
        name: max(0, min(MOST, milli(value) if name == "cpu" else whole(value)))
        for name, value in (limits | requests).items()
        if not names.is_gpu_resource(name) and name != names.RESOURCE_QUOTA
    }


def _add(total: dict[str, int], amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, int], floor: dict[str, int]) -> None:
    for name, amount in floor.items():
        if amount > total.get(name, 0):
            total[name] = amount
