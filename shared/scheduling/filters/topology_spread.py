from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.affinity import LabelSelector, TopologySpreadConstraint
from shared.model.selectors import labels_match, node_selector_matches, untolerated
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.inter_pod import labels_of, with_label_keys
from shared.scheduling.filters.remedies import Change, Remedy, specified


def _soften(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001
    spec = state.pod.spec
    softer = tuple(replace(c, when_unsatisfiable="ScheduleAnyway") for c in spec.topology_spread_constraints)
    yield Change(
        "spread",
        "fits with whenUnsatisfiable: ScheduleAnyway in its topologySpreadConstraints",
        specified(state, replace(spec, topology_spread_constraints=softer)),
    )


class TopologySpread(Filter):
    """topologySpreadConstraints with DoNotSchedule, as kube-scheduler's PodTopologySpread counts them.

    Domains are counted over nodes that have all the constraints' topology keys and pass the constraint's node affinity
    and taint policies; the minimum is 0 while there are fewer domains than minDomains.
    """

    name = "topology-spread"
    scope = "cluster"
    remedies: ClassVar[Mapping[str, Remedy]] = {"spread": _soften, "spread-no-key": _soften}

    def concerns(self, pod: PodState, book: Book) -> bool:
        return bool(pod.spread)

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        hard = pod.spread
        if not hard:
            return None
        keys = [c.topology_key for c in hard]
        counted = [_counted(c, keys, pod, book) for c in hard]

        def check(node: NodeState) -> Reason | None:
            if node.object is None:
                return None
            labels = node.object.metadata.labels
            for constraint, counts, least, myself in counted:
                value = labels.get(constraint.topology_key)
                if value is None:
                    return Reason(
                        code="spread-no-key",
                        sentence=f"the node has no label {constraint.topology_key}, by which the pod wants to be "
                        "spread",
                        helps=f"label the node with {constraint.topology_key}",
                    )
                skew = counts.get(value, 0) + myself - least
                if skew > constraint.max_skew:
                    return Reason(
                        code="spread",
                        sentence=f"{constraint.topology_key}={value} would have {skew} more matching pods than the "
                        f"emptiest domain, {constraint.max_skew} allowed",
                        helps=f"allow a maxSkew of {skew}, or free another {constraint.topology_key}",
                    )
            return None

        return check


def _counted(
    constraint: TopologySpreadConstraint, keys: list[str], pod: PodState, book: Book
) -> tuple[TopologySpreadConstraint, dict[str, int], int, int]:
    """The constraint, matching pods by domain, those of the emptiest domain, and how many the pod itself would add."""
    selector = spread_selector(constraint, pod)
    counts = count_domains(constraint, selector, keys, pod, book)
    least = 0 if len(counts) < (constraint.min_domains or 1) else min(counts.values(), default=0)
    return constraint, counts, least, int(labels_match(selector, pod.pod.metadata.labels))


def spread_selector(constraint: TopologySpreadConstraint, pod: PodState) -> LabelSelector | None:
    return with_label_keys(constraint.label_selector, pod.pod, constraint.match_label_keys)


def count_domains(
    constraint: TopologySpreadConstraint, selector: LabelSelector | None, keys: list[str], pod: PodState, book: Book
) -> dict[str, int]:
    """Matching pods by domain, over the nodes that count. As in kube-scheduler an empty selector matches no pod
    here."""
    spec = pod.pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    matches_all = selector is not None and not selector.match_labels and not selector.match_expressions
    counts: dict[str, int] = {}
    placed = Counter(
        other.charged
        for group in book.placed.within(pod.pod.metadata.namespace)
        if not matches_all and labels_match(selector, labels_of(group))
        for other in group.values()
        if other.pod.metadata.deletion_timestamp is None
    )
    for node in book.nodes.values():
        if node.object is None or any(key not in node.object.metadata.labels for key in keys):
            continue
        labels = node.object.metadata.labels
        if constraint.node_affinity_policy == "Honor" and (
            any(labels.get(k) != v for k, v in spec.node_selector.items())
            or not node_selector_matches(required, node.object)
        ):
            continue
        if constraint.node_taints_policy == "Honor" and untolerated(
            node.object.spec.taints, spec.tolerations, ("NoSchedule", "NoExecute")
        ):
            continue
        value = labels[constraint.topology_key]
        counts[value] = counts.get(value, 0) + placed[node.name]
    return counts
