"""What a pod would do to the pods on a GPU, and they to it, under one way of sharing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shared.book.mig import serving
from shared.book.shares import GpuRoom, share_on, strategy_for
from shared.book.states import NodeState, PodState
from shared.model.grant import ContainerGrant
from shared.model.mig import PROFILE_BIT, MigProfile
from shared.model.request import OPPORTUNISTIC, GpuAsk
from shared.model.strategies import MIG, StrategyName, by_preference, registered
from shared.model.units import WHOLE_GPU_MILLI
from shared.model.use import UseProfile
from shared.scheduling.slowdown.local import Sharer, Way, slowdown_of, way_of

UNKNOWN = UseProfile()
"""What a container is taken to do of which nothing is known: all that it has reserved, or all of the GPU."""


_SHARED: tuple[Way, ...] = ("concurrent", "turns")


class Neighbour(msgspec.Struct, frozen=True):
    """A container on a GPU."""

    pod: str
    """namespace/name."""
    sharer: Sharer
    way: Way
    max_slowdown_milli: int = 0
    """What it accepts by sharing, beside what the network to it takes."""
    known: bool = True
    """Whether it is known what it does there. Nothing is predicted of the others."""
    container: str = ""


class Slowed(msgspec.Struct, frozen=True):
    """A pod that would be slower than it accepts."""

    pod: str
    """namespace/name; empty: the pod itself that is to be placed."""
    slowdown: float
    accepted: float


class Outlook(msgspec.Struct, frozen=True):
    """One candidate: a GPU, the strategy, and the slowdowns that are expected there."""

    uuid: str
    strategy: StrategyName
    slowdown: float
    """The pod's own."""
    beside: int = 0
    """Containers that it would share the GPU with."""
    worst_beside: float = 1.0
    lost_milli: int = 0
    """The progress that all containers on the GPU lose by it, in thousandths of a container that runs alone."""
    too_slow: Slowed | None = None
    """The first that would be slower than it accepts; None: the candidate suffices."""


def neighbours_on(node: NodeState) -> dict[str, list[Neighbour]]:
    """By GPU: the containers on it."""
    found: dict[str, list[Neighbour]] = {}
    for held in node.grants.values():
        pod = f"{held.namespace}/{held.name}"
        for name, container in held.grant.containers.items():
            use = held.uses.get(name)
            way = way_of(container.limited_by)
            for share in container.gpus:
                if share.node == node.name:
                    sharer = _in_share(use or UNKNOWN, container.limited_by, share.compute_milli)
                    accepted_milli = 1000 * held.max_slowdown_milli // held.network_milli
                    one = Neighbour(pod, sharer, way, accepted_milli, use is not None, name)
                    found.setdefault(share.uuid, []).append(one)
    return found


def outlooks(
    pod: PodState, name: str, ask: GpuAsk, node: NodeState, rooms: Iterable[GpuRoom]
) -> dict[str, list[Outlook]]:
    """By GPU: the candidates for a container whose use is known, the preferred strategy first. Empty: it is not known,
    so nothing is predicted."""
    use, request = pod.uses.get(name), pod.request
    if use is None or request is None or node.inventory is None:
        return {}
    shared = strategies_for(pod, ask, node.inventory.strategies)
    near = neighbours_on(node)
    found = {}
    for room in rooms:
        found[room.uuid] = [
            _outlook(room.uuid, strategy, me, near.get(room.uuid, []), request.max_slowdown_milli)
            for strategy in ((MIG,) if room.mig is not None else shared)
            if (me := _sharer(use, ask, room, strategy, request.max_slowdown_milli)) is not None
        ]
    return found


def strategies_for(pod: PodState, ask: GpuAsk, offered: tuple[StrategyName, ...]) -> tuple[StrategyName, ...]:
    """The strategies by which a node may serve a container, preferred ones first: all that keep the isolation that the
    pod asks for. One that holds no limits is among them only where no other is."""
    request = pod.request
    if request is None:
        return ()
    opportunistic = request.tier == OPPORTUNISTIC
    first = strategy_for(ask, request.isolation, offered, opportunistic=opportunistic)
    if first is None or ask.whole or not registered()[first].limits_memory:
        return () if first is None else (first,)
    names = [
        one.name
        for one in by_preference(ask.whole, bool(ask.compute_milli) and not opportunistic, request.isolation)
        if one.name in offered and one.limits_memory and not (one.concurrent and (ask.count > 1 or ask.bursts))
    ]
    return (first, *(name for name in names if name != first))


def quiet_rooms(pod: PodState, name: str, ask: GpuAsk, node: NodeState, rooms: list[GpuRoom]) -> list[GpuRoom]:
    """The GPUs on which the container, and those that it would share with, keep to what they accept."""
    found = outlooks(pod, name, ask, node, rooms)
    return [room for room in rooms if not (many := found.get(room.uuid)) or best(many) is not None]


