"""Reads these objects into `shared.model.objects.Gang`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shared.kube.gangs import (
    job,
    jobset,
    kubeflow,
    leaderworkerset,
    pod_group,
    podgang,
    raycluster,
    workload,
)
from shared.model.gang import POD_GROUP
from shared.model.kube_object import Labels, Meta
from shared.model.objects import Gang


class _SourceMeta(Meta, frozen=True, kw_only=True):
    generation: int = 0


class _Source(msgspec.Struct, frozen=True):
    """One object of any of these kinds. Its spec and status are decoded once its kind is known."""

    metadata: _SourceMeta = _SourceMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


Reader = Callable[[Any, Labels], dict[str, Any]]
"""The fields of Gang that an object's spec and its annotations give."""


def _by_spec(read: Callable[[Any], dict[str, Any]]) -> Reader:
    return lambda spec, _: read(spec)


SOURCES: dict[str, tuple[type[Any], Reader]] = {
    "podgroup": (pod_group.PodGroupSpec, _by_spec(pod_group.read)),
    "workload": (workload.WorkloadSpec, _by_spec(workload.read)),
    "jobset": (jobset.JobSetSpec, jobset.read),
    "job": (job.JobSpec, _by_spec(job.read)),
    "raycluster": (raycluster.RayClusterSpec, _by_spec(raycluster.read)),
    "podgang": (podgang.PodGangSpec, _by_spec(podgang.read)),
    "leaderworkerset": (leaderworkerset.LeaderWorkerSetSpec, leaderworkerset.read),
}
"""How each kind is read, besides those of kubeflow.org: its spec, and its reader."""


class GangDecoder:
    """One kind of source. `decode` raises msgspec.DecodeError, and ValidationError where a field has another form."""

    def __init__(self, title: str, spec: type[Any], read: Reader) -> None:
        self._title = title
        self._source = msgspec.json.Decoder(_Source)
        self._spec: msgspec.json.Decoder[Any] = msgspec.json.Decoder(spec)
        self._status = msgspec.json.Decoder(pod_group.PodGroupStatus)
        self._read = read

    def decode(self, raw: bytes | msgspec.Raw) -> Gang:
        source = self._source.decode(raw)
        meta = source.metadata
        kept = Meta(
            name=f"{self._title}/{meta.name}",
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        fields = self._read(self._spec.decode(source.spec), meta.annotations)
        if self._title == POD_GROUP:
            status = self._status.decode(source.status)
            fields |= {"scheduled": pod_group.scheduled(status), "generation": meta.generation}
        return Gang(metadata=kept, **fields)


def decoder_of(plural: str, group: str) -> GangDecoder:
    """By kind and API: ("jobsets", "jobset.x-k8s.io"). Raises KeyError."""
    kind = plural.removesuffix("s")
    title = f"{kind}.{group}"
    if group == "kubeflow.org":
        return GangDecoder(title, kubeflow.KubeflowSpec, _by_spec(kubeflow.read))
    if kind not in SOURCES:
        raise KeyError(f"{title} says nothing of gangs")
    return GangDecoder(title, *SOURCES[kind])
