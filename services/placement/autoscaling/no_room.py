"""Taints nodes that look as if a waiting pod fitted on them, to an autoscaler that adds up requests, and where it does
not fit: two GPUs with 40 % left each have no place for 60 %.

Karpenter and Cluster Autoscaler start no node for a pod that fits, by their own sums, on a node that is there. Such a
pod would wait for ever. Both leave out nodes with a taint that the pod does not tolerate. So whatever new nodes an
autoscaler adds are at most those that the sums ask for, and pods that still find no place are counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from services.placement.autoscaling.rota import Rota
from shared.book.advertised import requested
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.commands import TaintNode
from shared.model.names import RESOURCE_QUOTA, TAINT_NO_ROOM
from shared.model.units import QuantityError, whole

HOLD_S = 5.0
"""A node must look free to waiting pods for so long before it is tainted: a pod may be about to be tried there."""
TROUBLE_HOLD_S = 60.0
"""The same for a node whose agent takes no slices now: it may be restarting."""
TURN_S = 1.0
_AT_ONCE = 100
_SHAPES_MOST = 64
_SHAPES_AGAIN_S = 1.0
_AGAIN_S = 3.0
"""How long the taint that was asked for may take to be seen."""


class Shape(msgspec.Struct, frozen=True):
    """What a waiting pod asks of a node, as an autoscaler adds it up."""

    cpu_milli: int
    memory_bytes: int
    ephemeral_bytes: int
    amounts: Mapping[str, int]
    selector: Mapping[str, str]


def shape_of(state: PodState) -> Shape:
    return Shape(
        cpu_milli=state.demand.cpu_milli,
        memory_bytes=state.demand.memory_bytes,
        ephemeral_bytes=state.demand.ephemeral_bytes,
        amounts=requested(state.pod),
        selector=state.pod.spec.node_selector,
    )


class NoRoom:
    def __init__(self, book: Book, waiting: Callable[[], Iterable[PodState]]) -> None:
        """`waiting`: pods that were tried and found no capacity, at least one of each shape."""
        self._book, self._waiting = book, waiting
        self._rota = Rota(TURN_S)
        self._since: dict[str, float] = {}
        """Since when a node looks free, by its name."""
        self._asked: dict[str, float] = {}
        self._requested: dict[str, dict[str, int]] = {}
        """What pods on nodes request, by uid."""
        self._shapes: list[Shape] = []
        self._shapes_at = float("-inf")

    def due(self, now: float) -> list[TaintNode]:
        if now - self._shapes_at >= _SHAPES_AGAIN_S:
            self._shapes, self._shapes_at = self._waiting_shapes(), now
        shapes = self._shapes
        out: list[TaintNode] = []
        for name in self._rota.next(self._book.nodes, _AT_ONCE, now):
            node = self._book.nodes.get(name)
            if node is None or node.object is None:
                continue
            looks_free = any(self._looks_free(node, shape) for shape in shapes)
            if not looks_free:
                self._since.pop(name, None)
            since = self._since.setdefault(name, now) if looks_free else now
            tainted = any(taint.key == TAINT_NO_ROOM for taint in node.object.spec.taints)
            # A node that begins to look free while it has the taint keeps it: more of it may just have been returned,
            # and then the pods are tried at once, and wait no longer.
            hold_s = TROUBLE_HOLD_S if node.agent_trouble else HOLD_S
            wanted = looks_free and (tainted or now - since >= hold_s)
            if wanted != tainted and now - self._asked.get(name, float("-inf")) >= _AGAIN_S:
                self._asked[name] = now
                out.append(TaintNode(node=name, key=TAINT_NO_ROOM, present=wanted))
        self._forget()
        return out

    def _waiting_shapes(self) -> list[Shape]:
        found: list[Shape] = []
        for state in self._waiting():
            shape = shape_of(state)
            if shape.amounts and shape not in found:
                found.append(shape)
                if len(found) == _SHAPES_MOST:
                    break
        return found

    def _looks_free(self, node: NodeState, shape: Shape) -> bool:
        if node.object is None or node.object.spec.unschedulable:
            return False
        allocatable = node.object.status.allocatable
        if RESOURCE_QUOTA not in allocatable:
            return False
        if (
            shape.cpu_milli > node.cpu_total - node.cpu_used
            or shape.memory_bytes > node.memory_total - node.memory_used
            or shape.ephemeral_bytes > max(0, node.ephemeral_total - node.ephemeral_used)
            or len(node.pods) >= node.pods_total
        ):
            return False
        labels = node.object.metadata.labels
        if any(labels.get(key) != value for key, value in shape.selector.items()):
            return False
        used: dict[str, int] = {}
        for state in node.pods.values():
            for key, amount in self._of(state).items():
                used[key] = used.get(key, 0) + amount
        return all(
            _whole(allocatable.get(key, 0)) - used.get(key, 0) >= amount for key, amount in shape.amounts.items()
        )

    def _of(self, state: PodState) -> dict[str, int]:
        known = self._requested.get(state.uid)
        if known is None:
            known = self._requested[state.uid] = requested(state.pod)
        return known

    def _forget(self) -> None:
        """Drops what is known of pods and nodes that are gone, now and then."""
        if len(self._requested) > 2 * len(self._book.pods) + 100:
            self._requested = {uid: known for uid, known in self._requested.items() if uid in self._book.pods}
        if len(self._asked) > 2 * len(self._book.nodes) + 100:
            self._asked = {name: at for name, at in self._asked.items() if name in self._book.nodes}


def _whole(amount: str | int) -> int:
    try:
        return whole(amount)
    except QuantityError:
        return 0
