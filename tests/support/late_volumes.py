"""Volumes that are made only when the node of their pod is known."""

from __future__ import annotations

import msgspec

from shared.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from tests.support import build

LATE = msgspec.convert(
    {
        "kind": "StorageClass",
        "metadata": {"name": "late"},
        "provisioner": "example.com/disks",
        "volumeBindingMode": "WaitForFirstConsumer",
    },
    StorageClass,
)


def volume(name: str, *, of: str, node: str = "") -> PersistentVolume:
    """A volume of that claim; with `node` it can be reached from there alone."""
    spec: dict[str, object] = {"claimRef": {"namespace": "team", "name": of}}
    if node:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    body = {"kind": "PersistentVolume", "metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}
    return msgspec.convert(body, PersistentVolume)


def claim(name: str, *, volume: str = "") -> PersistentVolumeClaim:
    """A claim of the class `LATE`; with `volume` it is bound to that."""
    spec = {
        "storageClassName": "late",
        "accessModes": ["ReadWriteOnce"],
        "volumeName": volume,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": build.next_version()}
    return msgspec.convert(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": spec,
            "status": {"phase": "Bound" if volume else "Pending"},
        },
        PersistentVolumeClaim,
    )
