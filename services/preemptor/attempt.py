"""One node on which victims are tried for one pod, beside all that goes already. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from services.preemptor.candidate import Candidate
from services.preemptor.victims import Candidates
from shared.book.states import NodeState, PodState
from shared.model.grant import GpuShare

Place = Callable[[PodState, NodeState, Sequence[Candidate]], tuple[GpuShare, ...] | None]
"""The parts of a node's GPUs that the pod would get, were these gone; None where it does not fit."""


class Attempt(msgspec.Struct, frozen=True):
    """As `actions.evict.Attempt`, beside all that goes already."""

    place: Place
    candidates: Candidates
    state: PodState
    node: NodeState
    before: list[Candidate]
    """Who goes anyway, or gives back by itself."""
    gone: list[Candidate]
    beneficiaries: Sequence[PodState]

    def unit(self, candidate: Candidate, with_: Sequence[Candidate] = ()) -> list[Candidate] | None:
        going = {victim.uid for victim in (*self.before, *with_)}
        return (
            self.candidates.unit(candidate, going, self.state)
            if candidate.may_end and candidate.uid not in going
            else None
        )

    def may_preempt(self, victims: Sequence[Candidate]) -> bool:
        return self.candidates.may_preempt([*self.gone, *victims], self.beneficiaries)

    def fits(self, victims: Sequence[Candidate]) -> tuple[GpuShare, ...] | None:
        return self.place(self.state, self.node, [*self.before, *victims])
