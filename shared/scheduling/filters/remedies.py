"""Changes of a pod that could remove a reason against a node. Each filter names its own, by the code of the reason.

Nothing is suggested before it is tried: a remedy may yield changes that do not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.affinity import Affinity
from shared.model.objects import PodSpec
from shared.model.request import GpuAsk


class Change(msgspec.Struct, frozen=True):
    """The pod as it would be: `code` and `sentence` as in a Counterfactual."""

    code: str
    sentence: str
    state: PodState
    size: int = 0
    """How much the pod gives up, if that is an amount. Of the changes of one code the smallest is suggested."""


Remedy = Callable[[PodState, Reason, NodeState], Iterator[Change]]
"""Yields the changes of a pod that might remove one reason on one node, the smallest first."""


def no_change(_state: PodState, _reason: Reason, _node: NodeState) -> Iterator[Change]:
    """No change of the pod helps, but the migration of another one might."""
    yield from ()


def asking(state: PodState, container: str, ask: GpuAsk) -> PodState:
    """Returns the pod with another GPU request of one container."""
    if state.request is None:
        return state
    return replace(state, request=replace(state.request, asks={**state.request.asks, container: ask}))


def specified(state: PodState, spec: PodSpec) -> PodState:
    """Returns the pod with another spec."""
    return replace(state, pod=replace(state.pod, spec=spec))


def largest_ask_of(state: PodState) -> tuple[str, GpuAsk | None]:
    """The container with the request that is hardest to place, and that request; ("", None) if there is none."""
    asks = {} if state.request is None else state.request.asks
    return max(asks.items(), key=lambda item: item[1].hardness, default=("", None))


def dropping(which: str, code: str) -> Remedy:
    """Returns the remedy that drops the required terms of one kind of affinity: a field of Affinity."""

    def make(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001
        spec, affinity = state.pod.spec, state.pod.spec.affinity or Affinity()
        kind = getattr(affinity, which)
        if kind is not None:
            empty: object = None if which == "node_affinity" else ()
            rest = replace(
                affinity, **{which: replace(kind, required_during_scheduling_ignored_during_execution=empty)}
            )
            yield Change(code, reason.helps, specified(state, replace(spec, affinity=rest)))

    return make
