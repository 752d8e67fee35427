from __future__ import annotations

from services.placement.scores.base import ClusterScore, Rate
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.model.affinity import WeightedPodAffinityTerm
from shared.scheduling.filters.inter_pod import domain_of, placed_matching
from shared.scheduling.filters.topology_spread import count_domains, spread_selector


class PreferredPods(ClusterScore):
    """Preferred pod affinity and anti-affinity: weights of matching pods in the node's domains, scaled to the best."""

    name = "preferred-pods"
    weight = 20

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        affinity = pod.pod.spec.affinity
        near = (
            affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution
            if affinity and affinity.pod_affinity
            else ()
        )
        away = (
            affinity.pod_anti_affinity.preferred_during_scheduling_ignored_during_execution
            if affinity and affinity.pod_anti_affinity
            else ()
        )
        if not near and not away:
            return None
        points: dict[tuple[str, str], int] = {}
        for terms, sign in ((near, 1), (away, -1)):
            for term in terms:
                _count(term, sign, pod, book, points)
        low, high = min(points.values(), default=0), max(points.values(), default=0)
        low, high = min(low, 0), max(high, 0)

        def rate(node: NodeState) -> int:
            if node.object is None or low == high:
                return 0
            keys = {key for key, _ in points}
            total = sum(points.get((key, node.object.metadata.labels.get(key, "")), 0) for key in keys)
            return max(0, min(1000, 1000 * (total - low) // (high - low)))

        return rate


def _count(
    weighted: WeightedPodAffinityTerm, sign: int, pod: PodState, book: Book, points: dict[tuple[str, str], int]
) -> None:
    term = weighted.pod_affinity_term
    for state in placed_matching(term, pod.pod, book):
        value = domain_of(state, term.topology_key, book)
        if value is not None:
            key = (term.topology_key, value)
            points[key] = points.get(key, 0) + sign * weighted.weight


class PreferredSpread(ClusterScore):
    """topologySpreadConstraints with ScheduleAnyway: the emptier the node's domain, the better."""

    name = "preferred-spread"
    weight = 20

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        soft = [c for c in pod.pod.spec.topology_spread_constraints if c.when_unsatisfiable == "ScheduleAnyway"]
        if not soft:
            return None
        counted = [(c, count_domains(c, spread_selector(c, pod), [c.topology_key], pod, book)) for c in soft]

        def rate(node: NodeState) -> int:
            if node.object is None:
                return 0
            total = 0
            for constraint, counts in counted:
                value = node.object.metadata.labels.get(constraint.topology_key)
                most = max(counts.values(), default=0)
                total += 0 if value is None else 1000 * (most - counts.get(value, 0) + 1) // (most + 1)
            return total // len(counted)

        return rate
