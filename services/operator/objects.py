"""What the operator reads of Kubernetes' objects, and where they are in the API."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from shared.kube.resources import DEVICE_SLICE, NODE, POD, Resource
from shared.model.kube_object import KubeObject, Labels, Meta
from shared.model.neighbours import DRA_DRIVER
from shared.model.objects import Taint

NATS_USERS = "kerf-nats"
AUTHORITY = "kerf-ca"
ADMISSION_TLS = "kerf-admission"
NATS_TLS = "kerf-nats-tls"
NATS_SERVERS = "kerf-nats"
"""Their StatefulSet, and the label app.kubernetes.io/name of its pods."""
BUNDLE = "kerf-ca"
SCHEDULERS = "kerf-schedulers"
STATUS = "kerf-status"
LEASE_NAME = "kerf-operator"
SECRETS = (NATS_USERS, AUTHORITY, ADMISSION_TLS, NATS_TLS)
CONFIG_MAPS = (BUNDLE, SCHEDULERS, STATUS)

SECRET = Resource("Secret", "api/v1", "secrets", True)
CONFIG_MAP = Resource("ConfigMap", "api/v1", "configmaps", True)
WEBHOOKS = Resource(
    "MutatingWebhookConfiguration",
    "apis/admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    False,
)
POLICIES = Resource(
    "MutatingAdmissionPolicy",
    "apis/admissionregistration.k8s.io/v1",
    "mutatingadmissionpolicies",
    False,
    optional=True,
    fields="metadata.name=kerf-canonical",
)
"""Kubernetes 1.36 and later have the kind."""
CLUSTER_ROLE = Resource("ClusterRole", "apis/rbac.authorization.k8s.io/v1", "clusterroles", False)
CLUSTER_ROLE_BINDING = Resource("ClusterRoleBinding", "apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False)
STATEFUL_SET = Resource("StatefulSet", "apis/apps/v1", "statefulsets", True)
LEASE = Resource("Lease", "apis/coordination.k8s.io/v1", "leases", True)
NVIDIA_SLICES = DEVICE_SLICE._replace(fields=f"spec.driver={DRA_DRIVER}", discovered=True)
"""What NVIDIA's DRA driver offers, in whatever version the API server has; of Kubernetes before 1.34 often none."""
TOKEN_REVIEW = Resource("TokenReview", "apis/authentication.k8s.io/v1", "tokenreviews", False)


class Secret(KubeObject, frozen=True):
    metadata: Meta = Meta()
    data: dict[str, str] = {}
    """In base64, as the API has it."""

    def text(self, key: str) -> str:
        """The value of a key as text; empty where it is missing or cannot be read."""
        try:
            return base64.b64decode(self.data.get(key, ""), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""


class ConfigMap(KubeObject, frozen=True):
    metadata: Meta = Meta()
    data: dict[str, str] = {}


class ClientConfig(KubeObject, frozen=True):
    ca_bundle: str = ""


class Webhook(KubeObject, frozen=True):
    name: str = ""
    client_config: ClientConfig = ClientConfig()


class WebhookConfiguration(KubeObject, frozen=True):
    metadata: Meta = Meta()
    webhooks: tuple[Webhook, ...] = ()


class AdmissionPolicy(KubeObject, frozen=True):
    metadata: Meta = Meta()


class MetadataFields(KubeObject, frozen=True):
    labels: dict[str, Any] = msgspec.field(default_factory=dict, name="f:labels")
    """By `f:` and the label."""


class Fields(KubeObject, frozen=True):
    metadata: MetadataFields = msgspec.field(default=MetadataFields(), name="f:metadata")


class ManagedFields(KubeObject, frozen=True):
    """A field manager and the labels that it owns. Other fields are skipped: nodes are many, their status is long."""

    manager: str = ""
    fields_v1: Fields = Fields()


class NodeMeta(Meta, frozen=True):
    managed_fields: tuple[ManagedFields, ...] = ()


class NodeSpec(KubeObject, frozen=True):
    taints: tuple[Taint, ...] = ()


class NodeStatus(KubeObject, frozen=True):
    allocatable: dict[str, str | int] = {}


class Node(KubeObject, frozen=True):
    metadata: NodeMeta = NodeMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Device(KubeObject, frozen=True):
    name: str = ""


class SliceSpec(KubeObject, frozen=True):
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(KubeObject, frozen=True):
    metadata: Meta = Meta()
    spec: SliceSpec = SliceSpec()


TERMINAL = ("Succeeded", "Failed")


class Resources(KubeObject, frozen=True):
    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}


class Container(KubeObject, frozen=True):
    resources: Resources = Resources()


class PodSpec(KubeObject, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""


class PodCondition(KubeObject, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None
    """None where the writer named no time: the API server then shows null."""


class PodStatus(KubeObject, frozen=True):
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()


class Pod(KubeObject, frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def unready_since(self) -> str:
        """The time, as the API has it; empty while it is ready, and where no container can ever be ready again."""
        if self.ready or self.status.phase in TERMINAL or self.metadata.deletion_timestamp is not None:
            return ""
        found = [c.last_transition_time for c in self.status.conditions if c.type == "Ready"]
        return (found[0] if found else None) or self.metadata.creation_timestamp


class PodTemplate(KubeObject, frozen=True):
    metadata: Meta = Meta()


class StatefulSetSpec(KubeObject, frozen=True):
    replicas: int = 1
    template: PodTemplate = PodTemplate()


class StatefulSet(KubeObject, frozen=True):
    metadata: Meta = Meta()
    spec: StatefulSetSpec = StatefulSetSpec()


class Rule(KubeObject, frozen=True):
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()


class ClusterRole(KubeObject, frozen=True):
    metadata: Meta = Meta()
    rules: tuple[Rule, ...] | None = None


class RoleRef(KubeObject, frozen=True):
    kind: str = ""
    name: str = ""


class Subject(KubeObject, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class ClusterRoleBinding(KubeObject, frozen=True):
    metadata: Meta = Meta()
    role_ref: RoleRef = RoleRef()
    subjects: tuple[Subject, ...] | None = None


TYPES: dict[str, type[Any]] = {
    "Secret": Secret,
    "ConfigMap": ConfigMap,
    "MutatingWebhookConfiguration": WebhookConfiguration,
    "MutatingAdmissionPolicy": AdmissionPolicy,
    "Node": Node,
    "Pod": Pod,
    "ResourceSlice": ResourceSlice,
    "StatefulSet": StatefulSet,
    "ClusterRole": ClusterRole,
    "ClusterRoleBinding": ClusterRoleBinding,
}


def followed(namespace: str, webhook: str) -> tuple[Resource, ...]:
    """What the operator watches: of Secrets and ConfigMaps its own alone, each by its name."""
    return (
        *(SECRET._replace(only=(namespace, name)) for name in SECRETS),
        *(CONFIG_MAP._replace(only=(namespace, name)) for name in CONFIG_MAPS),
        *((WEBHOOKS._replace(fields=f"metadata.name={webhook}"),) if webhook else ()),
        *((POLICIES,) if webhook else ()),
        STATEFUL_SET._replace(only=(namespace, NATS_SERVERS)),
        NODE,
        NVIDIA_SLICES,
        POD,
        CLUSTER_ROLE,
        CLUSTER_ROLE_BINDING,
    )


def encoded(data: dict[str, str]) -> Labels:
    """Texts as a Secret's data."""
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
