"""The cluster after a change that is only tried: which pods would have to move, would find no place, or would get
one."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from services.placement.engine.engine import Engine
from services.placement.explain.disruption_cost import as_move
from services.placement.explain.steps import Steps
from services.placement.scheduling.gangs.placing import by_size, place_gang
from services.placement.scheduling.grants import TrialGrants
from services.placement.scheduling.trial import Trial
from shared.book.arrays import Bools
from shared.book.disruption_cost import price_of
from shared.book.gangs import Gangs
from shared.book.states import NodeState, PodState, pod_state
from shared.contracts.explain import Move, PlacedPod, WorldExplanation
from shared.contracts.queries import AddGpus, AddNodes, Resize, WhatIfQuery
from shared.model.claims import ResourceClaim
from shared.model.gang import LEVELS
from shared.model.gpu import Inventory

NODES_MOST = 1000
_SHOWN_MOST = 200
TRIED_MOST = 400
"""Waiting pods that are tried in the changed cluster, the first in the queue first."""


class Impossible(ValueError):
    """A change that cannot be made. The text says what to ask instead."""


class World(msgspec.Struct, frozen=True):
    """What became of a change. `trial` is the cluster after it."""

    trial: Trial
    told: WorldExplanation


def change(
    query: WhatIfQuery, engine: Engine, gangs: Gangs, waiting: Sequence[str], now: float, *, kept: Container[str] = ()
) -> Steps[World]:
    """`waiting`: uids in the order of the queue. `kept`: uids that no capacity would help. Raises Impossible."""
    trial = Trial(engine)
    homeless = [state for node in query.drain for state in _drained(node, trial)]
    for more in query.add_nodes:
        add_nodes(more, trial)
    for more_gpus in query.add_gpus:
        _add_gpus(more_gpus, trial)
    yield
    homeless += [state for size in query.resize if (state := _resized(size, trial)) is not None]
    moves: list[Move] = []
    stranded: list[PlacedPod] = []
    for state in sorted(by_size(homeless), key=lambda s: -s.pod.spec.priority):
        meta, source = state.pod.metadata, engine.book.pods[state.uid].charged
        place = trial.place(state, _domain(state, source, gangs, trial))
        if place is not None:
            moves.append(as_move(price_of(engine.book.pods[state.uid], engine.book, now), place.node, engine.book))
        else:
            # A resized pod was tried on its own node too.
            where = f"outside {source}" if source in query.drain else f"on {source} or elsewhere"
            stranded.append(PlacedPod(namespace=meta.namespace, name=meta.name, sentence=f"finds no place {where}"))
        yield
    able = [uid for uid in waiting if uid not in kept]
    fits = yield from newcomers(trial, gangs, able)
    left = len(waiting) - len(fits) + len(stranded)
    told = WorldExplanation(
        sentence=_sentence(moves, stranded, fits, left) + untried(len(able)),
        moves=tuple(moves[:_SHOWN_MOST]),
        stranded=tuple(stranded[:_SHOWN_MOST]),
        fits=tuple(fits[:_SHOWN_MOST]),
        waiting=left,
    )
    return World(trial, told)


def _drained(name: str, trial: Trial) -> list[PodState]:
    """Those that have to go. Pods of a DaemonSet end with their node, and other schedulers look after their own."""
    _known(name, trial)
    return [
        state
        for state in trial.lose(name)
        if state.ours and not any(owner.kind == "DaemonSet" for owner in state.pod.metadata.owner_references)
    ]


def _domain(state: PodState, source: str, gangs: Gangs, trial: Trial) -> Bools | None:
    """The rows to which a pod must keep: those of its gang's domain, where the gang must not be torn apart."""
    gang, node = gangs.of(state.uid), gangs.book.nodes.get(source)
    if gang is None or not gang.required or node is None or node.object is None:
        return None
    wanted = node.object.metadata.labels.get(gang.required)
    only = np.zeros(trial.book.arrays.rows, np.bool_)
    for other in trial.book.nodes.values():
        only[other.row] = other.object is not None and other.object.metadata.labels.get(gang.required) == wanted
    return only


def add_nodes(more: AddNodes, trial: Trial) -> list[str]:
    """Adds copies of a node, empty and healthy. Returns their names. Raises Impossible."""
    node = _known(more.like, trial)
    if not 1 <= more.count <= NODES_MOST or node.object is None:
        raise Impossible(f"{more.count} nodes cannot be added; a number from 1 to {NODES_MOST} can")
    names = [f"{more.like}-like-{number}" for number in range(1, more.count + 1)]
    for name in names:
        labels = node.object.metadata.labels | {LEVELS["node"]: name}
        made = replace(
            node.object, metadata=replace(node.object.metadata, name=name, uid=f"what-if/{name}", labels=labels)
        )
        trial.join(made, None if node.inventory is None else _renamed(node.inventory, name))
    return names


def _renamed(inventory: Inventory, name: str) -> Inventory:
    gpus = tuple(
        replace(gpu, uuid=f"{name}/{gpu.index}", state="healthy", reason="", foreign_mib=0) for gpu in inventory.gpus
    )
    return replace(inventory, node=name, gpus=gpus)


