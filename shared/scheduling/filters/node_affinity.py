from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.selectors import node_selector_matches
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Change, Remedy, dropping, specified


def _unselective(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    spec, labels = state.pod.spec, {} if node.object is None else node.object.metadata.labels
    missed = next((key for key, value in spec.node_selector.items() if labels.get(key) != value), None)
    kept = {key: value for key, value in spec.node_selector.items() if key != missed}
    yield Change("node-selector", reason.helps, specified(state, replace(spec, node_selector=kept)))


class NodeAffinity(Filter):
    """spec.nodeSelector and required node affinity; both must hold."""

    name = "node-affinity"
    scope = "node"
    reads = ("pod.spec.node_selector", "pod.spec.affinity.node_affinity")
    reads_node = ()
    remedies: ClassVar[Mapping[str, Remedy]] = {
        "node-selector": _unselective,
        "node-affinity": dropping("node_affinity", "node-affinity"),
    }

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        spec = pod.pod.spec
        wanted = spec.node_selector
        affinity = spec.affinity.node_affinity if spec.affinity else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        if not wanted and required is None:
            return None

        def check(node: NodeState) -> Reason | None:
            if node.object is None:
                return None  # the taint filter reports this
            labels = node.object.metadata.labels
            for key, value in wanted.items():
                if labels.get(key) != value:
                    return Reason(
                        code="node-selector",
                        sentence=f"the pod selects nodes with {key}={value}, the node has {key}={labels[key]}"
                        if key in labels
                        else f"the pod selects nodes with {key}={value}, the node has no such label",
                        helps=f"drop {key} from nodeSelector, or label a node {key}={value}",
                    )
            if not node_selector_matches(required, node.object):
                return Reason(
                    code="node-affinity",
                    sentence="the pod's required node affinity does not match the node",
                    helps="widen the required node affinity",
                )
            return None

        return check
