"""Orders between services, as request and reply. Repeating any of them is harmless."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.contracts.base import Message

Outcome = Literal["done", "conflict", "gone", "refused", "no-node", "throttled", "unknown"]
"""done: applied. conflict: a precondition failed (409). gone: no such object (404). refused: understood and denied
(403, 422), nothing was applied. no-node: there is no such node, nothing was sent. throttled: 429, with a reason.
unknown: no answer; it may or may not have been applied, and only reading back can tell."""


class ClaimDevice(Message, frozen=True):
    """A part of a GPU that a claim's request gets, as the kubelet and `kubectl describe` shall see it."""

    request: str
    pool: str
    device: str
    share_id: str
    memory_mib: int
    compute_milli: int


class AllocateClaim(Message, frozen=True):
    """A ResourceClaim of the pod that is bound: its allocation is written first, only if the claim is still at this
    version. An allocation of an earlier decision is taken back with it."""

    name: str
    uid: str
    resource_version: str
    devices: tuple[ClaimDevice, ...]


class Bind(Message, frozen=True):
    uid: str
    namespace: str
    name: str
    resource_version: str
    node: str
    grant: str = ""
    """The annotation's text, written in the same transaction as nodeName; empty for a pod without GPUs."""
    claims: tuple[AllocateClaim, ...] = ()


class BindBatch(Message, frozen=True):
    term: int
    sequence: int
    """The log sequence of the newest decision in here, which watchers remember."""
    binds: tuple[Bind, ...]


class Answer(Message, frozen=True):
    """The outcome of one command. `resource_version` repeats the command's, to tell a late answer from a current
    one."""

    uid: str
    outcome: Outcome
    resource_version: str = ""
    message: str = ""


class Answers(Message, frozen=True):
    answers: tuple[Answer, ...] = ()


class TouchPod(Message, tag="touch", tag_field="patch", frozen=True):
    """Moves a pending pod's resourceVersion, so that no Binding of a forgotten past can hit it (rule R5)."""

    uid: str
    namespace: str
    name: str
    token: str
    """Written to the annotation kerf.dev/touched, or to the condition of that name; another value each time."""
    by_status: bool = False
    """Written to a condition of the pod's status alone, which does not pass through webhooks on pods."""


class ReportPending(Message, tag="pending", tag_field="patch", frozen=True):
    """The PodScheduled condition and the Event that people read in `kubectl describe`."""

    uid: str
    namespace: str
    name: str
    reason: str
    """Unschedulable, as kube-scheduler writes it; another one where no node would help."""
    message: str
    resource_version: str = ""


class AnnounceEvent(Message, tag="event", tag_field="patch", frozen=True):
    """An Event (events.k8s.io/v1) on a pod, or on a node: those are in the namespace `default`."""

    uid: str
    namespace: str
    name: str
    type: Literal["Normal", "Warning"] = "Normal"
    reason: str = ""
    action: str = ""
    note: str = ""
    kind: Literal["Pod", "Node"] = "Pod"


class LabelNode(Message, tag="node-labels", tag_field="patch", frozen=True):
    node: str
    labels: dict[str, str | None]
    """None takes a label away. Only labels that Kerf owns."""


class AdvertiseCapacity(Message, tag="node-capacity", tag_field="patch", frozen=True):
    """Kerf's resources in a node's status, capacity and allocatable. The watcher never writes less than the node's pods
    request, for the kubelet counts these too."""

    node: str
    amounts: dict[str, int]


class TaintNode(Message, tag="node-taint", tag_field="patch", frozen=True):
    """Adds a taint with effect NoSchedule to a node, or takes it away. Only taints that Kerf owns."""

    node: str
    key: str
    present: bool


class NominateNode(Message, tag="nominate", tag_field="patch", frozen=True):
    """Writes a pending pod's status.nominatedNodeName, or empties it: while a plan makes room for the pod there, no
    autoscaler starts a node for it."""

    uid: str
    namespace: str
    name: str
    node: str
    resource_version: str = ""


class DeletePod(Message, tag="delete", tag_field="patch", frozen=True):
    """Deletes a pod that cannot live, such as one bound to a node that does not exist; an Event says why."""

    uid: str
    namespace: str
    name: str
    reason: str
    resource_version: str = ""


