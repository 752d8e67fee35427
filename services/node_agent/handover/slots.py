"""Finds the container that holds a slot, from the kubelet's checkpoint and its PodResources together. Pure.

The checkpoint has the pod's UID, all containers and the CDI names that Allocate answered with. It is written before any
container of the pod starts, and survives restarts of kubelet, agent and node. So the plugin keeps no state of its own.
PodResources is the kubelet's current state and has namespace and name; it lacks ordinary init containers and UIDs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A container that holds slots, by the kubelet's checkpoint."""

    uid: str
    container: str
    slots: frozenset[str]
    cdi_names: tuple[str, ...]
    """The names of Kerf's devices that the kubelet passes to the runtime when the container is created."""


class PodResourcesEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A container that holds slots, by PodResources."""

    namespace: str
    name: str
    container: str
    slots: frozenset[str]


class SlotOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The container that is about to start: an app container or a sidecar, or an init container that had its slots
    before it.

    The kubelet later gives an init container's slots to an app container, and names neither at the start. So what is
    written for one is written for all that share the slots.
    """

    uid: str
    namespace: str
    name: str
    container: str
    """The container that has a share in the grant."""
    cdi_names: tuple[str, ...]
    init_cdi_names: tuple[str, ...] = ()
    """CDI names of the ordinary init containers that had these slots first."""


class Unresolved(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of the slots is not certain, so the container does not start. The kubelet tries again."""

    code: str
    sentence: str


def resolve(
    slots: frozenset[str], checkpoint: Iterable[CheckpointEntry], pod_resources: Iterable[PodResourcesEntry]
) -> SlotOwner | Unresolved:
    named = ", ".join(sorted(slots))
    now = [h for h in pod_resources if h.slots == slots]
    if not now:
        return Unresolved(
            code="slot-unknown", sentence=f"the kubelet's PodResources lists no container that holds slot {named}"
        )
    before = [h for h in checkpoint if h.slots == slots]
    uids = {h.uid for h in before}
    if len(now) > 1 or len(uids) > 1:
        return Unresolved(
            code="slot-ambiguous", sentence=f"the kubelet reports more than one pod that holds slot {named}"
        )
    holder = now[0]
    own = next((h for h in before if h.container == holder.container), None)
    if own is None:
        return Unresolved(
            code="slot-not-in-checkpoint",
            sentence=(
                f"the kubelet's checkpoint does not list {holder.namespace}/{holder.name}, container "
                f"{holder.container!r}, as the holder of slot {named} yet"
            ),
        )
    if not own.cdi_names:
        return Unresolved(
            code="slot-of-another-plugin",
            sentence=(
                f"slot {named} was allocated without a Kerf device, by another plugin or before Kerf was "
                "installed; delete the pod to have it scheduled again"
            ),
        )
    return SlotOwner(
        uid=own.uid,
        namespace=holder.namespace,
        name=holder.name,
        container=holder.container,
        cdi_names=own.cdi_names,
        init_cdi_names=tuple(name for h in before if h is not own for name in h.cdi_names),
    )
