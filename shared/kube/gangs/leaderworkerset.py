"""LeaderWorkerSets: groups of a leader and its workers; each group is a gang.

With the startup policy LeaderReady the workers' pods are created when the leader is ready, and with an exclusive
topology when the leader has a node; their node selector names its topology. Leader and workers are gangs of their
own then. A group keeps the size that it was made with, which its pods have annotated
(`shared.model.gang.with_group_size`): the set may have another one by now. Sources: kubernetes-sigs/lws
`api/leaderworkerset/v1/leaderworkerset_types.go`, `pkg/controllers/pod_controller.go`.
"""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec
from shared.model.gang import LWS_LEADER, LWS_WORKERS
from shared.model.kube_object import Labels
from shared.model.subgroup import Subgroup

EXCLUSIVE_TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
"""An annotation of the set. It does not matter what it says."""


class _Template(Spec, frozen=True):
    size: int | None = None


class LeaderWorkerSetSpec(Spec, frozen=True):
    leader_worker_template: _Template = _Template()
    startup_policy: str = ""


def read(spec: LeaderWorkerSetSpec, annotations: Labels) -> dict[str, Any]:
    workers = max(0, (spec.leader_worker_template.size or 1) - 1)
    if spec.startup_policy == "LeaderReady" or EXCLUSIVE_TOPOLOGY in annotations:
        return {"parts": {LWS_LEADER: 1, LWS_WORKERS: workers}}
    return {"subgroups": (Subgroup(name=LWS_LEADER, minimum=1), Subgroup(name=LWS_WORKERS, minimum=workers))}
