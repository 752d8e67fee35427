"""The jobs of Kubeflow's training operator and MPI operator."""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec


class _Replicas(Spec, frozen=True):
    replicas: int | None = None


class _SchedulingPolicy(Spec, frozen=True):
    min_available: int | None = None
    schedule_timeout_seconds: int | None = None


class _RunPolicy(Spec, frozen=True):
    scheduling_policy: _SchedulingPolicy | None = None


class _ElasticPolicy(Spec, frozen=True):
    min_replicas: int | None = None


class KubeflowSpec(Spec, frozen=True):
    pytorch_replica_specs: dict[str, _Replicas] = {}
    tf_replica_specs: dict[str, _Replicas] = {}
    mpi_replica_specs: dict[str, _Replicas] = {}
    xgb_replica_specs: dict[str, _Replicas] = {}
    paddle_replica_specs: dict[str, _Replicas] = {}
    jax_replica_specs: dict[str, _Replicas] = {}
    run_policy: _RunPolicy | None = None
    elastic_policy: _ElasticPolicy | None = None
    launcher_creation_policy: str = ""


def read(spec: KubeflowSpec) -> dict[str, Any]:
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
