"""PodGangs of Grove: groups of pods, and groups of such groups that share a topology domain.

Source: ai-dynamo/grove `scheduler/api/core/v1alpha1/podgang.go`.
"""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec
from shared.model.subgroup import Subgroup


class _Pack(Spec, frozen=True):
    required: str | None = None
    preferred: str | None = None


class _Topology(Spec, frozen=True):
    pack_constraint: _Pack | None = None


class _PodGroup(Spec, frozen=True):
    name: str
    min_replicas: int = 0
    topology_constraint: _Topology | None = None


class _GroupOfGroups(Spec, frozen=True):
    name: str
    pod_group_names: tuple[str, ...] = ()
    topology_constraint: _Topology | None = None


class PodGangSpec(Spec, frozen=True):
    podgroups: tuple[_PodGroup, ...] = ()
    topology_constraint: _Topology | None = None
    topology_constraint_group_configs: tuple[_GroupOfGroups, ...] | None = None


def read(spec: PodGangSpec) -> dict[str, Any]:
    leaves = {}
    for one in spec.podgroups:
        required, preferred = _levels(one.topology_constraint)
        leaves[one.name] = Subgroup(name=one.name, minimum=one.min_replicas, required=required, preferred=preferred)
    inner = []
    for group in spec.topology_constraint_group_configs or ():
        required, preferred = _levels(group.topology_constraint)
        below = tuple(leaves.pop(name) for name in group.pod_group_names if name in leaves)
        if below:
            inner.append(Subgroup(name=f"group {group.name}", required=required, preferred=preferred, subgroups=below))
    required, preferred = _levels(spec.topology_constraint)
    return {"subgroups": (*inner, *leaves.values()), "required": required, "preferred": preferred}


def _levels(topology: _Topology | None) -> tuple[str, str]:
    """(required, preferred)"""
    pack = (topology or _Topology()).pack_constraint or _Pack()
    return pack.required or "", pack.preferred or ""
