"""A place with the GPU of another node, for a pod that agrees to it and fits nowhere else. Pure.

The pod goes to a node by all that does not concern GPUs, and gets the GPU of the serving node that makes it the least
slow. Local before remote is the caller's rule, near before far is this one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from services.placement.engine.choice import remote_choice
from services.placement.engine.engine import Engine, Place
from services.placement.engine.links import Links
from services.placement.free_capacity import gpu_fit
from services.placement.policies.weighed import Weighed
from shared.book.arrays import Bools
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.grant import ContainerGrant
from shared.model.network import NetworkLink
from shared.model.remote_use import RemoteUse
from shared.model.strategies import REMOTE, registered
from shared.scheduling.assignment import containers_on
from shared.scheduling.filters.resources import lacking_extended
from shared.scheduling.slowdown.network import remote_slowdown
from shared.scheduling.slowdown.outlook import slowdown_on

CALLS_PER_S = 10_000.0
MIB_PER_S = 1024.0
"""What is assumed of a pod that says nothing: many models make so many calls (5 % slower at 5 us). Only a near GPU on
a fast network is then near enough."""


ROUNDING = 1 + 1e-9
MAX_ALIKE = 16
"""Of serving nodes that could be equally near, so many are compared by how full their GPUs are."""


class Option(msgspec.Struct, frozen=True):
    """One client node with one GPU of another node."""

    client: str
    serving: str
    containers: dict[str, ContainerGrant]
    link: NetworkLink
    slowdown: float
    network: float
    """The network's part of it."""


class RemotePlaces:
    def __init__(self, engine: Engine, max_slowdown: float = 1.25) -> None:
        """`max_slowdown`: of pods that do not say how slow they may become."""
        self._engine, self._max_slowdown = engine, max_slowdown
        self.links = Links(engine.book)

    def on(self, engine: Engine) -> RemotePlaces:
        """The same for another engine, such as a trial's."""
        return RemotePlaces(engine, self._max_slowdown)

    def decide(self, state: PodState, within: Bools | None = None) -> Place | None:
        """The best place with another node's GPU, or None. `within`: the rows whose GPUs may be used; None for all."""
        found = self._best(state, within)
        if not isinstance(found, Option):
            return None
        policy = self._engine.policy_of(state)
        state.network_milli = round(1000 * found.network)
        choice = tuple(remote_choice(name, part.strategy, found.slowdown) for name, part in found.containers.items())
        seen = len(self.links.clients)
        return Place(
            found.client, found.containers, 0, seen, policy.name, choice=choice if state.adaptive and state.uses else ()
        )

    def why_not(self, state: PodState) -> Reason | None:
        """Why no GPU of another node serves a pod that agrees to one; None where one does, or the pod does not."""
        if state.request is None or state.request.remote is None:
            return None
        found = self._best(state, None)
        return found if isinstance(found, Reason) else None

    def _best(self, state: PodState, within: Bools | None) -> Option | Reason:
        use = None if state.request is None else state.request.remote
        if use is None:
            return _nowhere("remote-none", "it does not agree to a GPU of another node")
        self.links.refresh()
        if not self.links.serving or not self.links.clients:
            what = "serves its GPUs to others" if not self.links.serving else "can use GPUs of other nodes"
            return _nowhere("remote-none", f"no node {what} now")
        near = _Clients(self._clients(state), self.links)
        return self._nearest(state, use, near, within)

    def _nearest(self, state: PodState, use: RemoteUse, near: _Clients, within: Bools | None) -> Option | Reason:
        """Serving nodes are looked at by the least slowdown that they could have, until none could be better."""
        book, (calls, mib) = self._engine.book, figures(use)
        rows = np.zeros(book.arrays.rows, np.bool_)
        rows[[book.nodes[name].row for name in near.names]] = True
        least = self.links.least_slowdowns(rows, calls, mib)
        best: tuple[tuple[float, int, int], Option] | None = None
        has_room, alike = False, 0
        for node in self._with_room(state, within, least):
            if best is not None and (
                least[node.row] > best[0][0] * ROUNDING or (alike >= MAX_ALIKE and not state.adaptive)
            ):
                break
            if has_room and not np.isfinite(least[node.row]):
                break  # no client is known to reach this one, nor any that follows
            containers = self._served(state, node)
            if containers is None:
                continue
            has_room, alike = True, alike + (best is not None)
            local = slowdown_on(state, node, {name: part.served for name, part in containers.items()})
            for client in near.candidates(node.name):
                link = self.links.between(client, node.name)
                if link is None:
                    continue
                network = remote_slowdown(calls, mib, link)
                slowdown = local * network
                rank = (slowdown, _free(node, containers), near.names[client])
                if best is None or rank < best[0]:
                    best = rank, Option(client, node.name, containers, link, slowdown, network)
        if best is None:
            return _why_none(has_room=has_room, clients=bool(near.names))
        limit = use.max_slowdown_milli / 1000 or self._max_slowdown
        return best[1] if best[1].slowdown <= limit else too_slow(best[1], use, limit)

    def _with_room(self, state: PodState, within: Bools | None, least: npt.NDArray[np.float64]) -> Iterator[NodeState]:
        """The serving nodes with room on their GPUs: those that could be nearest first, and of these the fullest."""
        book = self._engine.book
        rows = np.array([book.nodes[name].row for name in self.links.serving], np.int64)
        if within is not None:
            rows = rows[within[rows]]
        ask = None if state.request is None else state.request.hardest
        if ask is None or rows.size == 0:
            return
        fit = gpu_fit(ask, book.arrays, rows)
        free = np.where(fit, book.arrays.gpu_free_milli[rows], np.int64(1 << 20)).min(axis=1)
        able = np.flatnonzero(fit.any(axis=1))
        for at in able[np.lexsort((free[able], least[rows[able]]))].tolist():
            yield book.nodes[book.row_names[int(rows[at])]]

    def _served(self, state: PodState, node: NodeState) -> dict[str, ContainerGrant] | None:
        """What the pod would get of a serving node's GPUs; None if they do not serve it."""
        policy = self._engine.gpu_policy_of(state)
        local = containers_on(state, node, Weighed(policy) if state.adaptive else policy)
        if not local or not all(map(_can_be_served, local.values())):
            return None
        return {key: replace(part, strategy=REMOTE, serving=part.strategy) for key, part in local.items()}

    def _clients(self, state: PodState) -> Iterator[str]:
        """The nodes where the pod fits but for its GPU, and may use one of another node, best first."""
        book, without = self._engine.book, as_client(state)
        able = set(self.links.clients)
        for node in self._engine.nodes_for(without):
            if node.name in able and lacking_extended(without.demand, book.nodes[node.name]) is None:
                yield node.name


