"""PodGroups: of Kubernetes, of the coscheduling plugin, of Volcano and of KAI.

Sources: kubernetes/api `scheduling`, kubernetes-sigs/scheduler-plugins, volcano-sh/apis `scheduling/v1beta1`,
NVIDIA/KAI-Scheduler `pkg/apis/scheduling/v2alpha2/podgroup_types.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shared.kube.gangs.base import Spec
from shared.model.gang import MOST_DEPTH, MOST_SUBGROUPS
from shared.model.objects import GroupCondition
from shared.model.subgroup import Subgroup

CONDITION = "PodGroupInitiallyScheduled"
_CONDITIONS = {"v1alpha2": "PodGroupScheduled"}
"""What versions call the condition, where it is not CONDITION: v1alpha2 of Kubernetes 1.36. The types are in
kubernetes/api `scheduling/v1alpha2/types.go` and `scheduling/v1beta1/types.go` (1.37)."""


def condition_type(version: str) -> str:
    """The type of the condition in this version of the API, such as v1beta1."""
    return _CONDITIONS.get(version, CONDITION)


class GangPolicy(Spec, frozen=True):
    min_count: int = 0


class Policy(Spec, frozen=True):
    gang: GangPolicy | None = None


class _Level(Spec, frozen=True):
    key: str = ""


class _Constraints(Spec, frozen=True):
    topology: tuple[_Level, ...] = ()


class _KaiTopology(Spec, frozen=True):
    required_topology_level: str = ""
    preferred_topology_level: str = ""


class _KaiSubgroup(Spec, frozen=True):
    name: str
    parent: str | None = None
    min_member: int | None = None
    min_sub_group: int | None = None
    topology_constraint: _KaiTopology | None = None


class PodGroupSpec(Spec, frozen=True):
    """All kinds of PodGroup: minMember of coscheduling, Volcano and KAI, schedulingPolicy of Kubernetes, subGroups of
    KAI, minTaskMember of Volcano."""

    min_member: int | None = None
    schedule_timeout_seconds: int | None = None
    topology_constraint: _KaiTopology | None = None
    scheduling_policy: Policy | None = None
    scheduling_constraints: _Constraints | None = None
    min_task_member: dict[str, int] | None = None
    sub_groups: tuple[_KaiSubgroup, ...] | None = None
    min_sub_group: int | None = None
    parent_composite_pod_group_name: str | None = None


class _Condition(Spec, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodGroupStatus(Spec, frozen=True):
    """Of Kubernetes' own PodGroups."""

    conditions: tuple[_Condition, ...] | None = None


def scheduled(status: PodGroupStatus) -> GroupCondition | None:
    """The condition on being scheduled, by any of its names. An object that a new version has stored may have both."""
    found = {one.type: one for one in status.conditions or ()}
    said = next((found[name] for name in (CONDITION, *_CONDITIONS.values()) if name in found), None)
    return None if said is None else GroupCondition(status=said.status, reason=said.reason, message=said.message)


def read(spec: PodGroupSpec) -> dict[str, Any]:
    policy, constraints, kai = (
        spec.scheduling_policy,
        spec.scheduling_constraints,
        spec.topology_constraint or _KaiTopology(),
    )
    return {
        "minimum": (spec.min_member or 0) if policy is None else minimum_of(policy),
        "timeout_s": spec.schedule_timeout_seconds or 0,
        "required": constraints.topology[0].key
        if constraints and constraints.topology
        else kai.required_topology_level,
        "preferred": kai.preferred_topology_level,
        "subgroups": _kai_tree(spec.sub_groups) if spec.sub_groups else _tasks(spec),
        "min_subgroups": spec.min_sub_group or 0,
        "parent": spec.parent_composite_pod_group_name or "",
    }


def minimum_of(policy: Policy | None) -> int:
    return policy.gang.min_count if policy is not None and policy.gang is not None else 0


def _tasks(spec: PodGroupSpec) -> tuple[Subgroup, ...]:
    """None where the whole needs fewer pods than its tasks together: Volcano then looks at the whole alone
    (`pkg/scheduler/api/job_info.go:CheckTaskReady`). Its controller writes a task's replicas where the job names no
    minimum for it, so this is every job with a small `minAvailable`."""
    tasks = spec.min_task_member or {}
    if (spec.min_member or 0) < sum(tasks.values()):
        return ()
    return tuple(Subgroup(name=task, minimum=least) for task, least in tasks.items())


def _kai_tree(found: Sequence[_KaiSubgroup]) -> tuple[Subgroup, ...]:
    """KAI writes the tree as a list, in which each names the one above it. Raises msgspec.ValidationError on a list
    that is no tree, or too large a one."""
    below: dict[str, list[_KaiSubgroup]] = {}
    for one in found:
        below.setdefault(one.parent or "", []).append(one)
    known = {one.name for one in found}
    if len(found) > MOST_SUBGROUPS or len(known) < len(found) or "" in known:
        raise msgspec.ValidationError(
            f"spec.subGroups has {len(found)} subgroups; at most {MOST_SUBGROUPS} with a name of its own each are read"
        )
    inside, reached = [""], 0
    for _ in range(MOST_DEPTH):
        inside = [one.name for name in inside for one in below.get(name, ())]
        reached += len(inside)
    if reached < len(found):
        raise msgspec.ValidationError(
            f"of spec.subGroups {len(found) - reached} are below an unknown parent, or more than {MOST_DEPTH} deep"
        )
    return _tree(below, "")


def _tree(below: Mapping[str, Sequence[_KaiSubgroup]], parent: str) -> tuple[Subgroup, ...]:
    topology = _KaiTopology()
    return tuple(
        Subgroup(
            name=one.name,
            minimum=one.min_member or 0,
            required=(one.topology_constraint or topology).required_topology_level,
            preferred=(one.topology_constraint or topology).preferred_topology_level,
            subgroups=_tree(below, one.name),
            min_subgroups=one.min_sub_group or 0,
        )
        for one in below.get(parent, ())
    )
