"""The part of Kubernetes objects that scheduling needs, decoded straight from the API server's bytes.

Fields keep Kubernetes' own JSON names, so the same structs travel on the bus as facts. Anything not named here is
skipped by the decoder at no cost. Quantities stay text; `shared.model.units` reads them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.model.affinity import Affinity, LabelSelector, Toleration, TopologySpreadConstraint
from shared.model.kube_object import KubeObject, Labels, Meta, Quantities
from shared.model.subgroup import Subgroup

# --- pods -------------------------------------------------------------------------------------------------------


class UsedClaim(KubeObject, frozen=True):
    """A container's use of one of its pod's claims; `request` empty: of all that it allocates."""

    name: str = ""
    request: str = ""


class Resources(KubeObject, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}
    claims: tuple[UsedClaim, ...] = ()


class ContainerPort(KubeObject, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(KubeObject, frozen=True):
    name: str = ""
    image: str = ""
    resources: Resources = Resources()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None
    """On an init container, "Always" makes it a sidecar."""


class PvcSource(KubeObject, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class EphemeralSource(KubeObject, frozen=True):
    """A generic ephemeral volume: its claim is named <pod>-<volume>."""

    volume_claim_template: dict[str, Any] = {}


class Volume(KubeObject, frozen=True):
    """Volumes that bear on scheduling. The three in-tree disks can be attached to one node only."""

    name: str = ""
    persistent_volume_claim: PvcSource | None = None
    ephemeral: EphemeralSource | None = None
    gce_persistent_disk: dict[str, Any] | None = msgspec.field(default=None, name="gcePersistentDisk")
    aws_elastic_block_store: dict[str, Any] | None = msgspec.field(default=None, name="awsElasticBlockStore")
    rbd: dict[str, Any] | None = None
    iscsi: dict[str, Any] | None = None


class SchedulingGate(KubeObject, frozen=True):
    name: str = ""


class SchedulingGroup(KubeObject, frozen=True):
    """The PodGroup of a pod (scheduling.k8s.io, Kubernetes 1.36)."""

    pod_group_name: str = ""


class WorkloadReference(KubeObject, frozen=True):
    """The Workload of a pod, and the group in it (scheduling.k8s.io/v1alpha1, Kubernetes 1.35)."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodClaim(KubeObject, frozen=True):
    """A ResourceClaim of the pod by the name that its containers use: one that exists, or one that is made for the
    pod."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(KubeObject, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    node_selector: Labels = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources | None = None
    """Pod-level resources (Kubernetes 1.34 and later)."""
    overhead: Quantities = {}
    volumes: tuple[Volume, ...] = ()
    host_network: bool = False
    resource_claims: tuple[PodClaim, ...] = ()
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    """After so long from `status.startTime` Kubernetes ends the pod."""
    os: dict[str, str] | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None


class Condition(KubeObject, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class MadeClaim(KubeObject, frozen=True):
    """The ResourceClaim that was made from a pod's template; no name where none was needed."""

    name: str = ""
    resource_claim_name: str = ""


class HeldResources(KubeObject, frozen=True):
    """What the kubelet has carried out."""

    requests: Quantities = {}


class ContainerStatus(KubeObject, frozen=True):
    """What a container has, where that is not what its spec requests (`pod_resize`)."""

    name: str = ""
    allocated_resources: Quantities = {}
    """What the kubelet has admitted."""
    resources: HeldResources | None = None


class PodStatus(KubeObject, frozen=True):
    phase: str = ""
    reason: str = ""
    """For a failed pod: a CamelCase word, such as UnexpectedAdmissionError or OutOfcpu."""
    start_time: str = ""
    """When the kubelet took it on."""
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] = ()
    resource_claim_statuses: tuple[MadeClaim, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: Quantities = {}
    resources: HeldResources | None = None
    """Of pod-level resources, as of a container's."""
    resize: str = ""
    """Before Kubernetes 1.33: what became of the last resize."""


class Pod(KubeObject, tag="Pod", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- nodes and the rest -----------------------------------------------------------------------------------------


class Taint(KubeObject, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str = ""


class NodeSpec(KubeObject, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(KubeObject, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(KubeObject, frozen=True):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(KubeObject, tag="Node", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(KubeObject, tag="Namespace", tag_field="kind", frozen=True):
    metadata: Meta = Meta()


class PriorityClass(KubeObject, tag="PriorityClass", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


class ResourceQuota(KubeObject, tag="ResourceQuota", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class DisruptionBudgetSpec(KubeObject, frozen=True):
    selector: LabelSelector | None = None
    min_available: str | int | None = None
    max_unavailable: str | int | None = None


class DisruptionBudgetStatus(KubeObject, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(KubeObject, tag="PodDisruptionBudget", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


class GroupCondition(KubeObject, frozen=True):
    """The condition by which a PodGroup of Kubernetes says whether its pods have been scheduled."""

    status: str = ""
    """True, False or Unknown. True stays, whatever becomes of the pods later."""
    reason: str = ""
    message: str = ""


class Gang(KubeObject, tag="Gang", tag_field="kind", frozen=True):
    """What another object says of pods that belong together: a PodGroup, JobSet, Kubeflow job, Workload or Job, all in
    one form. The watcher creates it. `metadata` is that object's own, except for the name, which is as in `kubectl
    get -o name`: jobset.jobset.x-k8s.io/train."""

    metadata: Meta = Meta()
    minimum: int = 0
    """How many pods must be placed together; 0 where each is placed by itself."""
    parts: dict[str, int] = {}
    """Where parts of it are gangs of their own: the minimum of each, by the part's name."""
    timeout_s: int = 0
    required: str = ""
    """The node label in which all pods must agree; empty: none."""
    preferred: str = ""
    subgroups: tuple[Subgroup, ...] = ()
    """Its parts, where they are one gang together."""
    min_subgroups: int = 0
    """How many of them it needs; 0: all."""
    parent: str = ""
    """The CompositePodGroup that it is a part of (Kubernetes 1.37); empty: none."""
    scheduled: GroupCondition | None = None
    """Of a PodGroup of Kubernetes alone. None: there is no such condition yet."""
    generation: int = 0
    """Of a PodGroup of Kubernetes alone: the spec to which a condition belongs."""


class ConfigMap(KubeObject, tag="ConfigMap", tag_field="kind", frozen=True):
    """Of all ConfigMaps only Kerf's own policy is read."""

    metadata: Meta = Meta()
    data: dict[str, str] = {}


_MAX_VERSION_DIGITS = 20
"""Of 64 bits."""


def version(meta: Meta) -> int:
    """That of the object, as `version_number` reads it."""
    return version_number(meta.resource_version)


def version_number(text: str) -> int:
    """A resourceVersion as a number (KEP-5504 makes the order of these part of the API); 0 where it is none."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_VERSION_DIGITS else 0