class _Clients:
    """Client nodes with room, ranked, and those that matter for a serving node: all with a measured link to it, and the
    best of each rack, for all others of a rack are as near."""

    def __init__(self, ordered: Iterable[str], links: Links) -> None:
        self.names = {name: rank for rank, name in enumerate(ordered)}
        self.links = links
        self._best: dict[str, list[str]] = {}
        for name in self.names:
            best = self._best.setdefault(links.racks[name], [])
            if len(best) < 2:  # a node is no client of itself, so the next one may be needed
                best.append(name)

    def candidates(self, serving: str) -> set[str]:
        measured = {name for name in self.links.peers.get(serving, ()) if name in self.names}
        return {*measured, *(name for best in self._best.values() for name in best)} - {serving}


def _can_be_served(part: ContainerGrant) -> bool:
    """A server runs in a slice of its own, and is no client of the node's MPS server."""
    return not registered()[part.strategy].concurrent and all(share.mig is None for share in part.gpus)


def as_client(state: PodState) -> PodState:
    """The pod without its GPUs, as its own node sees it."""
    return replace(state, uid=f"client {state.uid}", request=None)


def figures(use: RemoteUse) -> tuple[float, float]:
    """(calls/s, MiB/s) by which a pod is rated."""
    return (
        CALLS_PER_S if use.calls_per_s is None else use.calls_per_s,
        MIB_PER_S if use.mib_per_s is None else use.mib_per_s,
    )


def too_slow(option: Option, use: RemoteUse, limit: float) -> Reason:
    calls, mib = figures(use)
    said = use.calls_per_s is not None and use.mib_per_s is not None
    link = option.link
    sentence = (
        f"with the nearest GPU of another node that has room ({option.serving}, for {option.client}) the pod would "
        f"take {option.slowdown:.2f} times as long, above its limit of {limit:g}: {calls:g} calls/s and {mib:g} MiB/s"
        f"{'' if said else ' (partly assumed)'} over a round trip of {link.rtt_us} us and {link.mib_s} MiB/s"
    )
    helps = f"raise {names.ANNOTATION_MAX_SLOWDOWN}, or let a GPU of its own node become free" + (
        "" if said else f"; or say by {names.ANNOTATION_GPU_CALLS} and {names.ANNOTATION_GPU_TRANSFER} what it needs"
    )
    return Reason(code="remote-too-slow", sentence=sentence, helps=helps)


def _why_none(*, has_room: bool, clients: bool) -> Reason:
    if not has_room:
        return _nowhere("remote-full", "no GPU that another node serves has room for the pod")
    if not clients:
        return _nowhere("remote-no-client", "no node that can use GPUs of others has room for the pod")
    return _nowhere(
        "remote-unmeasured",
        "nobody has measured the network between a node with room and one that serves a GPU",
        f"look at the agents' logs; label nodes with {names.LABEL_RACK}, so that one measurement stands for a rack",
    )


def _nowhere(code: str, sentence: str, helps: str = "wait, or add nodes whose agents serve GPUs to others") -> Reason:
    return Reason(code=code, sentence=sentence, helps=helps)


def _free(node: NodeState, containers: dict[str, ContainerGrant]) -> int:
    """Compute that is free on the GPU that a pod would get: of equally near ones the fullest is taken."""
    return sum(
        room.free_milli
        for part in containers.values()
        for share in part.gpus
        if (room := node.by_uuid.get(share.uuid)) is not None
    )
