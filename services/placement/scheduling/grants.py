"""Makes the grants of a leader session, each with an id of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.placement.engine.engine import Place
from services.placement.scheduling.claims import with_claims
from shared.book.book import Book
from shared.book.states import PodState
from shared.model import names
from shared.model.grant import Grant
from shared.model.request_reader import init_share
from shared.scheduling.moving import may_move


class Grants(Protocol):
    """Makes the grant of a place: a real one, or one to try things with."""

    def grant(self, state: PodState, place: Place) -> Grant | None:
        """The grant for this place; None for a pod without GPUs."""


class SessionGrants:
    """`term` is the leader's; it is set before the first grant."""

    def __init__(self, book: Book, trace_of: Callable[[str], str]) -> None:
        """`trace_of` returns the traceparent of a pod's trace from its uid alone. The grant carries it to the node."""
        self._book, self._trace_of = book, trace_of
        self.term = 0
        self._made = 0

    def grant(self, state: PodState, place: Place) -> Grant | None:
        if not place.containers:
            return None
        self._made += 1
        return Grant(
            grant_id=f"{self.term:x}-{self._made:x}",
            term=self.term,
            traceparent=self._trace_of(state.uid),
            dialect=state.pod.metadata.annotations.get(names.ANNOTATION_DIALECT, ""),
            containers=with_claims(place.containers, state, self._book),
            priority=state.pod.spec.priority,
            tier="" if state.request is None else state.request.tier,
            restart_cost_s=state.life.restart_cost_s,
            nics=place.nics,
            any_gpu=may_move(state, place.containers, place.nics, self._book.nodes[place.node].inventory),
            init_share=init_share(state.pod),
        )


class TrialGrants:
    """Makes grants for the length of an attempt. They are never sent."""

    @staticmethod
    def grant(state: PodState, place: Place) -> Grant | None:
        if not place.containers:
            return None
        return Grant(grant_id=f"trial {state.uid}", term=0, containers=place.containers, nics=place.nics)
