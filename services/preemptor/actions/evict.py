"""It ends, and what it had is free; with it all of its gang that cannot do without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from services.preemptor.candidate import Candidate
from shared.model.grant import GpuShare


class Attempt(Protocol):
    """One pod on one node, and who goes for it."""

    def unit(self, candidate: Candidate, with_: Sequence[Candidate] = ()) -> list[Candidate] | None:
        """Who ends if this one does, beside these. None: one of them may not."""

    def may_preempt(self, victims: Sequence[Candidate]) -> bool: ...

    def fits(self, victims: Sequence[Candidate]) -> tuple[GpuShare, ...] | None:
        """What it gets when these are gone."""


def cheapest(candidates: Sequence[Candidate], attempt: Attempt) -> list[Candidate] | None:
    """One by one in this order, until it fits."""
    victims: list[Candidate] = []
    for candidate in candidates:
        unit = attempt.unit(candidate, victims)
        if unit is not None and attempt.may_preempt([*victims, *unit]):
            victims += unit
            if attempt.fits(victims) is not None:
                return victims
    return None


def alone(candidates: Sequence[Candidate], attempt: Attempt) -> Iterator[list[Candidate]]:
    """Each whose going is enough by itself."""
    for candidate in candidates:
        unit = attempt.unit(candidate)
        if unit is not None and attempt.fits(unit) is not None and attempt.may_preempt(unit):
            yield unit
