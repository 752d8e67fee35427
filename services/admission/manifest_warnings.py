"""What only earns a warning, which kubectl shows."""

from __future__ import annotations

import difflib

from services.admission.rules import KERFS_ALONE, READ_ANNOTATIONS
from shared.model import names
from shared.model.objects import Pod

_WARNINGS_MOST = 20
_OWN_ANNOTATIONS = (
    *READ_ANNOTATIONS,
    names.ANNOTATION_GANG_INCOMPLETE,
    names.ANNOTATION_EXPECTED_DURATION,
    names.ANNOTATION_MIN_RUNTIME,
    names.ANNOTATION_RESTART_COST,
    names.ANNOTATION_RESIZE,
    names.ANNOTATION_AUTOSCALE,
    names.ANNOTATION_GRANT,
    names.ANNOTATION_TOUCHED,
    names.ANNOTATION_SUSPENDED,
    names.ANNOTATION_GPU_TIME,
    names.ANNOTATION_TURNS,
    names.ANNOTATION_WATCHDOG,
    names.ANNOTATION_SUSPEND_HOOK,
    names.ANNOTATION_PARKED,
    names.ANNOTATION_DIALECT,
    names.ANNOTATION_PROFILE,
    names.ANNOTATION_ADMISSION_TRACEPARENT,
)


def of_annotations(pod: Pod) -> tuple[str, ...]:
    """Annotations with Kerf's prefix that have no meaning: most often a typing error. The first ones alone are
    compared with those that there are: that costs most of a review."""
    unknown = sorted(
        key for key in pod.metadata.annotations if key.startswith(names.PREFIX) and key not in _OWN_ANNOTATIONS
    )
    meant = [key for key in _OWN_ANNOTATIONS if key not in KERFS_ALONE]  # a pod with one of the others is refused
    found = []
    for key in unknown[:_WARNINGS_MOST]:
        near = difflib.get_close_matches(key, meant, n=1, cutoff=0.75)
        found.append(f"annotation {key} means nothing to Kerf" + (f"; did you mean {near[0]}?" if near else ""))
    if more := len(unknown) - len(found):
        found.append(f"{more} more annotations of the pod mean nothing to Kerf")
    return tuple(found)


def of_init_containers(pod: Pod, asked: frozenset[str]) -> tuple[str, ...]:
    """kubernetes #138446: a restart of the kubelet ends running pods whose init and app containers both hold
    devices."""
    shared = [
        c.name
        for c in pod.spec.init_containers
        if c.name not in asked and any(map(names.is_gpu_resource, c.resources.limits))
    ]
    return tuple(
        f"init container {name!r} shares an app container's GPUs; until kubernetes #138446 is resolved, a "
        "restart of the kubelet can end such a pod"
        for name in shared
    )