class SelectNode(Message, tag="select-node", tag_field="patch", frozen=True):
    """A claim that binds late learns its node: a free volume there is pre-bound to it (PersistentVolume.spec.claimRef),
    or, where the class provisions, the claim gets the annotation volume.kubernetes.io/selected-node."""

    namespace: str
    claim: str
    node: str
    volume: str = ""
    """The free volume to pre-bind; empty where one is to be provisioned."""


class SliceDevice(Message, frozen=True):
    """A GPU in a ResourceSlice. Attributes have NVIDIA's driver's names; versions are semantic ones."""

    name: str
    memory_mib: int
    texts: dict[str, str] = {}
    versions: dict[str, str] = {}


class PublishSlice(Message, tag="slice", tag_field="patch", frozen=True):
    """What a node has, for readers of ResourceSlices (resource.k8s.io/v1). Only Kerf allocates from it."""

    node: str
    generation: int
    mark: str
    """Written to the annotation kerf.dev/inventory: a different value says that the slice is out of date."""
    devices: tuple[SliceDevice, ...] = ()


class SuspendPod(Message, tag="park", tag_field="patch", frozen=True):
    """Writes the annotation kerf.dev/suspended, and an Event that says why; empty removes the annotation."""

    uid: str
    namespace: str
    name: str
    suspension: str = msgspec.field(name="parked")
    reason: str
    resource_version: str = ""
    """The only version that it is for: a decision of an earlier leader must not be carried out later."""
    gpu_time: str = ""
    """Written to the annotation kerf.dev/gpu-time with it; empty: that stays as it is."""
    grant: str = ""
    """Written to the annotation kerf.dev/grant with it, for a pod that resumes on other GPUs; empty: that stays."""


class AmendGrant(Message, tag="amend", tag_field="patch", frozen=True):
    """Writes the grant of a bound pod with other amounts, and an Event that says so."""

    uid: str
    namespace: str
    name: str
    grant: str
    """The annotation's text."""
    reason: str
    resource_version: str = ""
    """The only version that it is for: an earlier leader's amendment must not be carried out later."""


class ResizePod(Message, frozen=True):
    """What the slices of a pod shall have, as a person or an autoscaler wants it: written to the annotation
    kerf.dev/resize, which placement reads. Empty removes the annotation."""

    namespace: str
    name: str
    resize: str
    uid: str = ""
    """Only this pod; empty: whichever has the name."""
    resource_version: str = ""
    """Only at this version; empty: at any."""


class ReportPodGroup(Message, tag="pod-group", tag_field="patch", frozen=True):
    """The condition of a PodGroup of scheduling.k8s.io that says whether its pods have been scheduled together. The
    watcher knows what the API server's version calls it."""

    uid: str
    namespace: str
    name: str
    scheduled: bool
    """Once true, it stays: later reports are not written."""
    reason: str
    """Scheduled or Unschedulable or SchedulerError, as kube-scheduler writes them."""
    message: str


Patch = (
    TouchPod
    | ReportPending
    | AnnounceEvent
    | LabelNode
    | AdvertiseCapacity
    | TaintNode
    | NominateNode
    | DeletePod
    | SelectNode
    | PublishSlice
    | SuspendPod
    | AmendGrant
    | ReportPodGroup
)


class PatchBatch(Message, frozen=True):
    patches: tuple[Patch, ...]


class Evict(Message, frozen=True):
    """Through the Eviction API, so that disruption budgets are honoured; a refusal by budget answers `throttled`."""

    uid: str
    namespace: str
    name: str
    reason: str
    grace_period_seconds: int | None = None
    resource_version: str = ""


class EvictBatch(Message, frozen=True):
    evictions: tuple[Evict, ...]


# --- to the simulated cluster -----------------------------------------------------------------------------------


class SimApply(Message, frozen=True):
    """Objects as in manifests, created or replaced in the simulated cluster, through the same admission as real
    ones."""

    objects: tuple[msgspec.Raw, ...]


class SimDelete(Message, frozen=True):
    kind: str
    namespace: str
    name: str


class SimAnswer(Message, frozen=True):
    applied: int = 0
    refusals: tuple[str, ...] = ()
