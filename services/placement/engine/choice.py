"""Says how a weighed pod's place was chosen: the strategy, the rule, and what came next, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.placement.policies.base import Policy
from services.placement.policies.weighed import LOST_PER_POINT, weights
from shared.book.states import NodeState, PodState
from shared.contracts.explain import StrategyChoice
from shared.model.grant import ContainerGrant
from shared.model.strategies import registered
from shared.scheduling.choosing import able
from shared.scheduling.slowdown.outlook import Outlook, outlooks


class Rated(msgspec.Struct, frozen=True):
    """A node and its total score."""

    node: NodeState
    total: int


def choices(
    state: PodState, chosen: Rated, containers: dict[str, ContainerGrant], second: Rated | None, policy: Policy
) -> tuple[StrategyChoice, ...]:
    """For each container of which it is known what it does. The pod takes nothing on the nodes yet. `second`: the node
    that came next; `policy`: the one that orders GPUs."""
    found = []
    node = chosen.node
    for name, grant in containers.items():
        mine = {share.uuid for share in grant.gpus}
        candidates = _candidates(state, name, node)
        own = [one for one in candidates if one.uuid in mine and one.strategy == grant.strategy]
        if not own:
            continue
        others = [one for one in candidates if not (one.uuid in mine and one.strategy == grant.strategy)]
        worst = max(own, key=lambda one: one.slowdown)
        found.append(
            StrategyChoice(
                container=name,
                strategy=grant.strategy,
                promise=registered()[grant.strategy].promise,
                slowdown=round(worst.slowdown, 3),
                beside=max(one.beside for one in own),
                worst_beside=round(max(one.worst_beside for one in own), 3),
                lost_milli=sum(one.lost_milli for one in own),
                rule=_rule(state),
                second=_second(state, name, policy, (chosen, second), [own[0], *others]),
            )
        )
    return tuple(found)


def remote_choice(container: str, strategy: str, slowdown: float) -> StrategyChoice:
    """The choice of a GPU of another node, with the slowdown of the network and of the containers there together."""
    return StrategyChoice(
        container=container,
        strategy=strategy,
        promise=registered()[strategy].promise,
        slowdown=round(slowdown, 3),
        rule="no GPU of its own node suffices, and of those of other nodes this one makes it the least slow",
    )


def sentence(choice: StrategyChoice) -> str:
    """The choice for people."""
    beside = (
        f" beside {choice.beside} container(s), the slowest of them {choice.worst_beside:g}" if choice.beside else ""
    )
    text = (
        f"{choice.container} is shared by {choice.strategy} ({choice.promise}), expected {choice.slowdown:g} times as "
        f"long{beside}: {choice.rule}"
    )
    return f"{text}; {choice.second}" if choice.second else text


def _candidates(state: PodState, name: str, node: NodeState) -> list[Outlook]:
    request, inventory = state.request, node.inventory
    ask = None if request is None else request.asks.get(name)
    if request is None or inventory is None or ask is None:
        return []
    fitting = able(ask, request, inventory, node.gpus)
    return [one for many in outlooks(state, name, ask, node, fitting).values() for one in many]


def _rule(state: PodState) -> str:
    request = state.request
    if request is None:
        return ""
    bound = f" and a slowdown of at most {request.max_slowdown_milli / 1000:g}" if request.max_slowdown_milli else ""
    return f"the least cost to later pods and neighbours, of the places with isolation {request.isolation}{bound}"


def _second(
    state: PodState, name: str, policy: Policy, nodes: tuple[Rated, Rated | None], candidates: Sequence[Outlook]
) -> str:
    """What came next, by the same total as the choice: all scores of the node, with the policy's points and the loss of
    this GPU and strategy. Where nothing else suffices, the nearest that does not. `candidates`: the chosen one first,
    then all others of its node."""
    (chosen, second), others = nodes, candidates[1:]
    worth = _worth(state, name, policy, chosen.node, candidates)
    ranked = [
        (chosen.total + mine - worth[0], one, chosen.node)
        for mine, one in zip(worth[1:], others, strict=True)
        if one.too_slow is None
    ]
    if second is not None:
        there = [one for one in _candidates(state, name, second.node) if one.too_slow is None]
        ranked += [
            (second.total, one, second.node)
            for _, one in sorted(
                zip(_worth(state, name, policy, second.node, there), there, strict=True), key=lambda item: -item[0]
            )[:1]
        ]
    # another rule, such as links between GPUs, may have kept the pod off what has a larger total
    after = max((one for one in ranked if one[0] <= chosen.total), key=lambda one: one[0], default=None)
    if after is not None:
        total, best, node = after
        return (
            f"next is {best.strategy} on GPU {node.by_uuid[best.uuid].index} of {node.name}: {best.slowdown:.2f} times "
            f"as long, {best.lost_milli} thousandths of a container's progress lost, {total} points in all against "
            f"{chosen.total}"
        )
    near = min((one for one in others if one.too_slow is not None), key=lambda one: one.slowdown, default=None)
    if near is None or near.too_slow is None:
        return ""
    who = near.too_slow.pod or "the pod"
    return (
        f"{near.strategy} on GPU {chosen.node.by_uuid[near.uuid].index} of {chosen.node.name} does not suffice: {who} "
        f"would take {near.too_slow.slowdown:.2f} times as long, and accepts {near.too_slow.accepted:g}"
    )


def _worth(state: PodState, name: str, policy: Policy, node: NodeState, found: Sequence[Outlook]) -> list[int]:
    """What each candidate on a node is worth beside the others there, in points."""
    if state.request is None or not found:
        return []
    rooms = [node.by_uuid[uuid] for uuid in dict.fromkeys(one.uuid for one in found)]
    rooms.sort(key=lambda room: room.column)
    points = weights(policy, state, state.request.asks[name], rooms, node, {})
    by_uuid = {room.uuid: mine for room, mine in zip(rooms, points, strict=True)}
    return [by_uuid[one.uuid] - one.lost_milli // LOST_PER_POINT for one in found]
