"""All kinds of objects that travel as facts."""

from __future__ import annotations

from typing import Any

from shared.model.claims import ResourceClaim, ResourceSlice
from shared.model.objects import (
    ConfigMap,
    Gang,
    Namespace,
    Node,
    Pod,
    PodDisruptionBudget,
    PriorityClass,
    ResourceQuota,
)
from shared.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)

Object = (
    Pod | Node | Namespace | PriorityClass | ResourceQuota | PodDisruptionBudget
    | PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode | CSIDriver | CSIStorageCapacity
    | Gang | ConfigMap | ResourceClaim | ResourceSlice
)  # fmt: skip

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Pod, Node, Namespace, PriorityClass, ResourceQuota, PodDisruptionBudget,
                 PersistentVolumeClaim, PersistentVolume, StorageClass, CSINode, CSIDriver, CSIStorageCapacity,
                 Gang, ConfigMap, ResourceClaim, ResourceSlice)
}  # fmt: skip
