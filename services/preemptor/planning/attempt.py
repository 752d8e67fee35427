"""Tries sets of victims for one pod on one node, in addition to the pods that leave anyway. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.preemptor.planning.candidate import Candidate
from services.preemptor.planning.fitting import fit
from services.preemptor.planning.victims import Candidates
from shared.book.states import NodeState, PodState
from shared.model.grant import Grant
from shared.scheduling.transaction import ChangeList, Transaction


class Attempt:
    """Implements `actions.evict.Evictions` for one pod on one node.

    Victims have left in the trial after `fits`, until `end` rolls that back.
    """

    def __init__(
        self,
        trial: Transaction,
        candidates: Candidates,
        state: PodState,
        node: NodeState,
        *,
        before: Sequence[Candidate],
        gone: Sequence[Candidate],
        beneficiaries: Sequence[PodState],
        placed: Sequence[PodState],
    ) -> None:
        """`before`: pods that have left in the trial: victims of this plan, and pods that are terminating anyway.

        `gone`: the victims among them. `beneficiaries`: all pods of the plan. `placed`: those that have places in the
        trial already.
        """
        self._trial, self._candidates, self._state, self.node = trial, candidates, state, node
        self._gone, self._beneficiaries = gone, beneficiaries
        self._left, self._admitted = before, [*placed, state]
        self._before = {candidate.uid for candidate in before}
        self._leaving = ChangeList[Candidate](trial, lambda victim: victim.leave(trial))

    def unit(self, candidate: Candidate, others: Sequence[Candidate] = ()) -> list[Candidate] | None:
        going = self._before | {victim.uid for victim in others}
        if not candidate.is_evictable or candidate.uid in going:
            return None
        return self._candidates.unit(candidate, going, self._state)

    def may_preempt(self, victims: Sequence[Candidate]) -> bool:
        return self._candidates.may_preempt([*self._gone, *victims], self._beneficiaries)

    def fits(self, victims: Sequence[Candidate]) -> Grant | None:
        """Returns what the pod gets on the node when these victims are gone; None if it does not fit, or if its queue
        may not have it: then others of the queue have to leave even where a GPU is free."""
        self._leaving.set(victims)
        grant = fit(self._state, self._trial.book, self.node.name)
        within = grant is not None and self._candidates.within_quota([*self._left, *victims], self._admitted)
        return grant if within else None

    def end(self) -> None:
        self._leaving.set(())
