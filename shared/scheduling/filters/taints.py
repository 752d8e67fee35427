from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.affinity import Toleration
from shared.model.objects import Taint
from shared.model.selectors import untolerated
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Change, Remedy, specified

CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def _tolerate(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    spec, taints = state.pod.spec, () if node.object is None else node.object.spec.taints
    first = (
        CORDONED if reason.code == "cordoned" else untolerated(taints, spec.tolerations, ("NoSchedule", "NoExecute"))
    )
    if first is not None:
        tolerated = Toleration(key=first.key, operator="Equal", value=first.value, effect=first.effect)
        yield Change(
            reason.code, reason.helps, specified(state, replace(spec, tolerations=(*spec.tolerations, tolerated)))
        )


class Taints(Filter):
    """kube-scheduler's TaintToleration and NodeUnschedulable: NoSchedule and NoExecute taints need a toleration."""

    name = "taints"
    scope = "node"
    reads = ("pod.spec.tolerations",)
    reads_node = ()
    remedies: ClassVar[Mapping[str, Remedy]] = {"taint": _tolerate, "cordoned": _tolerate}

    def prepare(self, pod: PodState, book: Book) -> Check:
        tolerations = pod.pod.spec.tolerations

        def check(node: NodeState) -> Reason | None:
            if node.object is None:
                return Reason(code="node-unknown", sentence="Kubernetes knows no such node", helps="register the node")
            spec = node.object.spec
            if spec.unschedulable and untolerated((CORDONED,), tolerations, ("NoSchedule",)):
                return Reason(code="cordoned", sentence="the node is cordoned", helps=f"kubectl uncordon {node.name}")
            taint = untolerated(spec.taints, tolerations, ("NoSchedule", "NoExecute"))
            if taint is None:
                return None
            text = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            return Reason(
                code="taint",
                sentence=f"the node has the taint {text}, which the pod does not tolerate",
                helps=f"tolerate {text}",
            )

        return check