def _add_gpus(more: AddGpus, trial: Trial) -> None:
    node = _known(more.node, trial)
    if node.inventory is None or not node.inventory.gpus:
        raise Impossible(f"node {more.node} has no GPU that new ones could be like")
    if not 1 <= more.count <= 64:
        raise Impossible(f"{more.count} GPUs cannot be added to a node; a number from 1 to 64 can")
    like = node.inventory.gpus[-1]
    first = max(gpu.index for gpu in node.inventory.gpus) + 1
    new = tuple(
        replace(
            like,
            uuid=f"{more.node}/what-if-{index}",
            index=index,
            state="healthy",
            reason="",
            foreign_mib=0,
            mig_instances=(),
        )
        for index in range(first, first + more.count)
    )
    trial.book.put_inventory(
        replace(node.inventory, generation=node.inventory.generation + 1, gpus=(*node.inventory.gpus, *new))
    )


def _resized(size: Resize, trial: Trial) -> PodState | None:
    """Stays where it is if it fits there; else it is returned, homeless. One that waits already goes on waiting,
    resized."""
    uid = trial.book.uid_by_key.get(f"{size.namespace}/{size.name}")
    if uid is None:
        raise Impossible(f"no pod {size.namespace}/{size.name} is known; check the name and the namespace (-n)")
    before = trial.book.pods[uid]
    names = [c.name for c in before.pod.spec.containers]
    asking = names[:1] if before.request is None else [name for name in before.request.asks if name in names]
    if not asking:
        raise Impossible(
            f"pod {size.namespace}/{size.name} requests its GPUs by ResourceClaims alone, and no container has limits "
            "that could change; ask by kerf what-if -f about a pod with others"
        )
    chosen = size.container or asking[0]
    if chosen not in names:
        raise Impossible(f"pod {size.namespace}/{size.name} has no container {chosen!r}; it has {', '.join(names)}")
    containers = tuple(
        replace(
            c,
            resources=replace(
                c.resources,
                limits=c.resources.limits | size.limits,
                requests={k: size.limits.get(k, v) for k, v in c.resources.requests.items()},
            ),
        )
        if c.name == chosen
        else c
        for c in before.pod.spec.containers
    )
    pod = replace(
        before.pod,
        metadata=replace(before.pod.metadata, resource_version="0"),
        spec=replace(before.pod.spec, containers=containers),
    )
    after = pod_state(pod, trial.book.others.get(ResourceClaim.__name__, {}))
    if after.refusal:
        raise Impossible(f"{size.namespace}/{size.name} would make no sense: {after.refusal}")
    source = before.charged
    waits = trial.book.add(after)
    return None if not source or trial.place_on(waits, source) is not None else waits


def newcomers(trial: Trial, gangs: Gangs, waiting: Sequence[str]) -> Steps[list[PlacedPod]]:
    """Gives waiting pods, by uid, places in the trial, gangs as a whole. Returns those that have one."""
    fits: list[PlacedPod] = []
    hopeless: set[bytes] = set()
    tried: set[str] = set()
    for uid in waiting[:TRIED_MOST]:
        state = trial.book.pods.get(uid)
        if state is None or uid in tried or state.charged:
            continue
        gang = gangs.of(uid)
        if gang is not None:
            tried |= set(gang.waiting)
            members = by_size([trial.book.pods[u] for u in gang.waiting if u in trial.book.pods])
            if gang.gathered:
                attempt = place_gang(gang, members, trial.engine, TrialGrants(), transaction=trial.transaction)
                fits += [_placed(one.state, one.place.node) for one in attempt.placed]
        elif (key := trial.engine.key_of(state)) not in hopeless:
            place = trial.place(state)
            if place is not None:
                fits.append(_placed(state, place.node))
            elif trial.engine.is_plain(state):
                hopeless.add(key)
        yield
    return fits


def untried(waiting: int) -> str:
    """What a sentence about so many waiting pods ends with where `newcomers` tries only the first of them."""
    return f"; only the first {TRIED_MOST} pods of the queue were tried" if waiting > TRIED_MOST else ""


def _placed(state: PodState, node: str) -> PlacedPod:
    return PlacedPod(namespace=state.pod.metadata.namespace, name=state.pod.metadata.name, node=node)


def _known(name: str, trial: Trial) -> NodeState:
    node = trial.book.nodes.get(name)
    if node is None or node.object is None:
        raise Impossible(f"there is no node {name}")
    return node


def _sentence(moves: list[Move], stranded: list[PlacedPod], fits: list[PlacedPod], left: int) -> str:
    said = []
    if moves:
        said.append(f"{_pods(len(moves))} would move and find a place")
    if stranded:
        said.append(
            f"{_pods(len(stranded))} would find none "
            f"({', '.join(f'{p.namespace}/{p.name}' for p in stranded[:3])}{', …' if len(stranded) > 3 else ''})"
        )
    if fits:
        said.append(f"{_pods(len(fits))} that {'waits' if len(fits) == 1 else 'wait'} would fit then")
    return ("; ".join(said) or "nothing would change for any pod") + (f"; {_pods(left)} would wait" if left else "")


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"
