"""What all Kubernetes objects have in common: how they are decoded, and their metadata."""

from __future__ import annotations

import msgspec

Labels = dict[str, str]
Quantities = dict[str, str | int]

ANNOTATIONS_MAX_BYTES = 256 * 1024
"""TotalAnnotationSizeLimitB of the API server: it refuses a larger object from any client."""


def annotations_bytes(annotations: Labels) -> int:
    """As the API server counts them against ANNOTATIONS_MAX_BYTES: keys and values in UTF-8."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


class KubeObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Frozen trees never form cycles, so the garbage collector need not walk them: decoding a pod among thousands that
    are kept costs a third of what it does with tracking (docs/decisions, 0012)."""


class OwnerReference(KubeObject, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(KubeObject, frozen=True):
    """metadata. `resource_version` is opaque text to Kubernetes' clients, but etcd's versions are ordered integers."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generate_name: str = ""
    labels: Labels = {}
    annotations: Labels = {}
    owner_references: tuple[OwnerReference, ...] = ()
    annotations_full: bool = False
    """Not Kubernetes': the watcher has seen that the annotations leave no room for a grant (see `trim` there)."""
