"""Workloads as the pods that their controllers would make, for the simulated cluster. Pure.

StatefulSet, Deployment, ReplicaSet and Job, with stable names instead of random ones: <name>-<ordinal>.
"""

from __future__ import annotations

from typing import Any

from shared.model import names
from shared.model.gang import OWNER

Json = dict[str, Any]
WORKLOADS = ("StatefulSet", "Deployment", "ReplicaSet", "Job")


class ManifestError(ValueError):
    """A manifest that cannot be read; the text says which field and why."""


def owner_uid(kind: str, namespace: str, name: str) -> str:
    """The uid of a workload, by which its pods name it. No object of it is kept."""
    return f"sim-{kind}-{namespace}-{name}".lower()


def is_owned(pod: Json, namespace: str, uid: str) -> bool:
    """Whether a pod is of this namespace and names this owner."""
    meta = pod["metadata"]
    return meta["namespace"] == namespace and any(o.get("uid") == uid for o in meta.get("ownerReferences") or ())


def pods_of(manifest: Json) -> tuple[list[Json], bool]:
    """The pods of a workload, and whether each waits for the one before it to run (a StatefulSet's OrderedReady).

    Raises ManifestError.
    """
    kind, meta, spec = manifest.get("kind", ""), manifest.get("metadata") or {}, manifest.get("spec") or {}
    if kind not in WORKLOADS:
        raise ManifestError(f"kind {kind!r} is not known to the simulated cluster")
    name = meta.get("name")
    if not isinstance(name, str) or not name:
        raise ManifestError(f"a {kind} needs metadata.name")
    template = spec.get("template")
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise ManifestError(f"{kind} {name} needs spec.template.spec")
    field = "parallelism" if kind == "Job" else "replicas"
    count = spec.get(field, spec.get("completions", 1) if kind == "Job" else 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 100_000:
        raise ManifestError(f"{kind} {name}: spec.{field} is {count!r}; write a number from 0 to 100000")
    ordered = kind == "StatefulSet" and spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
    pods = [_pod(kind, name, meta.get("namespace") or "default", template, ordinal) for ordinal in range(count)]
    for pod in pods:
        notes = pod["metadata"]["annotations"]
        if kind == "Job" and notes.get(names.ANNOTATION_GANG_SIZE) == OWNER:
            notes[names.ANNOTATION_GANG_SIZE] = str(count)  # no Job object remains here that could be read
    return pods, ordered


def _pod(kind: str, name: str, namespace: str, template: Json, ordinal: int) -> Json:
    of = template.get("metadata") or {}
    labels = dict(of.get("labels") or {})
    if kind == "StatefulSet":
        labels |= {
            "apps.kubernetes.io/pod-index": str(ordinal),
            "statefulset.kubernetes.io/pod-name": f"{name}-{ordinal}",
        }
    if kind == "Job":
        labels |= {"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/job-completion-index": str(ordinal)}
    owner = {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "name": name,
        "uid": owner_uid(kind, namespace, name),
    }
    metadata = {
        "name": f"{name}-{ordinal}",
        "namespace": namespace,
        "labels": labels,
        "annotations": dict(of.get("annotations") or {}),
        "ownerReferences": [{**owner, "controller": True}],
    }
    spec = {**template["spec"], "hostname": f"{name}-{ordinal}"} if kind == "StatefulSet" else dict(template["spec"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
