"""Rules of the simulated API server that need no state: defaults, preconditions, budgets, the form of a refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shared.model.affinity import LabelSelector
from shared.model.kinds import KINDS
from shared.model.kube_object import ANNOTATIONS_MAX_BYTES, annotations_bytes
from shared.model.selectors import labels_match

ANNOTATION_SECONDS = "kerf.dev/sim-seconds"
"""On a pod: the simulated kubelet lets it succeed after so many seconds."""

Json = dict[str, Any]
Reply = tuple[int, Json]

_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def failure(code: int, reason: str, message: str, *, causes: list[Json] | None = None) -> Reply:
    """A metav1.Status."""
    details = {"details": {"causes": causes}} if causes else {}
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
        **details,
    }


def decode(kind: str, document: Json) -> Any:
    return msgspec.convert(document, KINDS[kind])


def too_long(kind: str, name: str, document: Json) -> Reply | None:
    """The answer to a write after which the object's annotations would be larger than the server takes; None where they
    are not."""
    if annotations_bytes(document["metadata"].get("annotations") or {}) <= ANNOTATIONS_MAX_BYTES:
        return None
    text = f"metadata.annotations: Too long: may not be more than {ANNOTATIONS_MAX_BYTES} bytes"
    return failure(422, "Invalid", f'{kind} "{name}" is invalid: {text}')


def precondition(wanted: Json, have: Json) -> str:
    for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != have[field]:
            return f"Precondition failed: {word} in precondition: {wanted[field]}, {word} in object meta: {have[field]}"
    return ""


def _default_requests(container: Json) -> Json:
    limits = (container.get("resources") or {}).get("limits") or {}
    if not limits:
        return container
    wanted = container["resources"]
    return {**container, "resources": {**wanted, "requests": {**limits, **(wanted.get("requests") or {})}}}


def _matches(selector: Json | None, pod: Json) -> bool:
    """In policy/v1 an empty selector matches every pod of the namespace."""
    return selector is not None and labels_match(
        msgspec.convert(selector, LabelSelector), pod["metadata"].get("labels") or {}
    )


def _count(amount: int | str, total: int) -> int:
    """A number, or percent of `total`, rounded up as the disruption controller does."""
    return -(-int(amount[:-1]) * total // 100) if isinstance(amount, str) and amount.endswith("%") else int(amount)


def default_pod(pod: Json, classes: Iterable[Json]) -> Reply | None:
    """What the API server fills in, in place: priority, requests from limits, phase. An answer where it refuses the pod
    instead.

    `classes` are the PriorityClasses there are.
    """
    name, spec = pod["metadata"]["name"], dict(pod.get("spec") or {})
    seconds = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_SECONDS)
    if seconds and not seconds.replace(".", "", 1).isdecimal():
        return failure(
            422,
            "Invalid",
            f'Pod "{name}" is invalid: annotation {ANNOTATION_SECONDS} is {seconds!r}; write a number of seconds',
        )
    if not spec.get("containers"):
        return failure(422, "Invalid", f'Pod "{name}" is invalid: spec.containers: Required value')
    class_name = spec.get("priorityClassName", "")
    chosen = next(
        (c for c in classes if (c["metadata"]["name"] == class_name if class_name else c.get("globalDefault"))), None
    )
    if class_name and chosen is None:
        return failure(
            403, "Forbidden", f'pods "{name}" is forbidden: no PriorityClass with name {class_name} was found'
        )
    if chosen is not None:
        spec |= {
            "priorityClassName": chosen["metadata"]["name"],
            "priority": chosen.get("value", 0),
            "preemptionPolicy": chosen.get("preemptionPolicy", "PreemptLowerPriority"),
        }
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [_default_requests(container) for container in spec[group]]
    defaults = {
        "schedulerName": "default-scheduler",
        "priority": 0,
        "terminationGracePeriodSeconds": 30,
        "restartPolicy": "Always",
    }
    pod["spec"] = {**defaults, **spec}
    pod["status"] = {"phase": "Pending", **({"conditions": [_GATED]} if spec.get("schedulingGates") else {})}
    return None


def exhausted_budget(pod: Json, budgets: Iterable[Json], pods: Iterable[Json]) -> str | None:
    """The budget that forbids to take this pod now: minAvailable or maxUnavailable, as numbers or percent of its
    pods."""
    namespace = pod["metadata"]["namespace"]
    neighbours = [p for p in pods if p["metadata"]["namespace"] == namespace]
    for budget in budgets:
        spec = budget.get("spec") or {}
        if budget["metadata"]["namespace"] != namespace or not _matches(spec.get("selector"), pod):
            continue
        peers = [p for p in neighbours if _matches(spec.get("selector"), p)]
        healthy = sum(
            p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp") for p in peers
        )
        if spec.get("maxUnavailable") is not None:
            needed = len(peers) - _count(spec["maxUnavailable"], len(peers))
        else:
            needed = _count(spec.get("minAvailable", 0), len(peers))
        if healthy - 1 < needed:
            return str(budget["metadata"]["name"])
    return None
