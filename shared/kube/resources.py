"""Where each kind lives in the API."""

from __future__ import annotations

import urllib.parse
from typing import NamedTuple

from shared.contracts.policy import CONFIG_MAP, CONFIG_NAMESPACE
from shared.model import names
from shared.model.gang import KUBEFLOW_KINDS


class Resource(NamedTuple):
    kind: str
    prefix: str
    """api/v1 or apis/<group>/<version>"""
    plural: str
    namespaced: bool
    optional: bool = False
    """The server may lack this kind, which is no error: there are no such objects then."""
    only: tuple[str, str] = ("", "")
    """(namespace, name) of the one object that is followed; empty: all."""
    fields: str = ""
    """A field selector: only such objects are followed."""
    discovered: bool = False
    """The version in `prefix` is one of several: the server is asked which one it has (`discovery`)."""

    @property
    def group(self) -> str:
        """Empty for the core API."""
        return self.prefix.split("/")[1] if self.prefix.startswith("apis/") else ""

    @property
    def version(self) -> str:
        return self.prefix.split("/")[-1]

    @property
    def title(self) -> str:
        """As in `kubectl get`, with the version: podgroups.v1alpha1.scheduling.x-k8s.io. Kinds come from several
        groups."""
        return ".".join((self.plural, *reversed(self.prefix.split("/")[1:])))

    def collection(self, namespace: str = "") -> str:
        """The path of all objects, or those of one namespace."""
        if namespace and self.namespaced:
            return f"/{self.prefix}/namespaces/{quote(namespace)}/{self.plural}"
        return f"/{self.prefix}/{self.plural}"

    def path(self, name: str, namespace: str = "", *, sub: str = "") -> str:
        """The path of one object or of its subresource."""
        return f"{self.collection(namespace)}/{quote(name)}{'/' + sub if sub else ''}"


def quote(segment: str) -> str:
    """One path segment. Names come from the bus and must not change the path."""
    if segment in (".", ".."):
        return segment.replace(".", "%2E")
    return segment if segment.isalnum() else urllib.parse.quote(segment, safe="")


POD = Resource("Pod", "api/v1", "pods", True)
NODE = Resource("Node", "api/v1", "nodes", False)
EVENT = Resource("Event", "apis/events.k8s.io/v1", "events", True)
CLAIM = Resource("PersistentVolumeClaim", "api/v1", "persistentvolumeclaims", True)
VOLUME = Resource("PersistentVolume", "api/v1", "persistentvolumes", False)

DEVICE_CLAIM = Resource("ResourceClaim", "apis/resource.k8s.io/v1", "resourceclaims", True, True)
DEVICE_SLICE = Resource(
    "ResourceSlice", "apis/resource.k8s.io/v1", "resourceslices", False, True, fields=f"spec.driver={names.DRA_DRIVER}"
)

POLICY = Resource("ConfigMap", "api/v1", "configmaps", True, only=(CONFIG_NAMESPACE, CONFIG_MAP))


def _gang_source(prefix: str, plural: str) -> Resource:
    return Resource("Gang", prefix, plural, True, optional=True, discovered=True)


KUBERNETES_POD_GROUP = _gang_source("apis/scheduling.k8s.io/v1beta1", "podgroups")

GANG_SOURCES = (
    Resource("Gang", "apis/batch/v1", "jobs", True),
    KUBERNETES_POD_GROUP,
    _gang_source("apis/scheduling.k8s.io/v1alpha1", "workloads"),
    _gang_source("apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    _gang_source("apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    _gang_source("apis/scheduling.run.ai/v2alpha2", "podgroups"),
    _gang_source("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    _gang_source("apis/ray.io/v1", "rayclusters"),
    _gang_source("apis/scheduler.grove.io/v1alpha1", "podgangs"),
    _gang_source("apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    *(_gang_source("apis/kubeflow.org/v1", f"{kind.lower()}s") for kind in KUBEFLOW_KINDS),
)
"""Objects that say how many pods belong together. Most kinds come with software that a cluster may lack."""

REFLECTED = (
    # In the order in which a reader of a snapshot wants them: what pods refer to comes before pods.
    POLICY,
    NODE,
    Resource("Namespace", "api/v1", "namespaces", False),
    Resource("PriorityClass", "apis/scheduling.k8s.io/v1", "priorityclasses", False),
    Resource("ResourceQuota", "api/v1", "resourcequotas", True),
    Resource("PodDisruptionBudget", "apis/policy/v1", "poddisruptionbudgets", True),
    Resource("StorageClass", "apis/storage.k8s.io/v1", "storageclasses", False),
    Resource("CSINode", "apis/storage.k8s.io/v1", "csinodes", False),
    Resource("CSIDriver", "apis/storage.k8s.io/v1", "csidrivers", False),
    Resource("CSIStorageCapacity", "apis/storage.k8s.io/v1", "csistoragecapacities", True),
    VOLUME,
    CLAIM,
    DEVICE_CLAIM,
    DEVICE_SLICE,
    *GANG_SOURCES,
    POD,
)
"""All kinds of shared.model.kinds.KINDS; gangs come from many places."""

BY_KIND = {resource.kind: resource for resource in (*REFLECTED, EVENT) if resource not in GANG_SOURCES}
BY_PATH = {(resource.prefix, resource.plural): resource for resource in BY_KIND.values()}
