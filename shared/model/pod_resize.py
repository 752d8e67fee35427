"""Kubernetes' own in-place resize: what a container has while that is not what its spec requests.

A growth that does not fit changes the spec alone, and by a shrink that has not been carried out a container has more
than its spec requests. Only CPU and memory can be resized (KEP-1287; those of a whole pod: KEP-5419).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.model.objects import Container, ContainerStatus, Pod, PodStatus, Resources
from shared.model.units import QuantityError, milli, whole

RESIZABLE = ("cpu", "memory")


def is_infeasible(pod: Pod) -> bool:
    """Whether the kubelet says that it can never carry out what the spec requests now."""
    pending = (c.reason for c in pod.status.conditions if c.type == "PodResizePending")
    return next(pending, pod.status.resize) == "Infeasible"


def resizing(pod: Pod) -> tuple[Any, ...]:
    """All of a pod's status that counts for what it needs of its node; empty unless it is being resized."""
    status = pod.status
    if not status.container_statuses and not status.init_container_statuses and status.resources is None:
        return ()
    held = (status.container_statuses, status.init_container_statuses, status.resources, status.allocated_resources)
    return (*held, is_infeasible(pod))


def without_settled(pod: Pod) -> Pod:
    """The pod without the amounts that equal those of its spec. Hardly any are left, so that the feed and the book do
    not grow with what the kubelet repeats of each container."""
    if not resizing(pod):
        return pod
    spec, status = pod.spec, pod.status
    asked = {container.name: container.resources for container in (*spec.containers, *sidecars_of(pod))}
    own = spec.resources is not None and not _is_settled(spec.resources, status)
    left = msgspec.structs.replace(
        status,
        container_statuses=_unsettled(asked, status.container_statuses),
        init_container_statuses=_unsettled(asked, status.init_container_statuses),
        resources=status.resources if own else None,
        allocated_resources=status.allocated_resources if own else {},
    )
    return msgspec.structs.replace(pod, status=left)


def sidecars_of(pod: Pod) -> list[Container]:
    return [container for container in pod.spec.init_containers if container.restart_policy == "Always"]


def _unsettled(asked: Mapping[str, Resources], statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    return tuple(one for one in statuses if one.name in asked and not _is_settled(asked[one.name], one))


def _is_settled(asked: Resources, status: ContainerStatus | PodStatus) -> bool:
    """Whether it has what it asks for. Of what a status does not name the spec alone counts."""
    if status.resources is None:
        return True
    wanted = asked.limits | asked.requests
    held = (status.resources.requests, status.allocated_resources)
    return all(
        _is_equal(name, wanted[name], has[name]) for has in held for name in RESIZABLE if name in wanted and name in has
    )


def _is_equal(name: str, one: str | int, other: str | int) -> bool:
    read = milli if name == "cpu" else whole
    try:
        return one == other or read(one) == read(other)
    except QuantityError:
        return False
