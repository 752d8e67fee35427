"""Evict: the pod ends and frees all that it has.

Members of its gang that cannot run without it end too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from services.preemptor.planning.candidate import Candidate
from shared.model.grant import GpuShare


class Evictions(Protocol):
    """Tries sets of victims for one pod on one node (`attempt.Attempt`)."""

    def unit(self, candidate: Candidate, others: Sequence[Candidate] = ()) -> list[Candidate] | None:
        """Returns the pods that end with this one, besides `others`; None if one of them may not be evicted."""

    def may_preempt(self, victims: Sequence[Candidate]) -> bool: ...

    def fits(self, victims: Sequence[Candidate]) -> tuple[GpuShare, ...] | None:
        """Returns the GPU shares that the pod gets when the victims are gone; None if it does not fit."""


def cheapest(candidates: Sequence[Candidate], attempt: Evictions) -> list[Candidate] | None:
    """Adds candidates in their order until the pod fits; returns None if it never does."""
    victims: list[Candidate] = []
    for candidate in candidates:
        unit = attempt.unit(candidate, victims)
        if unit is not None and attempt.may_preempt([*victims, *unit]):
            victims += unit
            if attempt.fits(victims) is not None:
                return victims
    return None


def single_victims(candidates: Sequence[Candidate], attempt: Evictions) -> Iterator[list[Candidate]]:
    """Yields each candidate (with the gang members that end with it) whose eviction alone is enough."""
    for candidate in candidates:
        unit = attempt.unit(candidate)
        if unit is not None and attempt.fits(unit) is not None and attempt.may_preempt(unit):
            yield unit
