"""What Kerf would read in a pod that was written for another scheduler: admission's own answer."""

from __future__ import annotations

from typing import Any

import msgspec

from services.admission.core import review
from services.admission.dialects import Setting
from services.admission.dialects.base import DEFAULT_SCHEDULERS, containers
from services.admission.messages import Policy, Refused, Request
from services.simulator.patch import json_patch
from shadow.objects import SeenPod
from shadow.peers.base import RESOURCE_GPU, RESOURCE_SHARED
from shared.model import names
from shared.model.gang import NONE
from shared.model.objects import Pod
from shared.model.request import GpuAsk, RequestError
from shared.model.request_reader import read_request

_OWN_PLACE = ("nodeName",)
_LEFT_OUT = ("volumes", "schedulingGroup", "workloadRef", "resourceClaims", "schedulingGates")
"""What depends on objects that shadow mode does not read. A gang is one such object: its pods are placed one by one."""


class Wanted(msgspec.Struct, frozen=True):
    """A pod as Kerf would have it; `asks` of its containers."""

    pod: Pod
    asks: tuple[GpuAsk, ...]


class NotTaken(msgspec.Struct, frozen=True):
    """A pod with GPUs that Kerf would refuse at its creation."""

    why: str


def read(pod: SeenPod, replicas: int = 1) -> Wanted | NotTaken | None:
    """None where the pod asks for no GPU. `replicas`: of each GPU, where they are sliced by time."""
    document = pod.as_json()
    spec = {key: value for key, value in document["spec"].items() if key not in (*_OWN_PLACE, *_LEFT_OUT)}
    notes = pod.metadata.annotations
    if not any(key.startswith(names.ANNOTATION_GANG) for key in notes):
        notes = notes | {names.ANNOTATION_GANG: NONE}
    document |= {"spec": spec, "metadata": document["metadata"] | {"annotations": notes}}
    if replicas > 1 or _names(document, RESOURCE_SHARED):
        document = _sliced(document, replicas)
    scheduler = pod.spec.scheduler_name
    policy = Policy(
        setting=Setting(plain_nvidia=True),
        excluded_namespaces=(),
        plain_nvidia_namespaces=("*",),
        takeover_schedulers=() if scheduler in DEFAULT_SCHEDULERS else (scheduler,),
    )
    answer = review(Request(pod=document, namespace=pod.metadata.namespace), policy)
    if isinstance(answer, Refused):
        return NotTaken(f"{answer.sentence} [{answer.code}]")
    if not answer.dialect:
        return None
    final = json_patch(document, [msgspec.to_builtins(patch) for patch in answer.patches])
    typed = msgspec.convert(final | {"kind": "Pod"}, Pod)
    try:
        asked = read_request(typed)
    except RequestError as error:
        return NotTaken(f"{error} [{error.code}]")
    return None if asked is None else Wanted(typed, tuple(asked.asks.values()))


def _names(document: dict[str, Any], resource: str) -> bool:
    return any(
        resource in (half or {})
        for _, container in containers(document)
        for half in (container.get("resources") or {}).values()
        if isinstance(half, dict)
    )


def _sliced(document: dict[str, Any], replicas: int) -> dict[str, Any]:
    """The pod with its replicas of time-sliced GPUs as parts of GPUs: a replica is an equal part."""
    spec = dict(document["spec"])
    for (field, index), container in containers(document):
        halves = {half: dict(of or {}) for half, of in (container.get("resources") or {}).items() if half != "claims"}
        count = max(
            sum(_count(of.pop(name, 0)) for name in (RESOURCE_GPU, RESOURCE_SHARED)) for of in (*halves.values(), {})
        )
        if not count:
            continue
        gpus = -(-count // replicas)
        percent = max(1, 100 * count // (replicas * gpus))
        limits = halves.setdefault("limits", {})
        limits[names.RESOURCE_GPU] = str(gpus)
        if percent < 100:
            limits[names.RESOURCE_GPU_COMPUTE] = str(percent * gpus)
        spec[field] = [*spec[field][:index], container | {"resources": halves}, *spec[field][index + 1 :]]
    return document | {"spec": spec}


def _count(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 0
