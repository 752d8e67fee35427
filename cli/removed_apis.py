"""What to change in manifests of API versions that Kubernetes no longer serves, as the examples of older GPU systems
have them (source: kubernetes.io, Deprecated API Migration Guide, v1.16 and v1.25)."""

from __future__ import annotations

from typing import Any

_SELECTOR = "and add spec.selector.matchLabels with the labels of spec.template.metadata.labels"
_WORKLOADS = dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), ("apps/v1", "1.16", _SELECTOR))
_REMOVED = {
    "extensions/v1beta1": _WORKLOADS,
    "apps/v1beta1": _WORKLOADS,
    "apps/v1beta2": _WORKLOADS,
    "batch/v1beta1": {"CronJob": ("batch/v1", "1.25", "")},
    "policy/v1beta1": {"PodDisruptionBudget": ("policy/v1", "1.25", "")},
}


def what_to_change(document: dict[str, Any]) -> str:
    """A sentence for a manifest that no API server takes any more; empty for others."""
    kind, version = str(document.get("kind", "")), str(document.get("apiVersion", ""))
    served, since, more = _REMOVED.get(version, {}).get(kind, ("", "", ""))
    if not served:
        return ""
    spec = document.get("spec")
    lacks_selector = bool(more) and not (isinstance(spec, dict) and spec.get("selector"))
    metadata = document.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return (
        f"{kind} {name}: {version} is not served since Kubernetes {since}; write apiVersion: {served}"
        f"{' ' + more if lacks_selector else ''}"
    )
