"""Selectors, affinity, tolerations and spread, as pods have them."""

from __future__ import annotations

from shared.model.kube_object import KubeObject, Labels


class Requirement(KubeObject, frozen=True):
    """One item of matchExpressions (labels or fields): In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(KubeObject, frozen=True):
    match_labels: Labels = {}
    match_expressions: tuple[Requirement, ...] = ()


class NodeSelectorTerm(KubeObject, frozen=True):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(KubeObject, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredNodeTerm(KubeObject, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(KubeObject, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodeTerm, ...] = ()


class PodAffinityTerm(KubeObject, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()

    @property
    def names_namespaces(self) -> bool:
        """Whether it is about other namespaces than its pod's, perhaps."""
        return bool(self.namespaces) or self.namespace_selector is not None


class WeightedPodAffinityTerm(KubeObject, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(KubeObject, frozen=True):
    """Both podAffinity and podAntiAffinity have this form."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(KubeObject, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(KubeObject, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(KubeObject, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()
