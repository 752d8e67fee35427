"""Evict: the pod ends and frees all that it has.

Members of its gang that cannot run without it end too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

from services.preemptor.planning.candidate import Candidate
from shared.model.grant import Grant
from shared.scheduling.minimal_sets import add_until_enough


class Evictions(Protocol):
    """Tries sets of victims for one pod on one node (`attempt.Attempt`)."""

    def unit(self, candidate: Candidate, others: Sequence[Candidate] = ()) -> list[Candidate] | None:
        """Returns the pods that end with this one, besides `others`; None if one of them may not be evicted."""

    def may_preempt(self, victims: Sequence[Candidate]) -> bool: ...

    def fits(self, victims: Sequence[Candidate]) -> Grant | None:
        """Returns what the pod gets when the victims are gone; None if it does not fit."""


def cheapest(candidates: Sequence[Candidate], attempt: Evictions) -> list[Candidate] | None:
    """Adds candidates in their order until the pod fits; returns None if it never does.

    A candidate with which more pods would end than before, because its gang has lost others, comes after the others of
    its priority.
    """
    added: Sequence[Candidate] = ()

    def unit(candidate: Candidate, others: Sequence[Candidate]) -> list[Candidate] | None:
        found = attempt.unit(candidate, others)
        return found if found is not None and attempt.may_preempt([*others, *found]) else None

    def is_enough(victims: Sequence[Candidate]) -> bool:
        nonlocal added
        added = victims
        return attempt.fits(victims) is not None

    def ordered() -> Iterator[Candidate]:
        for _, alike in groupby(candidates, key=lambda candidate: candidate.priority):
            later = []
            for candidate in alike:
                now = attempt.unit(candidate, added) or ()
                if len(now) > 1 and len(now) > len(attempt.unit(candidate) or ()):
                    later.append(candidate)
                else:
                    yield candidate
            yield from later

    return add_until_enough(ordered(), unit, is_enough)


def single_victims(candidates: Sequence[Candidate], attempt: Evictions) -> Iterator[list[Candidate]]:
    """Yields each candidate (with the gang members that end with it) whose eviction alone is enough."""
    for candidate in candidates:
        unit = attempt.unit(candidate)
        if unit is not None and attempt.fits(unit) is not None and attempt.may_preempt(unit):
            yield unit
