"""What of an object is news for a scheduler: trimmed objects, and whether one differs from the last."""

from __future__ import annotations

import msgspec

from shared.model import names
from shared.model.claims import ResourceClaim
from shared.model.kinds import Object
from shared.model.kube_object import ANNOTATIONS_MAX_BYTES, Meta, annotations_bytes
from shared.model.objects import Node

GRANT_MAX_BYTES = 16 * 1024
"""For the grant and what else Kerf writes."""
ANNOTATION_LIMIT = 4096
"""Of one annotation, in characters."""


def trim(seen: Object) -> Object:
    """Drops annotations that no scheduler reads: kubectl's own, and long ones of other software. Notes whether all of
    them leave room for a grant: a Binding adds it even beyond the limit, and then every later write to the pod
    fails."""
    notes = seen.metadata.annotations
    full = annotations_bytes(notes) > ANNOTATIONS_MAX_BYTES - GRANT_MAX_BYTES
    kept = {
        k: v
        for k, v in notes.items()
        if k.startswith(names.PREFIX)
        or (len(v) <= ANNOTATION_LIMIT and k != "kubectl.kubernetes.io/last-applied-configuration")
    }
    if len(kept) == len(notes) and not full:
        return seen
    return msgspec.structs.replace(
        seen, metadata=msgspec.structs.replace(seen.metadata, annotations=kept, annotations_full=full)
    )


def is_same(known: Object, seen: Object) -> bool:
    """Equal but for the version, and for a node the sentences and reasons of its conditions, which name times and
    figures."""
    return _bare(known) == _bare(seen)


def _bare(seen: Object) -> Object:
    if isinstance(seen, ResourceClaim):
        return seen  # an allocation is written at a version: placement must know the newest
    bare = msgspec.structs.replace(seen, metadata=_unversioned(seen.metadata))
    if not isinstance(bare, Node):
        return bare
    conditions = tuple(msgspec.structs.replace(c, reason="", message="") for c in bare.status.conditions)
    return msgspec.structs.replace(bare, status=msgspec.structs.replace(bare.status, conditions=conditions))


def _unversioned(meta: Meta) -> Meta:
    return msgspec.structs.replace(meta, resource_version="")