def instance_ask(pod: PodState, name: str, ask: GpuAsk, room: GpuRoom) -> GpuAsk:
    """The ask by which a GPU in MIG mode gives the smallest instance on which the container is as fast as it has to be:
    with more compute than it requests, if need be."""
    use, request = pod.uses.get(name), pod.request
    if room.mig is None or use is None or request is None or ask.profile or not request.max_slowdown_milli:
        return ask
    me = _sharer(use, ask, room, MIG, request.max_slowdown_milli)
    if me is None or me.sm_milli <= ask.compute_milli:
        return ask
    return msgspec.structs.replace(ask, compute_milli=me.sm_milli)


def strategy_on(pod: PodState, name: str, ask: GpuAsk, node: NodeState, rooms: list[GpuRoom]) -> StrategyName | None:
    """The strategy by which the container loses least on these GPUs together; None: nothing is predicted of it."""
    lost: dict[StrategyName, int] = {}
    for many in outlooks(pod, name, ask, node, rooms).values():
        for one in many:
            if one.too_slow is None:
                lost[one.strategy] = lost.get(one.strategy, 0) + one.lost_milli
    return min(lost, key=lambda strategy: lost[strategy], default=None)


def slowdown_on(pod: PodState, node: NodeState, containers: Mapping[str, ContainerGrant]) -> float:
    """The largest slowdown that is expected of the pod's containers with these grants, which are not given yet; 1 where
    nothing is known."""
    worst = 1.0
    for name, grant in containers.items():
        ask = None if pod.request is None else pod.request.asks.get(name)
        if ask is None or not pod.adaptive:
            continue
        rooms = [node.by_uuid[share.uuid] for share in grant.gpus]
        for many in outlooks(pod, name, ask, node, rooms).values():
            worst = max(worst, *(one.slowdown for one in many if one.strategy == grant.limited_by), 1.0)
    return worst


def best(candidates: Iterable[Outlook]) -> Outlook | None:
    """The candidate that loses least; of equal ones the first. None: none suffices."""
    return min((one for one in candidates if one.too_slow is None), key=lambda one: one.lost_milli, default=None)


def slowdown_beside(me: Sharer, way: Way, others: Sequence[tuple[Sharer, Way]]) -> float:
    """As `slowdown_of`, beside containers that share the GPU in ways of their own. MPS and the gate know nothing of
    each other: all take turns by the driver then, no GPU time is reserved, and one of the other way counts as full."""
    if all(theirs == way for _, theirs in others):
        return slowdown_of(me, [other for other, _ in others], way)
    beside = [Sharer(other.use if theirs == way else UNKNOWN) for other, theirs in others]
    return slowdown_of(Sharer(me.use), beside, "turns")


def _outlook(uuid: str, strategy: StrategyName, me: Sharer, near: list[Neighbour], accepted_milli: int) -> Outlook:
    way = way_of(strategy)
    beside = [one for one in near if one.way in _SHARED] if way in _SHARED else []
    here = [(one.sharer, one.way) for one in beside]
    own = slowdown_beside(me, way, here)
    lost = 1 - 1 / own
    worst = 1.0
    too_slow = None
    if accepted_milli and own * 1000 > accepted_milli:
        too_slow = Slowed("", own, accepted_milli / 1000)
    for place, one in enumerate(beside):
        if not one.known:
            continue
        others = [*here[:place], *here[place + 1 :]]
        before = slowdown_beside(one.sharer, one.way, others)
        after = slowdown_beside(one.sharer, one.way, [*others, (me, way)])
        lost += 1 / before - 1 / after
        worst = max(worst, after)
        # one that is too slow already is made no reason to keep a pod away that does not make it slower
        if too_slow is None and one.max_slowdown_milli and after * 1000 > one.max_slowdown_milli and after > before:
            too_slow = Slowed(one.pod, after, one.max_slowdown_milli / 1000)
    return Outlook(uuid, strategy, own, len(beside), worst, round(1000 * lost), too_slow)


def _sharer(use: UseProfile, ask: GpuAsk, room: GpuRoom, strategy: StrategyName, accepted_milli: int) -> Sharer | None:
    """The container on this GPU; None where it gets no instance of it."""
    if room.mig is None:
        return _in_share(use, strategy, share_on(ask, room.total_mib)[1])
    found = None
    for cut in _instances(ask, room):
        found = Sharer(
            use,
            sm_milli=room.mig.make.compute_milli(cut),
            bandwidth_milli=WHOLE_GPU_MILLI * cut.memory_slices // room.mig.make.memory_slices,
        )
        if not accepted_milli or slowdown_of(found, (), "partition") * 1000 <= accepted_milli:
            break
    return found


def _instances(ask: GpuAsk, room: GpuRoom) -> list[MigProfile]:
    """The instances that can be had now and serve the ask, the smallest first."""
    if room.mig is None:
        return []
    bits = room.mig.bits
    return [cut for cut in serving(room.mig.geometry, ask, room.total_mib) if bits & PROFILE_BIT[cut.name]]


def _in_share(use: UseProfile, strategy: StrategyName, compute_milli: int) -> Sharer:
    if not compute_milli or compute_milli >= WHOLE_GPU_MILLI:
        return Sharer(use)
    if way_of(strategy) == "concurrent":
        return Sharer(use, sm_milli=compute_milli)
    return Sharer(use, reserved_milli=compute_milli)
