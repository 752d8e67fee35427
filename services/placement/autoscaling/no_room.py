"""Taints nodes that look as if a waiting pod fitted on them, to an autoscaler that adds up requests, and where it does
not fit: two GPUs with 40 % left each have no place for 60 %.

Karpenter and Cluster Autoscaler start no node for a pod that fits, by their own sums, on a node that is there. Such a
pod would wait for ever. Both leave out nodes with a taint that the pod does not tolerate. So whatever new nodes an
autoscaler adds are at most those that the sums ask for, and pods that still find no place are counted again.

A gang may fit in part: the node has room for some of its pods, and takes none of them alone. By its own sums an
autoscaler starts nodes for the others. With the taint it would start them for all, so such a node gets none before the
nodes for the others had time to come.

Where more nodes of a kind would not help there must be no taint, or an autoscaler would start one after the other for
ever: where the node's GPUs are not what the pod accepts, and where nothing runs on the node and it does not fit all the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from services.placement.autoscaling.rota import Rota
from services.placement.protocol import labels
from shared.book.accepts import GpuConstraints, gpu_constraints, mismatch
from shared.book.advertised import requested
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.commands import TaintNode
from shared.model.gpu import Gpu
from shared.model.names import RESOURCE_QUOTA, TAINT_LEAVING, TAINT_NO_ROOM
from shared.model.request import GpuAsk
from shared.model.units import QuantityError

HOLD_S = 5.0
"""A node must look free to waiting pods for so long before it is tainted: a pod may be about to be tried there."""
TROUBLE_HOLD_S = 60.0
"""The same for a node with an agent that takes no slices now: it may be restarting."""
IN_PART_HOLD_S = 600.0
"""The same for a node that has room for pods of a gang, but not for all of it."""
TURN_S = 1.0
_AT_ONCE = 100
WRITES_AT_ONCE = 10
"""A single pod can make all nodes of a cluster look free. Each write to a node goes to all that watch nodes."""
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
    constraints: GpuConstraints | None
    hardest: GpuAsk | None


def shape_of(state: PodState) -> Shape:
    return Shape(
        cpu_milli=state.demand.cpu_milli,
        memory_bytes=state.demand.memory_bytes,
        ephemeral_bytes=state.demand.ephemeral_bytes,
        amounts=requested(state.pod),
        selector=state.pod.spec.node_selector,
        constraints=gpu_constraints(state.request),
        hardest=None if state.request is None else state.request.hardest,
    )


def _fits_none(_state: PodState, _node: NodeState) -> bool:
    return False


class NoRoom:
    def __init__(
        self,
        book: Book,
        waiting: Callable[[], Iterable[PodState]],
        fits_in_part: Callable[[PodState, NodeState], bool] = _fits_none,
    ) -> None:
        """`waiting`: pods that were tried and found no capacity, at least one of each shape. `fits_in_part`: whether
        the node has room for this pod, which waits for others."""
        self._book, self._waiting, self._fits_in_part = book, waiting, fits_in_part
        self._rota = Rota(TURN_S)
        self._since: dict[str, float] = {}
        """Since when a node looks free to a pod for which it has no room, by its name."""
        self._in_part_since: dict[str, float] = {}
        """Since when a node has room for some pods of a gang and not for all."""
        self._asked: dict[str, float] = {}
        self._requested: dict[str, dict[str, int]] = {}
        """What pods on nodes request, by uid."""
        self._shapes: list[tuple[Shape, PodState]] = []
        self._counted: set[str] = set()
        """Resources that these request."""
        self._shapes_at = float("-inf")

    def due(self, now: float) -> list[TaintNode]:
        if now - self._shapes_at >= _SHAPES_AGAIN_S:
            self._shapes, self._shapes_at = self._waiting_shapes(), now
            self._counted = {key for shape, _ in self._shapes for key in shape.amounts}
        shapes = self._shapes
        out: list[TaintNode] = []
        for name in self._rota.next(self._book.nodes, _AT_ONCE, now):
            node = self._book.nodes.get(name)
            if node is None or node.object is None:
                continue
            seeming = self._looks_free_to(node, shapes)
            fits = {self._fits_in_part(state, node) for state in seeming}
            in_part, looks_free = True in fits, False in fits
            since_s = _lasting(self._since, name, now, looks_free)
            in_part_s = _lasting(self._in_part_since, name, now, in_part)
            tainted = any(taint.key == TAINT_NO_ROOM for taint in node.object.spec.taints)
            # A node that begins to look free while it has the taint keeps it: more of it may just have been returned,
            # and then the pods are tried at once, and wait no longer.
            hold_s = TROUBLE_HOLD_S if node.agent_trouble else HOLD_S
            wanted = (looks_free and (tainted or since_s >= hold_s)) or (in_part and in_part_s >= IN_PART_HOLD_S)
            if len(out) == WRITES_AT_ONCE:
                continue
            if wanted != tainted and now - self._asked.get(name, float("-inf")) >= _AGAIN_S:
                self._asked[name] = now
                out.append(TaintNode(node=name, key=TAINT_NO_ROOM, present=wanted))
        self._forget()
        return out

    def _waiting_shapes(self) -> list[tuple[Shape, PodState]]:
        """With a pod of each."""
        found: list[tuple[Shape, PodState]] = []
        for state in self._waiting():
            shape = shape_of(state)
            if shape.amounts and all(shape != known for known, _ in found):
                found.append((shape, state))
                if len(found) == _SHAPES_MOST:
                    break
        return found

    def _looks_free_to(self, node: NodeState, shapes: Sequence[tuple[Shape, PodState]]) -> list[PodState]:
        """The pods that seem to fit."""
        if not shapes or node.object is None or node.object.spec.unschedulable or labels.has_left(node.object):
            return []
        if RESOURCE_QUOTA not in node.extended_total or len(node.pods) >= node.pods_total:
            return []
        if any(taint.key == TAINT_LEAVING for taint in node.object.spec.taints):
            return []
        gpus = () if node.inventory is None else node.inventory.gpus
        if not node.grants and not node.agent_trouble and all(gpu.state == "healthy" for gpu in gpus):
            return []
        free = self._free(node)
        own = node.object.metadata.labels
        return [
            state
            for shape, state in shapes
            if shape.cpu_milli <= node.cpu_total - node.cpu_used
            and shape.memory_bytes <= node.memory_total - node.memory_used
            and shape.ephemeral_bytes <= max(0, node.ephemeral_total - node.ephemeral_used)
            and all(own.get(key) == value for key, value in shape.selector.items())
            and all(free.get(key, 0) >= amount for key, amount in shape.amounts.items())
            and _suits(gpus, shape)
        ]

    def _free(self, node: NodeState) -> dict[str, int]:
        """What is left of each resource, added up as an autoscaler does."""
        free = {key: node.extended_total[key] for key in self._counted if key in node.extended_total}
        for state in node.pods.values():
            for key, amount in self._of(state).items():
                if key in free:
                    free[key] -= amount
        return free

    def _of(self, state: PodState) -> dict[str, int]:
        known = self._requested.get(state.uid)
        if known is None:
            try:
                known = requested(state.pod)
            except QuantityError:
                known = {}  # a static pod's nonsense; Kerf grants nothing to it
            self._requested[state.uid] = known
        return known

    def _forget(self) -> None:
        """Drops what is known of pods and nodes that are gone, now and then."""
        if len(self._requested) > 2 * len(self._book.pods) + 100:
            self._requested = {uid: known for uid, known in self._requested.items() if uid in self._book.pods}
        if len(self._asked) > 2 * len(self._book.nodes) + 100:
            self._asked = {name: at for name, at in self._asked.items() if name in self._book.nodes}
        for times in (self._since, self._in_part_since):
            for name in times.keys() - self._book.nodes.keys():
                del times[name]


def _lasting(since: dict[str, float], name: str, now: float, so: bool) -> float:
    """For how long it has been so."""
    if not so:
        since.pop(name, None)
        return 0.0
    return now - since.setdefault(name, now)


def _suits(gpus: Sequence[Gpu], shape: Shape) -> bool:
    """Whether the pod would take these GPUs if nothing were on them and all were healthy."""
    ask, constraints = shape.hardest, shape.constraints
    if ask is None or not gpus:
        return True
    found = sum(
        gpu.memory_mib >= ask.memory_mib and (constraints is None or mismatch(constraints, gpu) is None) for gpu in gpus
    )
    return found >= (1 if ask.profile else ask.count)
