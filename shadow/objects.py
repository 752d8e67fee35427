"""What shadow mode keeps of pods and nodes, and the facts that a recording has.

Only what scheduling needs is decoded: no environment variable, command or volume content is kept or recorded.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec

from shared.model.kube_object import KubeObject, Meta
from shared.model.objects import Node, PodSpec

RECORDING_VERSION = 1
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""A copy of the whole manifest, with all that is left out here."""
ENDED = ("Succeeded", "Failed")


class SeenCondition(KubeObject, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Terminated(KubeObject, frozen=True):
    finished_at: str | None = None


class ContainerState(KubeObject, frozen=True):
    terminated: Terminated | None = None


class ContainerStatus(KubeObject, frozen=True):
    state: ContainerState = ContainerState()


class SeenStatus(KubeObject, frozen=True):
    phase: str = ""
    start_time: str | None = None
    conditions: tuple[SeenCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class SeenPod(KubeObject, tag="Pod", tag_field="kind", frozen=True):
    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: SeenStatus = SeenStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        return self.status.phase in ENDED

    def as_json(self) -> dict[str, Any]:
        """The pod as admission reads it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        document["metadata"].pop("annotationsFull", None)
        return document | {"spec": document.get("spec") or {}}


class Fact(msgspec.Struct, frozen=True, tag_field="fact", omit_defaults=True, kw_only=True):
    """A line of a recording. `at_s`: when it was seen, in seconds since 1970."""

    at_s: float


class Began(Fact, tag="began", frozen=True, kw_only=True):
    """The first line. What exists by then follows with the same time."""

    version: int = RECORDING_VERSION
    source: str = ""
    """Where it was recorded, for people."""
    namespaces: tuple[str, ...] = ()
    """Only their pods were seen; empty: all."""


class PodSeen(Fact, tag="pod", frozen=True, kw_only=True):
    pod: SeenPod


class PodGone(Fact, tag="pod-gone", frozen=True, kw_only=True):
    uid: str


class NodeSeen(Fact, tag="node", frozen=True, kw_only=True):
    node: Node


class NodeGone(Fact, tag="node-gone", frozen=True, kw_only=True):
    name: str


class Ended(Fact, tag="ended", frozen=True, kw_only=True):
    """The watching has ended. A recording that was cut off has none: its last fact ends it."""


AnyFact = Began | PodSeen | PodGone | NodeSeen | NodeGone | Ended


def trimmed_pod(pod: SeenPod) -> SeenPod:
    return msgspec.structs.replace(pod, metadata=_trimmed(pod.metadata))


def trimmed_node(node: Node, kept: Collection[str]) -> Node:
    """With these annotations alone: others change every few seconds, as heartbeats do."""
    notes = {key: value for key, value in node.metadata.annotations.items() if key in kept}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=notes))


def same_pod(one: SeenPod, other: SeenPod) -> bool:
    """Whether nothing that is kept has changed but the version."""
    return bool(_unversioned(one) == _unversioned(other))


def same_node(one: Node, other: Node) -> bool:
    """A node's heartbeat changes its version alone."""
    return bool(_unversioned(one) == _unversioned(other))


def _unversioned(seen: Any) -> Any:
    return msgspec.structs.replace(seen, metadata=msgspec.structs.replace(seen.metadata, resource_version=""))


def _trimmed(meta: Meta) -> Meta:
    if _LAST_APPLIED not in meta.annotations:
        return meta
    kept = {key: value for key, value in meta.annotations.items() if key != _LAST_APPLIED}
    return msgspec.structs.replace(meta, annotations=kept)


def seconds(text: str | None) -> float | None:
    """A time of Kubernetes in seconds since 1970; None where there is none, or it is no time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
