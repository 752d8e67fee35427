"""RayClusters: a head, and groups of workers.

What must be there at once is counted as KubeRay counts it for Volcano (`batchscheduler/volcano`): the head, and of each
group its minReplicas, or its replicas where it has no such minimum.
"""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec
from shared.model.subgroup import Subgroup

HEAD = "headgroup"
"""The head's value of the label ray.io/group."""


class _Workers(Spec, frozen=True):
    group_name: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    num_of_hosts: int | None = None
    suspend: bool | None = None

    @property
    def least(self) -> int:
        return 0 if self.suspend else (self.min_replicas or self.replicas or 0) * (self.num_of_hosts or 1)


class RayClusterSpec(Spec, frozen=True):
    worker_group_specs: tuple[_Workers, ...] | None = None


def read(spec: RayClusterSpec) -> dict[str, Any]:
    workers = (Subgroup(name=one.group_name, minimum=one.least) for one in spec.worker_group_specs or ())
    return {"subgroups": (Subgroup(name=HEAD, minimum=1), *workers)}
