"""Decides on a pod at admission: unchanged, rewritten into canonical form, or refused with what to change.

Pure. `review` is idempotent: a pod that it has rewritten passes unchanged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.admission import manifest_warnings, profiles, rules
from services.admission.dialects import Dialect, Translation, in_force
from services.admission.dialects.base import (
    DEFAULT_SCHEDULER,
    DEFAULT_SCHEDULERS,
    Json,
    Place,
    amounts,
    containers,
    manifest_of,
    nonzero,
)
from services.admission.messages import Allowed, Policy, Refused, Request
from services.admission.patch import difference
from services.admission.quota import quota_gpu_milli
from shared.model import names
from shared.model.gang import read_gang
from shared.model.kube_object import Quantities
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.model.request_bounds import check_containers
from shared.model.request_reader import has_gpu_request, read_request

LABEL_POD_GROUP = "scheduling.x-k8s.io/pod-group"
TOLERATION = {"key": names.TAINT_MANAGED, "operator": "Exists", "effect": "NoSchedule"}


def review(request: Request, policy: Policy) -> Allowed | Refused:
    """Never raises on what a manifest can contain; a malformed pod is refused by name."""
    try:
        return _review(request, policy)
    except RequestError as error:
        return Refused(error.code, str(error))
    except RecursionError:
        return Refused("malformed", "the pod has objects inside objects, hundreds of levels deep; make it flatter")


def _review(request: Request, policy: Policy) -> Allowed:
    pod = request.pod
    typed = rules.typed(pod)
    rules.check_annotations_fit(typed)
    if request.operation == "UPDATE":
        rules.check_update(typed, rules.typed(request.old or {}), user=request.user, watchers=policy.watcher_accounts)
        rules.check_ephemeral(pod)
        return Allowed()
    rules.check_reserved(typed)
    read_gang(typed)
    rules.check_life(typed)
    taken_over = _is_taken_over(request, typed, policy)
    dialect, translation = _dialect(request, pod, typed, policy, taken_over=taken_over)
    if translation is not None:
        pod = _translated(pod, translation)
    if taken_over and (translation is not None or has_gpu_request(typed) or _is_taken_without_gpus(typed)):
        pod = pod | {"spec": pod["spec"] | {"schedulerName": names.SCHEDULER_NAME}}
    typed = rules.typed(pod) if pod is not request.pod else typed
    if not has_gpu_request(typed):
        rules.check_slots(pod, frozenset())
        rules.check_quota(pod, frozenset())
        # One that was taken over could run on these nodes before they were Kerf's.
        ours = typed.spec.scheduler_name == names.SCHEDULER_NAME and (typed.spec.resource_claims or taken_over)
        final = pod | {"spec": pod["spec"] | _tolerating(pod["spec"])} if ours else pod
        return Allowed(tuple(difference(request.pod, final)), manifest_warnings.of_annotations(typed), dialect)
    rules.check_place(typed)
    profile, filled = policy.profile_of(request.namespace), ""
    if profile == profiles.DEBUG:
        pod, filled = profiles.fill_in(pod, policy.debug_memory_percent)
        typed = rules.typed(pod) if filled else typed
    asked = read_request(typed)
    if asked is None:
        raise RequestError("no-gpu-container", "the pod names kerf.dev resources but asks for no GPU")
    users = _gpu_containers(pod)
    rules.check_slots(pod, frozenset(users))
    rules.check_quota(pod, frozenset(users))
    rules.check_ephemeral(pod)
    profiles.check(typed, profile, request.namespace)
    warnings = manifest_warnings.of_annotations(typed)
    warnings += manifest_warnings.of_init_containers(typed, frozenset(asked.asks))
    warnings += profiles.warnings(request.namespace, filled)
    final = _canonical(pod, users, request.traceparent, policy)
    return Allowed(tuple(difference(request.pod, final)), warnings, dialect or "kerf")


def _dialect(
    request: Request, pod: Json, typed: Pod, policy: Policy, *, taken_over: bool
) -> tuple[str, Translation | None]:
    """The foreign dialect that the pod speaks and that Kerf takes over here, translated. Refuses a mixture."""
    manifest = manifest_of(pod)
    rules.check_names(manifest.named)
    read, resources = in_force(None if taken_over else policy.dialects)
    setting = policy.setting
    if taken_over or request.namespace in policy.plain_nvidia_namespaces or "*" in policy.plain_nvidia_namespaces:
        setting = msgspec.structs.replace(setting, plain_nvidia=True, taken_over=taken_over)
    ours = sorted(filter(names.is_gpu_resource, manifest.named))
    translated = bool(ours) and names.ANNOTATION_DIALECT in manifest.annotations  # by an earlier review
    spoken = next((dialect for dialect in read if not translated and dialect.speaks(manifest, setting)), None)
    foreign = manifest.named & resources
    takes = spoken is not None and (taken_over or _takes_over(spoken, request, typed, policy))
    ways = [*ours, *sorted(foreign), *([] if spoken is None or foreign & spoken.resources else [spoken.name])]
    sentence = f"the pod asks for GPUs in more than one way ({', '.join(ways)}); keep one of them, in all containers"
    if (ours and foreign) or (takes and spoken is not None and foreign - spoken.resources):
        raise RequestError("mixed-dialects", sentence)
    if spoken is None or not takes:
        return "", None
    check_containers(typed)  # before a translation that takes seconds for thousands of them
    translation = spoken.translate(pod, setting)
    if ours and translation.amounts:  # of a pod in Kerf's own words only its labels are translated
        raise RequestError("mixed-dialects", sentence)
    return spoken.name, translation


def _takes_over(spoken: Dialect, request: Request, typed: Pod, policy: Policy) -> bool:
    """Whether a pod of this dialect is Kerf's by its scheduler: the default one, ours, or the dialect's own."""
    if request.namespace in policy.excluded_namespaces:
        return False
    return typed.spec.scheduler_name in (*DEFAULT_SCHEDULERS, names.SCHEDULER_NAME, *spoken.schedulers)


def _is_taken_over(request: Request, typed: Pod, policy: Policy) -> bool:
    """Whether the pod names a scheduler whose pods are all Kerf's here."""
    scheduler = typed.spec.scheduler_name or DEFAULT_SCHEDULER
    return scheduler in policy.takeover_schedulers and request.namespace not in policy.excluded_namespaces


