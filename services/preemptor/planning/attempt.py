"""Tries sets of victims for one pod on one node, in addition to the pods that leave anyway. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from services.preemptor.planning.candidate import Candidate
from services.preemptor.planning.victims import Candidates
from shared.book.states import NodeState, PodState
from shared.model.grant import GpuShare

Place = Callable[[PodState, NodeState, Sequence[Candidate]], tuple[GpuShare, ...] | None]
"""Returns the GPU shares that a pod gets on a node if these candidates are gone; None if it does not fit."""


class Attempt(msgspec.Struct, frozen=True):
    """Implements `actions.evict.Evictions` for one pod on one node."""

    place: Place
    candidates: Candidates
    state: PodState
    node: NodeState
    before: list[Candidate]
    """Candidates that go anyway: victims of this plan, and pods that are already terminating."""
    gone: list[Candidate]
    beneficiaries: Sequence[PodState]

    def unit(self, candidate: Candidate, others: Sequence[Candidate] = ()) -> list[Candidate] | None:
        going = {victim.uid for victim in (*self.before, *others)}
        return (
            self.candidates.unit(candidate, going, self.state)
            if candidate.is_evictable and candidate.uid not in going
            else None
        )

    def may_preempt(self, victims: Sequence[Candidate]) -> bool:
        return self.candidates.may_preempt([*self.gone, *victims], self.beneficiaries)

    def fits(self, victims: Sequence[Candidate]) -> tuple[GpuShare, ...] | None:
        return self.place(self.state, self.node, [*self.before, *victims])
