"""Pods as JSON for the tables of admission's tests."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def container(name: str = "main", **limits: Any) -> Json:
    """A container with limits by short names: gpu, memory, compute, slot, mem (aliyun), nvidia."""
    return {"name": name, "image": "example", "resources": both(limits)}


def both(limits: Json) -> Json:
    named = {LONG.get(key, key): value for key, value in limits.items()}
    return {"limits": named, "requests": dict(named)} if named else {}


LONG = {
    "gpu": "kerf.dev/gpu", "memory": "kerf.dev/gpu-memory", "compute": "kerf.dev/gpu-compute", "slot": "kerf.dev/slot",
    "mem": "aliyun.com/gpu-mem", "count": "aliyun.com/gpu-count", "nvidia": "nvidia.com/gpu",
}  # fmt: skip


def pod(
    *containers: Json,
    init: list[Json] | None = None,
    annotations: Json | None = None,
    labels: Json | None = None,
    **spec: Any,
) -> Json:
    metadata: Json = {"name": "train-0", "namespace": "default"}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
    body: Json = {"containers": list(containers), **spec}
    if init:
        body["initContainers"] = init
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def limits_of(reviewed: Json, index: int = 0, field: str = "containers") -> Json:
    """Without what the container counts under ResourceQuota."""
    limits = reviewed["spec"][field][index]["resources"]["limits"]
    return {name: value for name, value in limits.items() if name != "kerf.dev/quota-gpu-milli"}


def asked(manifest: Any, **changes: Any) -> Json:
    """An AdmissionReview of a pod's creation."""
    request = {
        "uid": "r1",
        "kind": {"kind": "Pod"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": manifest,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | changes}
