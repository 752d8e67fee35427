"""Objects that say how many pods belong together, of several APIs: read into one form, `shared.model.objects.Gang`.

A missing field counts as its API's default. `resources.GANG_SOURCES` says where these objects are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from shared.model.kube_object import Meta
from shared.model.objects import Gang


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _GangPolicy(_Spec, frozen=True):
    min_count: int = 0


class _Policy(_Spec, frozen=True):
    gang: _GangPolicy | None = None


class _Level(_Spec, frozen=True):
    key: str = ""


class _Constraints(_Spec, frozen=True):
    topology: tuple[_Level, ...] = ()


class _KaiTopology(_Spec, frozen=True):
    required_topology_level: str = ""
    preferred_topology_level: str = ""


class _PodGroupSpec(_Spec, frozen=True):
    """All kinds of PodGroup: minMember of coscheduling, Volcano and KAI, schedulingPolicy of Kubernetes."""

    min_member: int = 0
    schedule_timeout_seconds: int | None = None
    topology_constraint: _KaiTopology | None = None
    scheduling_policy: _Policy | None = None
    scheduling_constraints: _Constraints | None = None


class _WorkloadGroup(_Spec, frozen=True):
    name: str = ""
    policy: _Policy | None = None


class _WorkloadSpec(_Spec, frozen=True):
    pod_groups: tuple[_WorkloadGroup, ...] = ()


class _JobSpec(_Spec, frozen=True):
    parallelism: int | None = None
    completions: int | None = None

    @property
    def at_once(self) -> int:
        wide = 1 if self.parallelism is None else self.parallelism
        return wide if self.completions is None else min(wide, self.completions)


class _JobTemplate(_Spec, frozen=True):
    spec: _JobSpec = _JobSpec()


class _ReplicatedJob(_Spec, frozen=True):
    name: str = ""
    replicas: int = 1
    template: _JobTemplate = _JobTemplate()
    depends_on: tuple[dict[str, Any], ...] | None = None

    @property
    def pods(self) -> int:
        return self.replicas * self.template.spec.at_once


class _StartupPolicy(_Spec, frozen=True):
    startup_policy_order: str = ""


class _JobSetSpec(_Spec, frozen=True):
    replicated_jobs: tuple[_ReplicatedJob, ...] = ()
    startup_policy: _StartupPolicy | None = None


class _Replicas(_Spec, frozen=True):
    replicas: int | None = None


class _SchedulingPolicy(_Spec, frozen=True):
    min_available: int | None = None
    schedule_timeout_seconds: int | None = None


class _RunPolicy(_Spec, frozen=True):
    scheduling_policy: _SchedulingPolicy | None = None


class _ElasticPolicy(_Spec, frozen=True):
    min_replicas: int | None = None


class _KubeflowSpec(_Spec, frozen=True):
    pytorch_replica_specs: dict[str, _Replicas] = {}
    tf_replica_specs: dict[str, _Replicas] = {}
    mpi_replica_specs: dict[str, _Replicas] = {}
    xgb_replica_specs: dict[str, _Replicas] = {}
    paddle_replica_specs: dict[str, _Replicas] = {}
    jax_replica_specs: dict[str, _Replicas] = {}
    run_policy: _RunPolicy | None = None
    elastic_policy: _ElasticPolicy | None = None
    launcher_creation_policy: str = ""


class _Source(msgspec.Struct, frozen=True):
    """One object of any of these kinds. Its spec is decoded once its kind is known."""

    metadata: Meta = Meta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")


S = TypeVar("S")


def _pod_group(spec: _PodGroupSpec) -> dict[str, Any]:
    policy, constraints, kai = (
        spec.scheduling_policy,
        spec.scheduling_constraints,
        spec.topology_constraint or _KaiTopology(),
    )
    return {
        "minimum": spec.min_member if policy is None else _minimum(policy),
        "timeout_s": spec.schedule_timeout_seconds or 0,
        "required": constraints.topology[0].key
        if constraints and constraints.topology
        else kai.required_topology_level,
        "preferred": kai.preferred_topology_level,
    }


def _minimum(policy: _Policy | None) -> int:
    return policy.gang.min_count if policy is not None and policy.gang is not None else 0


def _workload(spec: _WorkloadSpec) -> dict[str, Any]:
    return {"parts": {group.name: _minimum(group.policy) for group in spec.pod_groups}}


def _job(spec: _JobSpec) -> dict[str, Any]:
    return {"minimum": spec.at_once}


def _jobset(spec: _JobSetSpec) -> dict[str, Any]:
    """If its jobs start one after the other, waiting for all of them at once would never end."""
    in_order = spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"
    if in_order or any(job.depends_on for job in spec.replicated_jobs):
        return {"parts": {job.name: job.pods for job in spec.replicated_jobs}}
    return {"minimum": sum(job.pods for job in spec.replicated_jobs)}


def _kubeflow(spec: _KubeflowSpec) -> dict[str, Any]:
    replicas = {
        role: 1 if of.replicas is None else of.replicas
        for specs in (
            spec.pytorch_replica_specs,
            spec.tf_replica_specs,
            spec.mpi_replica_specs,
            spec.xgb_replica_specs,
            spec.paddle_replica_specs,
            spec.jax_replica_specs,
        )
        for role, of in specs.items()
    }
    if spec.launcher_creation_policy == "WaitForWorkersReady":
        replicas.pop("Launcher", None)  # it is made when the workers run
    if spec.elastic_policy is not None and spec.elastic_policy.min_replicas is not None and "Worker" in replicas:
        replicas["Worker"] = min(replicas["Worker"], spec.elastic_policy.min_replicas)
    asked = spec.run_policy.scheduling_policy if spec.run_policy is not None else None
    minimum = sum(replicas.values()) if asked is None or asked.min_available is None else asked.min_available
    return {"minimum": minimum, "timeout_s": (asked.schedule_timeout_seconds or 0) if asked is not None else 0}


class GangDecoder:
    """One kind of source. `decode` raises msgspec.DecodeError, and ValidationError where a field has another form."""

    def __init__(self, title: str, spec: type[S], read: Callable[[S], dict[str, Any]]) -> None:
        self._title = title
        self._source = msgspec.json.Decoder(_Source)
        self._spec: msgspec.json.Decoder[Any] = msgspec.json.Decoder(spec)
        self._read: Callable[[Any], dict[str, Any]] = read

    def decode(self, raw: bytes | msgspec.Raw) -> Gang:
        source = self._source.decode(raw)
        meta = source.metadata
        kept = Meta(
            name=f"{self._title}/{meta.name}",
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        return Gang(metadata=kept, **self._read(self._spec.decode(source.spec)))


def decoder_of(plural: str, group: str) -> GangDecoder:
    """By kind and API: ("jobsets", "jobset.x-k8s.io")."""
    kind = plural.removesuffix("s")
    title = f"{kind}.{group}"
    if group == "kubeflow.org":
        return GangDecoder(title, _KubeflowSpec, _kubeflow)
    match kind:
        case "podgroup":
            return GangDecoder(title, _PodGroupSpec, _pod_group)
        case "workload":
            return GangDecoder(title, _WorkloadSpec, _workload)
        case "jobset":
            return GangDecoder(title, _JobSetSpec, _jobset)
        case "job":
            return GangDecoder(title, _JobSpec, _job)
    raise KeyError(f"{title} says nothing of gangs")
