from __future__ import annotations

from collections import Counter, defaultdict

from services.placement.scores.base import ClusterScore, Rate
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.scheduling.filters.inter_pod import placed_matching, pods_by_domain
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
        points: dict[str, Counter[str]] = defaultdict(Counter)
        for terms, sign in ((near, 1), (away, -1)):
            for weighted in terms:
                term = weighted.pod_affinity_term
                for group in placed_matching(term, pod.pod, book):
                    for value, count in pods_by_domain(group, term.topology_key, book).items():
                        points[term.topology_key][value] += sign * weighted.weight * count
        every = [amount for counts in points.values() for amount in counts.values()]
        low, high = min(every, default=0), max(every, default=0)
        low, high = min(low, 0), max(high, 0)

        def rate(node: NodeState) -> int:
            if node.object is None or low == high:
                return 0
            labels = node.object.metadata.labels
            total = sum(counts[labels.get(key, "")] for key, counts in points.items())
            return max(0, min(1000, 1000 * (total - low) // (high - low)))

        return rate


class PreferredSpread(ClusterScore):
    """topologySpreadConstraints with ScheduleAnyway: the emptier the node's domain, the better."""

    name = "preferred-spread"
    weight = 20

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        soft = [c for c in pod.pod.spec.topology_spread_constraints if c.when_unsatisfiable == "ScheduleAnyway"]
        if not soft:
            return None
        counted = [
            (c.topology_key, counts, max(counts.values(), default=0))
            for c in soft
            for counts in (count_domains(c, spread_selector(c, pod), [c.topology_key], pod, book),)
        ]

        def rate(node: NodeState) -> int:
            if node.object is None:
                return 0
            total = 0
            for key, counts, most in counted:
                value = node.object.metadata.labels.get(key)
                total += 0 if value is None else 1000 * (most - counts.get(value, 0) + 1) // (most + 1)
            return total // len(counted)

        return rate
