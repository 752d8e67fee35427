"""What is observed of an installation: the newest version of every object that the operator follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from cryptography import x509

from services.operator import certificates as pki
from services.operator import enrolment
from services.operator.objects import (
    ADMISSION_TLS,
    AUTHORITY,
    BUNDLE,
    NATS_TLS,
    TERMINAL,
    AdmissionPolicy,
    ClusterRole,
    ClusterRoleBinding,
    ConfigMap,
    Node,
    NodeStatus,
    Pod,
    PodStatus,
    ResourceSlice,
    Secret,
    StatefulSet,
    WebhookConfiguration,
)
from services.operator.other_gpus import has_gpus_of_others
from shared.formats import UNREADABLE
from shared.model import names
from shared.model.grant import decode_grant, serving_node
from shared.model.neighbours import Neighbourhood, neighbourhood
from shared.model.strategies import REMOTE

PART_OF = {"app.kubernetes.io/part-of": "kerf"}


class NatsState(msgspec.Struct, frozen=True, kw_only=True):
    """What the NATS servers say of themselves. `problem`: why they could not be asked."""

    problem: str = "not asked yet"
    servers: int = 0
    stale: tuple[str, ...] = ()
    """Servers that still serve an earlier certificate, or know the users' earlier permissions."""


def is_own(pod: Pod) -> bool:
    return PART_OF.items() <= pod.metadata.labels.items()


