"""RayClusters: a head, and groups of workers.

What must be there at once is the head, and of each group its minReplicas. Where that is 0, the API's default, it is the
replicas, unless Ray's autoscaler changes these: then the group may be empty, and each worker comes by itself. KubeRay
counts likewise for Volcano (`batchscheduler/volcano`), but without the autoscaler it takes the replicas in any case.
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

    def least(self, *, autoscaled: bool) -> int:
        replicas = self.min_replicas or (0 if autoscaled else self.replicas) or 0
        return 0 if self.suspend else replicas * (self.num_of_hosts or 1)


class RayClusterSpec(Spec, frozen=True):
    worker_group_specs: tuple[_Workers, ...] | None = None
    enable_in_tree_autoscaling: bool | None = None


def read(spec: RayClusterSpec) -> dict[str, Any]:
    autoscaled = bool(spec.enable_in_tree_autoscaling)
    workers = (
        Subgroup(name=one.group_name, minimum=one.least(autoscaled=autoscaled)) for one in spec.worker_group_specs or ()
    )
    return {"subgroups": (Subgroup(name=HEAD, minimum=1), *workers)}
