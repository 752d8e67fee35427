"""Whose container holds a slot: the kubelet's checkpoint and its PodResources, read together. Pure.

The checkpoint knows the pod's UID, all containers and the CDI names that Allocate answered with; it is written before any
container of the pod starts, and outlives kubelet, agent and reboot. So the plugin remembers nothing by itself. PodResources
is the kubelet's word of now, and knows namespace and name; it leaves out ordinary init containers and UIDs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A container that holds slots, by the checkpoint."""

    uid: str
    container: str
    slots: frozenset[str]
    cdi_names: tuple[str, ...]
    """Of the devices of ours that the kubelet asks the runtime for when the container is created."""


class PodResourcesEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A container that holds slots, by PodResources."""

    namespace: str
    name: str
    container: str
    slots: frozenset[str]


class SlotOwner(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to start: an app container or a sidecar, or an init container that had its slots before it.

    The kubelet gives an init container's slots to an app container later, and names neither at the start: what is
    written for one is written for all that share the slots.
    """

    uid: str
    namespace: str
    name: str
    container: str
    """The one that has a part of the grant."""
    cdi_names: tuple[str, ...]
    init_cdi_names: tuple[str, ...] = ()
    """Of ordinary init containers that had these slots first."""


class Unresolved(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody can say for sure whose the slots are, so nothing starts. The kubelet tries again."""

    code: str
    sentence: str


def resolve(
    slots: frozenset[str], checkpoint: Iterable[CheckpointEntry], pod_resources: Iterable[PodResourcesEntry]
) -> SlotOwner | Unresolved:
    named = ", ".join(sorted(slots))
    now = [h for h in pod_resources if h.slots == slots]
    if not now:
        return Unresolved(
            code="slot-unknown", sentence=f"the kubelet's PodResources names no container that holds slot {named}"
        )
    before = [h for h in checkpoint if h.slots == slots]
    uids = {h.uid for h in before}
    if len(now) > 1 or len(uids) > 1:
        return Unresolved(
            code="slot-ambiguous", sentence=f"slot {named} is held by more than one pod, by the kubelet's own word"
        )
    holder = now[0]
    own = next((h for h in before if h.container == holder.container), None)
    if own is None:
        return Unresolved(
            code="slot-not-in-checkpoint",
            sentence=f"the kubelet's checkpoint does not name {holder.namespace}/{holder.name}, container {holder.container!r}, as the holder of slot {named} yet",
        )
    if not own.cdi_names:
        return Unresolved(
            code="slot-of-another-plugin",
            sentence=f"slot {named} was handed out without a device of Kerf's, by another plugin or before Kerf was here; delete the pod to have it placed anew",
        )
    return SlotOwner(
        uid=own.uid,
        namespace=holder.namespace,
        name=holder.name,
        container=holder.container,
        cdi_names=own.cdi_names,
        init_cdi_names=tuple(name for h in before if h is not own for name in h.cdi_names),
    )