class Observed:
    def __init__(self, *, enrolment: bool = True) -> None:
        """`enrolment`: whether the operator enrols nodes; else those with the label are Kerf's as they are."""
        self.enrolment = enrolment
        self.nats = NatsState()
        self.secrets: dict[str, Secret] = {}
        self.lost: dict[str, Secret] = {}
        """Secrets that were there and are gone: what they held is put back, for servers and clients run with it."""
        self.maps: dict[str, ConfigMap] = {}
        self.webhooks: WebhookConfiguration | None = None
        self.policy: AdmissionPolicy | None = None
        """Which completes pods in Kerf's own words."""
        self.roles: dict[str, ClusterRole] = {}
        self.bindings: dict[str, ClusterRoleBinding] = {}
        self.nodes: dict[str, Node] = {}
        self.neighbours: dict[str, Neighbourhood] = {}
        """What other systems say of each node."""
        self.slices: dict[str, str] = {}
        """ResourceSlices of NVIDIA's DRA driver, and the nodes whose devices they offer."""
        self.grants: Counter[str] = Counter()
        """Running pods with grants, by the node of their GPUs, and by their own where that is another one."""
        self.others: dict[str, dict[str, str]] = {}
        """Pods with GPUs of other systems, as namespace/name by uid, by node."""
        self.accounts: Counter[tuple[str, str]] = Counter()
        """Pods that have not ended, by the namespace and name of their ServiceAccount."""
        self.dirty: set[str] = set()
        """Nodes to look at."""
        self.stateful_set: StatefulSet | None = None
        """That of the NATS servers."""
        self.own: dict[str, Pod] = {}
        """Kerf's pods, by uid."""
        self._pods: dict[str, Pod] = {}

    def put(self, seen: Any) -> None:
        """An object that exists, in its newest version."""
        name = seen.metadata.name
        match seen:
            case Secret():
                self.secrets[name] = seen
                self.lost.pop(name, None)
            case ConfigMap():
                self.maps[name] = seen
            case WebhookConfiguration():
                self.webhooks = seen
            case AdmissionPolicy():
                self.policy = seen
            case ClusterRole():
                self.roles[name] = seen
            case ClusterRoleBinding():
                self.bindings[name] = seen
            case Node():
                enrolled = enrolment.enrolled(seen) if self.enrolment else enrolment.wanted(seen)
                self.neighbours[name] = neighbourhood(seen.metadata.labels, seen.status.allocatable, enrolled=enrolled)
                self.nodes[name] = msgspec.structs.replace(seen, status=NodeStatus())
                self.dirty.add(name)
            case ResourceSlice():
                # Without devices it is the part of a pool that counts what they share.
                self.slices[name] = seen.spec.node_name if seen.spec.devices else ""
            case Pod():
                self._count(self._pods.pop(seen.metadata.uid, None), -1)
                # Pods are many, and of the others' containers and conditions nothing more is asked.
                spec = msgspec.structs.replace(seen.spec, containers=(), init_containers=())
                bare = msgspec.structs.replace(seen, spec=spec, status=PodStatus(phase=seen.status.phase))
                self._note_others(seen, there=has_gpus_of_others(seen))
                self._pods[seen.metadata.uid] = bare
                self._count(bare, 1)
                if is_own(seen):
                    self.own[seen.metadata.uid] = seen
            case StatefulSet():
                self.stateful_set = seen

    def gone(self, seen: Any) -> None:
        """An object that was deleted."""
        name = seen.metadata.name
        match seen:
            case Secret():
                if name in self.secrets:
                    self.lost[name] = self.secrets.pop(name)
            case ConfigMap():
                self.maps.pop(name, None)
            case WebhookConfiguration():
                self.webhooks = None
            case AdmissionPolicy():
                self.policy = None
            case ClusterRole():
                self.roles.pop(name, None)
            case ClusterRoleBinding():
                self.bindings.pop(name, None)
            case Node():
                self.nodes.pop(name, None)
                self.neighbours.pop(name, None)
                self.dirty.discard(name)
            case ResourceSlice():
                self.slices.pop(name, None)
            case Pod():
                self._count(self._pods.pop(seen.metadata.uid, None), -1)
                self._note_others(seen, there=False)
                self.own.pop(seen.metadata.uid, None)
            case StatefulSet():
                self.stateful_set = None

    def _count(self, pod: Pod | None, by: int) -> None:
        if pod is None or pod.status.phase in TERMINAL:
            return
        spec = pod.spec
        self.accounts[pod.metadata.namespace, spec.service_account_name or "default"] += by
        grant = pod.metadata.annotations.get(names.ANNOTATION_GRANT)
        if not spec.node_name or grant is None:
            return
        for name in {spec.node_name, _serving_node(grant) or spec.node_name}:
            self.grants[name] += by
            node = self.nodes.get(name)
            # Of all pods only those of nodes that leave change what is to be done.
            if node is not None and not enrolment.wanted(node):
                self.dirty.add(name)

    def _note_others(self, pod: Pod, *, there: bool) -> None:
        name, uid = pod.spec.node_name, pod.metadata.uid
        known = self.others.get(name, {})
        if there == (uid in known):
            return
        if there:
            self.others.setdefault(name, {})[uid] = f"{pod.metadata.namespace}/{pod.metadata.name}"
        else:
            del known[uid]
            if not known:
                del self.others[name]
        node = self.nodes.get(name)
        if node is not None and enrolment.waits(node):
            self.dirty.add(name)

    def agents_on(self, node: str, namespace: str, account: str) -> int:
        """Pods of agents on this node that have not ended."""
        return sum(
            pod.spec.node_name == node
            and (pod.metadata.namespace, pod.spec.service_account_name) == (namespace, account)
            and pod.status.phase not in TERMINAL
            for pod in self.own.values()
        )

    def others_on(self, node: str) -> tuple[str, ...]:
        """Pods with GPUs of other systems on this node, as namespace/name, in their order."""
        return tuple(sorted(self.others.get(node, {}).values()))

    @property
    def occupied(self) -> dict[str, tuple[str, ...]]:
        """Nodes that wait to be enrolled, and the pods for which they wait."""
        waits = (n for n in sorted(self.others) if (node := self.nodes.get(n)) and enrolment.waits(node))
        return {name: self.others_on(name) for name in waits}

    @property
    def servers(self) -> list[Pod]:
        """The pods of the NATS servers' StatefulSet."""
        owner = self.stateful_set.metadata.uid if self.stateful_set else ""
        return [pod for pod in self.own.values() if owner in (one.uid for one in pod.metadata.owner_references)]

    def secret(self, name: str) -> Secret:
        """As observed; without data where there is none."""
        return self.secrets.get(name, Secret())

    @property
    def bundle(self) -> str:
        """The CAs that clients trust, in PEM."""
        return self.maps.get(BUNDLE, ConfigMap()).data.get("ca.crt", "")

    @property
    def enrolled(self) -> int:
        return sum(enrolment.enrolled(node) for node in self.nodes.values())

    def ends(self) -> dict[tuple[str, ...], float]:
        """When each certificate ends, in Unix seconds."""
        return {(name,): pki.not_after(certificate) for name, certificate in self._certificates()}

    def begins(self) -> dict[tuple[str, ...], float]:
        """When each certificate begins, in Unix seconds."""
        return {(name,): pki.not_before(certificate) for name, certificate in self._certificates()}

    def certificate(self, name: str) -> x509.Certificate | None:
        """None where there is none, or it cannot be read."""
        return pki.read(self.secret(name).text("tls.crt"))

    def certificate_end(self, name: str) -> float:
        """0 where there is none."""
        found = self.certificate(name)
        return pki.not_after(found) if found else 0.0

    def _certificates(self) -> Iterator[tuple[str, x509.Certificate]]:
        for name in (AUTHORITY, ADMISSION_TLS, NATS_TLS):
            if found := self.certificate(name):
                yield name, found


def _serving_node(grant: str) -> str:
    """The node that serves a pod's GPU over the network; empty where it is the pod's own, or cannot be read."""
    if f'"{REMOTE}"' not in grant:
        return ""
    try:
        return serving_node(decode_grant(grant))
    except UNREADABLE:
        return ""
