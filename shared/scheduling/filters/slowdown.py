from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.scheduling.assignment import assign
from shared.scheduling.choosing import able
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Change, Remedy
from shared.scheduling.slowdown.outlook import Outlook, Slowed, best, outlooks


def slower(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001 - as Remedy
    """The smallest slowdown with which the pod itself would fit. What neighbours accept is theirs to change."""
    request = state.request
    if request is None or not request.max_slowdown_milli:
        return
    for name, ask in request.asks.items():
        found = outlooks(replace(state, request=replace(request, max_slowdown_milli=0)), name, ask, node, node.gpus)
        near = [one for many in found.values() for one in many if one.too_slow is None]
        if not near:
            return
        milli = -int(-1000 * min(one.slowdown for one in near) // 10) * 10
        changed = replace(state, request=replace(request, max_slowdown_milli=milli))
        yield Change(
            "max-slowdown",
            f"fits with {names.ANNOTATION_MAX_SLOWDOWN}: {milli / 1000:g}",
            changed,
            milli - request.max_slowdown_milli,
        )


class TooSlowBeside(Filter):
    """Whether a pod, and the pods on the GPU, would keep to the slowdown that each accepts (`kerf.dev/max-slowdown`).

    Grants are counted, so the check is made anew for each decision. It says nothing about pods of which it is not known
    what they do on a GPU.
    """

    name = "slowdown"
    scope = "cluster"
    remedies: ClassVar[Mapping[str, Remedy]] = {"too-slow-beside": slower}

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        if not pod.adaptive or not pod.uses:
            return None

        def check(node: NodeState) -> Reason | None:
            if assign(pod, node) is not None or assign(replace(pod, adaptive=False), node) is None:
                return None  # it fits, or capacity is in the way, which others say
            return _reason(pod, node)

        return check


def _reason(pod: PodState, node: NodeState) -> Reason:
    candidates = list(_all(pod, node))
    nearest = min(candidates, key=lambda one: _excess(one.too_slow), default=None)
    slowed = None if nearest is None else nearest.too_slow
    if nearest is None or slowed is None:
        return Reason(
            code="too-slow-beside",
            sentence="its containers would slow each other down more than they accept",
            helps=f"raise {names.ANNOTATION_MAX_SLOWDOWN}, or use more GPUs",
        )
    index = node.by_uuid[nearest.uuid].index
    who = f"{slowed.pod} would take" if slowed.pod else "it would take"
    whose = "it accepts" if slowed.pod else "the pod accepts"
    beside = f"beside {nearest.beside} container(s) by {nearest.strategy}"
    return Reason(
        code="too-slow-beside",
        sentence=f"on GPU {index}, {beside}, {who} {slowed.slowdown:.2f} times as long, {whose} {slowed.accepted:g}",
        helps=f"raise {names.ANNOTATION_MAX_SLOWDOWN}" + (f" of {slowed.pod}" if slowed.pod else ""),
        lacking=round(1000 * (slowed.slowdown - slowed.accepted)),
    )


def _all(pod: PodState, node: NodeState) -> Iterator[Outlook]:
    if pod.request is None or node.inventory is None:
        return
    for name, ask in pod.request.asks.items():
        fitting = able(ask, pod.request, node.inventory, node.gpus)
        for many in outlooks(pod, name, ask, node, fitting).values():
            if best(many) is None:
                yield from many


def _excess(slowed: Slowed | None) -> float:
    return 0.0 if slowed is None else slowed.slowdown - slowed.accepted
