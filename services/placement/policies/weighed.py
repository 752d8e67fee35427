"""Weighs, for each GPU, what a pod's place costs later pods against what sharing the GPU slows down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from services.placement.policies.base import GPU_POLICY_WEIGHT, Policy
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk
from shared.scheduling.slowdown.outlook import Outlook, best, outlooks

LOST_PER_POINT = 1
"""So many thousandths of a container's progress, lost for as long as pods share, weigh one point. Of the policy `kerf`
about three thousandths of a GPU that later pods may not be able to use weigh a point: those are expected, the loss is
not. With three instead of one, `python -m bench.adaptive` gets 2 to 3 % less done, and 5 % slower."""


class Weighed:
    """A policy's order of the GPUs of one node, for a pod of which it is known what it does on a GPU."""

    picks_sets: ClassVar[bool] = False

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        found = expected(pod, ask, fitting, node)
        if not found:
            return self._policy.order(pod, ask, fitting, node)
        weighed = weights(self._policy, pod, ask, fitting, node, found)
        ranked = sorted(zip(weighed, fitting, strict=True), key=lambda item: (-item[0], item[1].column))
        return [room for _, room in ranked]

    def pick(
        self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState, inventory: Inventory
    ) -> list[GpuRoom]:
        if not expected(pod, ask, fitting, node):
            return self._policy.pick(pod, ask, fitting, node, inventory)
        return self.order(pod, ask, fitting, node)[: ask.count]


def expected(pod: PodState, ask: GpuAsk, fitting: Sequence[GpuRoom], node: NodeState) -> dict[str, Outlook] | None:
    """By GPU: the best candidate of those that suffice. None if it is not known what the container does."""
    request = pod.request
    name = "" if request is None else next((name for name, one in request.asks.items() if one == ask), "")
    if name not in pod.uses:
        return None
    found = outlooks(pod, name, ask, node, fitting)
    return {uuid: one for uuid, many in found.items() if (one := best(many)) is not None}


def weights(
    policy: Policy, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState, found: dict[str, Outlook]
) -> list[int]:
    """What each GPU is worth, in points: the policy's part, less what is lost. A policy that only orders GPUs gives the
    first of them one point more than the next, so that what is lost decides."""
    points = policy.points(pod, ask, fitting, node)
    if points is None:
        places = {room.uuid: place for place, room in enumerate(policy.order(pod, ask, fitting, node))}
        own = [-places[room.uuid] for room in fitting]
    else:
        own = [GPU_POLICY_WEIGHT * one for one in points]
    return [
        mine - (found[room.uuid].lost_milli // LOST_PER_POINT if room.uuid in found else 0)
        for mine, room in zip(own, fitting, strict=True)
    ]
