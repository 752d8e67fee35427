"""Decides on a pod at admission: unchanged, rewritten into canonical form, or refused with what to change.

Pure. `review` is idempotent: a pod that it has rewritten passes unchanged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.admission import rules
from services.admission.dialects import Dialect, Translation, dialects
from services.admission.dialects.base import (
    DEFAULT_SCHEDULERS,
    Json,
    Place,
    amounts,
    containers,
    named_resources,
    nonzero,
)
from services.admission.messages import Allowed, Policy, Refused, Request
from services.admission.patch import difference
from services.admission.quota import quota_gpu_milli
from shared.model import names
from shared.model.gang import read_gang
from shared.model.kube_object import Quantities
from shared.model.life import read_life
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.model.request_reader import has_gpu_request, read_request

TOLERATION = {"key": names.TAINT_MANAGED, "operator": "Exists", "effect": "NoSchedule"}


def review(request: Request, policy: Policy) -> Allowed | Refused:
    """Never raises on what a manifest can contain; a malformed pod is refused by name."""
    try:
        return _review(request, policy)
    except RequestError as error:
        return Refused(error.code, str(error))


def _review(request: Request, policy: Policy) -> Allowed:
    pod = request.pod
    typed = rules.typed(pod)
    if request.operation == "UPDATE":
        rules.check_update(typed, rules.typed(request.old or {}), user=request.user, watchers=policy.watcher_accounts)
        rules.check_ephemeral(pod)
        return Allowed()
    rules.check_reserved(typed)
    read_gang(typed)
    read_life(typed)
    dialect, translation = _dialect(request, pod, typed, policy)
    if translation is not None:
        pod = _translated(pod, translation)
        typed = rules.typed(pod)
    if not has_gpu_request(typed):
        rules.check_slots(pod, frozenset())
        rules.check_quota(pod, frozenset())
        ours = typed.spec.resource_claims and typed.spec.scheduler_name == names.SCHEDULER_NAME
        final = pod | {"spec": pod["spec"] | _tolerating(pod["spec"])} if ours else pod
        return Allowed(tuple(difference(pod, final)), rules.annotation_warnings(typed))
    rules.check_place(typed)
    asked = read_request(typed)
    if asked is None:
        raise RequestError("no-gpu-container", "the pod names kerf.dev resources but asks for no GPU")
    users = _gpu_containers(pod)
    rules.check_slots(pod, frozenset(users))
    rules.check_quota(pod, frozenset(users))
    rules.check_ephemeral(pod)
    warnings = rules.annotation_warnings(typed) + rules.init_warnings(typed, frozenset(asked.asks))
    final = _canonical(pod, users, request.traceparent, policy.quota_gpu_bytes)
    return Allowed(tuple(difference(request.pod, final)), warnings, dialect or "kerf")


def _dialect(request: Request, pod: Json, typed: Pod, policy: Policy) -> tuple[str, Translation | None]:
    """The foreign dialect that the pod speaks and that Kerf takes over here, translated. Refuses a mixture."""
    named = named_resources(pod)
    rules.check_names(named)
    setting = policy.setting
    if request.namespace in policy.plain_nvidia_namespaces or "*" in policy.plain_nvidia_namespaces:
        setting = msgspec.structs.replace(setting, plain_nvidia=True)
    spoken = [dialect for dialect in dialects() if dialect.speaks(named, setting)]
    mentioned = sorted(named & frozenset(resource for dialect in dialects() for resource in dialect.resources))
    ours = sorted(filter(names.is_gpu_resource, named))
    if (
        mentioned
        and (ours or len({_owner(resource) for resource in mentioned}) > 1)
        and (ours or _takes_over(spoken, request, typed, policy))
    ):
        raise RequestError(
            "mixed-dialects",
            f"the pod asks for GPUs in more than one way ({', '.join(ours + mentioned)}); keep one of them, in "
            "all containers",
        )
    if not spoken or not _takes_over(spoken, request, typed, policy):
        return "", None
    return spoken[0].name, spoken[0].translate(pod, setting)


def _owner(resource: str) -> str:
    return next(dialect.name for dialect in dialects() if resource in dialect.resources)


def _takes_over(spoken: list[Dialect], request: Request, typed: Pod, policy: Policy) -> bool:
    if not spoken or request.namespace in policy.excluded_namespaces:
        return False
    return typed.spec.scheduler_name in (*DEFAULT_SCHEDULERS, names.SCHEDULER_NAME, *spoken[0].schedulers)


def _translated(pod: Json, translation: Translation) -> Json:
    """The pod with Kerf's resources in the place of the foreign ones."""
    new = {field: list(pod["spec"][field]) for field in ("containers", "initContainers") if pod["spec"].get(field)}
    for (field, index), container in containers(pod):
        asked: Quantities = dict(translation.amounts.get((field, index), {}))
        halves: dict[str, Quantities] = {
            half: {name: value for name, value in old.items() if name not in translation.removed} | asked
            for half, old in amounts(container).items()
        }
        resources = {key: value for key, value in (container.get("resources") or {}).items() if key not in halves}
        resources |= {half: values for half, values in halves.items() if values}
        new[field][index] = (
            container if resources == (container.get("resources") or {}) else container | {"resources": resources}
        )
    metadata = pod.get("metadata") or {}
    annotations = translation.annotations | (metadata.get("annotations") or {})
    scheduler = {"schedulerName": names.SCHEDULER_NAME}
    return pod | {"metadata": metadata | {"annotations": annotations}, "spec": pod["spec"] | new | scheduler}


def _gpu_containers(pod: Json) -> list[Place]:
    """Containers that name a GPU resource above zero. Ordinary init containers too: the kubelet gives an init
    container's slot on to the app containers, so they share it."""
    return [
        place
        for place, container in containers(pod)
        if any(
            nonzero(value)
            for half in amounts(container).values()
            for name, value in half.items()
            if names.is_gpu_resource(name)
        )
    ]


def _canonical(pod: Json, users: list[Place], traceparent: str, quota_gpu_bytes: int) -> Json:
    """schedulerName, slot and quota of each container that uses GPUs, the toleration, the trace."""
    spec: dict[str, Any] = dict(pod["spec"])
    spec["schedulerName"] = names.SCHEDULER_NAME
    for field, index in users:
        spec[field] = list(spec[field])
        spec[field][index] = _completed(spec[field][index], quota_gpu_bytes)
    spec |= _tolerating(spec)
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if traceparent and names.ANNOTATION_ADMISSION_TRACEPARENT not in annotations:
        metadata = metadata | {"annotations": annotations | {names.ANNOTATION_ADMISSION_TRACEPARENT: traceparent}}
    return pod | {"metadata": metadata, "spec": spec}


def _tolerating(spec: Json) -> Json:
    """The tolerations, where GPU nodes' taint is not among them yet."""
    known = spec.get("tolerations") or ()
    return {} if rules.tolerated(known) else {"tolerations": [*known, TOLERATION]}


def _completed(container: Json, quota_gpu_bytes: int) -> Json:
    resources = dict(container.get("resources") or {})
    halves = amounts(container)
    gpu = {name: value for name, value in halves["limits"].items() if names.is_gpu_resource(name)}
    counts = quota_gpu_milli(gpu, quota_gpu_bytes)
    for half, values in halves.items():
        written = values.get(names.RESOURCE_QUOTA, "")
        resources[half] = (
            gpu
            | values
            | {names.RESOURCE_SLOT: values.get(names.RESOURCE_SLOT, "1")}
            | {names.RESOURCE_QUOTA: written if rules.is_amount(written, counts) else str(counts)}
        )
    return container | {"resources": resources}
