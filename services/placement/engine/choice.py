"""Says how a weighed pod's place was chosen: the strategy, the rule, and what came next, with its numbers."""

from __future__ import annotations

from shared.book.states import NodeState, PodState
from shared.contracts.explain import StrategyChoice
from shared.model.grant import ContainerGrant
from shared.model.strategies import registered
from shared.scheduling.assignment import able
from shared.scheduling.slowdown.outlook import Outlook, outlooks


def choices(
    state: PodState, node: NodeState, containers: dict[str, ContainerGrant], second: NodeState | None
) -> tuple[StrategyChoice, ...]:
    """For each container of which it is known what it does. The pod takes nothing on the nodes yet. `second`: the node
    that came next."""
    found = []
    for name, grant in containers.items():
        mine = {share.uuid for share in grant.gpus}
        candidates = _candidates(state, name, node)
        own = [one for one in candidates if one.uuid in mine and one.strategy == grant.strategy]
        if not own:
            continue
        others = [one for one in candidates if not (one.uuid in mine and one.strategy == grant.strategy)]
        where = node
        if not any(one.too_slow is None for one in others) and second is not None:
            others, where = [*_candidates(state, name, second)], second
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
                second=_second(others, where),
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


def _second(others: list[Outlook], node: NodeState) -> str:
    """What came next: of the candidates that suffice the one that loses least, else the nearest that does not."""
    best = min((one for one in others if one.too_slow is None), key=lambda one: one.lost_milli, default=None)
    if best is not None:
        return (
            f"next is {best.strategy} on GPU {node.by_uuid[best.uuid].index} of {node.name}: {best.slowdown:.2f} times "
            f"as long, {best.lost_milli} thousandths of a container's progress lost"
        )
    near = min(others, key=lambda one: one.slowdown, default=None)
    if near is None or near.too_slow is None:
        return ""
    who = near.too_slow.pod or "the pod"
    return (
        f"{near.strategy} on GPU {node.by_uuid[near.uuid].index} of {node.name} does not suffice: {who} would take "
        f"{near.too_slow.slowdown:.2f} times as long, and accepts {near.too_slow.accepted:g}"
    )
