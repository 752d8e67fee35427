"""The Workload of Kubernetes 1.35: groups of pods that are gangs of their own."""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec
from shared.kube.gangs.pod_group import Policy, minimum_of


class _Group(Spec, frozen=True):
    name: str = ""
    policy: Policy | None = None


class WorkloadSpec(Spec, frozen=True):
    pod_groups: tuple[_Group, ...] = ()


def read(spec: WorkloadSpec) -> dict[str, Any]:
    return {"parts": {group.name: minimum_of(group.policy) for group in spec.pod_groups}}
