"""How many more nodes of which type would give the waiting pods a place: tried on copies of the book.

Each type is tried by itself. A node type is what nodes with the same instance type have in common, or the same GPUs
where they have no such label. New nodes are copies of one of them, empty and healthy, so taints, labels, MIG and proven
strategies count as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import msgspec
from msgspec.structs import replace

from services.placement.engine.engine import Engine
from services.placement.explain.steps import Steps
from services.placement.explain.what_if_clusters import add_nodes, newcomers, untried
from services.placement.scheduling.trial import Trial
from shared.book.gangs import Gangs
from shared.book.states import NodeState
from shared.contracts.explain import NodeTypeNeed, ScaleExplanation
from shared.contracts.queries import AddNodes
from shared.model import names
from shared.model.objects import Node, Taint

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
NODES_MOST = 256
TYPES_MOST = 16
"""Node types that are tried: those of which the cluster has the most nodes."""
_EXAMPLES = 5
_STATE_TAINTS = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/disrupted",
    "karpenter.sh/unregistered",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    names.TAINT_LEAVING,
)


class _Type(msgspec.Struct, frozen=True):
    name: str
    like: str
    """The node that new ones are copies of."""
    gpus: int
    count: int
    """Nodes of this type in the cluster."""


def scale(
    engine: Engine, gangs: Gangs, waiting: Sequence[str], *, max_nodes: int, kept: Container[str] = ()
) -> Steps[ScaleExplanation]:
    """`waiting`: uids in the order of the queue. `kept`: uids that no capacity would help. The engine's book must not
    change meanwhile (`steps.undisturbed`)."""
    able = [uid for uid in waiting if uid not in kept]
    soon = yield from newcomers(Trial(engine), gangs, able)
    search = _Search(engine, gangs, able, {(pod.namespace, pod.name) for pod in soon})
    needs = []
    types = node_types(engine)
    for one in sorted(types, key=lambda one: -one.count)[:TYPES_MOST]:
        need = yield from search.fewest(one, max_nodes)
        if need is not None:
            needs.append(need)
    needs.sort(key=lambda need: (-need.pods, need.gpus, need.nodes, need.name))
    left = len(able) - len(soon)
    sentence = _sentence(needs, left, len(waiting) - len(able), max_nodes)
    if len(types) > TYPES_MOST:
        sentence += f"; only the {TYPES_MOST} of {len(types)} node types with the most nodes were tried"
    return ScaleExplanation(
        sentence=sentence + untried(len(able)),
        waiting=left,
        kept=len(waiting) - len(able),
        needs=tuple(needs),
    )


class _Search:
    def __init__(self, engine: Engine, gangs: Gangs, able: Sequence[str], soon: Container[tuple[str, str]]) -> None:
        """`able`: the waiting pods, by uid. `soon`: those that get a place without more nodes, as (namespace, name)."""
        self._engine, self._gangs, self._able, self._soon = engine, gangs, able, soon

    def fewest(self, one: _Type, max_nodes: int) -> Steps[NodeTypeNeed | None]:
        """The fewest nodes of a type with which as many pods fit as with `max_nodes` of them; None if none does."""
        pods, used = yield from self._fit(one, max_nodes)
        if not pods:
            return None
        low, high, most = 1, max(1, used), len(pods)
        while low < high:
            middle = (low + high) // 2
            fits, _ = yield from self._fit(one, middle)
            if len(fits) >= most:
                high, pods = middle, fits
            else:
                low = middle + 1
        shown = tuple(f"{namespace}/{name}" for namespace, name in pods[:_EXAMPLES])
        return NodeTypeNeed(
            name=one.name, like=one.like, nodes=high, gpus=high * one.gpus, pods=len(pods), examples=shown
        )

    def _fit(self, one: _Type, count: int) -> Steps[tuple[list[tuple[str, str]], int]]:
        """The pods that would fit with so many more nodes and do not fit now, and how many of these nodes they use."""
        trial = Trial(self._engine)
        made = add_nodes(AddNodes(like=one.like, count=count), trial)
        for name in made:
            _heal(name, trial)
        yield
        found = yield from newcomers(trial, self._gangs, self._able)
        fits = [(pod.namespace, pod.name) for pod in found if (pod.namespace, pod.name) not in self._soon]
        return fits, len({pod.node for pod in found} & set(made))


def node_types(engine: Engine) -> list[_Type]:
    """The types of the nodes that have GPUs, by name; of each a node that takes pods now, if there is one."""
    chosen: dict[str, NodeState] = {}
    counts: Counter[str] = Counter()
    for _, node in sorted(engine.book.nodes.items()):
        if node.object is None or node.inventory is None or not node.inventory.gpus:
            continue
        name = type_of(node)
        counts[name] += 1
        if name not in chosen or (_troubled(chosen[name]) and not _troubled(node)):
            chosen[name] = node
    return [_Type(name, node.name, len(node.gpus), counts[name]) for name, node in sorted(chosen.items())]


def type_of(node: NodeState) -> str:
    """The node's instance type; without that label its GPUs, such as 8 x NVIDIA-H200."""
    labelled = "" if node.object is None else node.object.metadata.labels.get(INSTANCE_TYPE, "")
    if labelled or node.inventory is None:
        return labelled
    models = sorted({gpu.model for gpu in node.inventory.gpus})
    return f"{len(node.inventory.gpus)} x {'|'.join(models)}"


def _troubled(node: NodeState) -> bool:
    if node.object is None or node.object.spec.unschedulable:
        return True
    return bool(node.agent_trouble or _passing(node.object))


def _heal(name: str, trial: Trial) -> None:
    """A new node takes pods, even if the one that it is like is cordoned, or not ready, now."""
    node = trial.book.nodes[name].object
    if node is not None and (node.spec.unschedulable or _passing(node)):
        inventory = trial.book.nodes[name].inventory
        taints = tuple(taint for taint in node.spec.taints if taint not in _passing(node))
        trial.join(replace(node, spec=replace(node.spec, unschedulable=False, taints=taints)), inventory)


def _passing(node: Node) -> list[Taint]:
    """The taints that Kubernetes and autoscalers write for a node's present state: not ready, cordoned, short of
    memory, starting, about to be removed."""
    return [taint for taint in node.spec.taints if taint.key.startswith(_STATE_TAINTS)]


def _sentence(needs: Sequence[NodeTypeNeed], left: int, kept: int, max_nodes: int) -> str:
    beside = f"; {_pods(kept)} more wait for quota, which no node would help" if kept else ""
    if not left:
        return f"no pod waits for capacity{beside}"
    waits = "waits" if left == 1 else "wait"
    if not needs:
        return f"{_pods(left)} {waits}, and {max_nodes} more nodes of no type in this cluster would help{beside}"
    best = needs[0]
    rest = left - best.pods
    nodes = "node" if best.nodes == 1 else "nodes"
    return (
        f"{_pods(left)} {waits} for capacity; {best.nodes} more {nodes} of type {best.name} (like {best.like}, "
        f"{best.gpus} GPUs) would give {'all' if not rest else best.pods} of them a place{beside}"
    )


def _pods(count: int) -> str:
    return f"{count} {'pod' if count == 1 else 'pods'}"