def _is_taken_without_gpus(typed: Pod) -> bool:
    """Whether a pod without GPUs is taken over with its scheduler. Of the default scheduler's pods only members of a
    group are, for a gang cannot have two schedulers."""
    if typed.spec.scheduler_name not in DEFAULT_SCHEDULERS:
        return True
    grouped = typed.spec.scheduling_group is not None or typed.spec.workload_ref is not None
    return grouped or LABEL_POD_GROUP in typed.metadata.labels


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
    metadata = metadata | {"annotations": translation.annotations | (metadata.get("annotations") or {})}
    if translation.labels:
        metadata = metadata | {"labels": translation.labels | (metadata.get("labels") or {})}
    spec = pod["spec"] | new | {"schedulerName": names.SCHEDULER_NAME}
    if translation.priority_class not in ("", spec.get("priorityClassName")):
        # The API server has filled in the default class' numbers, and does so again for this one.
        spec = {key: value for key, value in spec.items() if key not in ("priority", "preemptionPolicy")}
        spec["priorityClassName"] = translation.priority_class
    return pod | {"metadata": metadata, "spec": spec}


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


def _canonical(pod: Json, users: list[Place], traceparent: str, policy: Policy) -> Json:
    """schedulerName, slot and quota of each container that uses GPUs, the toleration, the trace."""
    spec: dict[str, Any] = dict(pod["spec"])
    spec["schedulerName"] = names.SCHEDULER_NAME
    for field, index in users:
        spec[field] = list(spec[field])
        spec[field][index] = _completed(spec[field][index], policy)
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


def _completed(container: Json, policy: Policy) -> Json:
    resources = dict(container.get("resources") or {})
    halves = amounts(container)
    gpu = {name: value for name, value in halves["limits"].items() if names.is_gpu_resource(name)}
    counts = quota_gpu_milli(gpu, policy.quota_gpu_bytes, policy.quota_least_milli)
    for half, values in halves.items():
        written = values.get(names.RESOURCE_QUOTA, "")
        resources[half] = (
            gpu
            | values
            | {names.RESOURCE_SLOT: values.get(names.RESOURCE_SLOT, "1")}
            | {names.RESOURCE_QUOTA: written if rules.is_amount(written, counts) else str(counts)}
        )
    return container | {"resources": resources}
