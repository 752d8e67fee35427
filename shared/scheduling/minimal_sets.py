"""Finds a minimal set of pods that must leave: adds the cheapest until that is enough, then puts back the unneeded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar


class _Leaving(Protocol):
    @property
    def uid(self) -> str: ...


T = TypeVar("T", bound=_Leaving)
IsEnough = Callable[[Sequence[T]], bool]
"""Whether it is enough, and allowed, that just these leave."""


def add_until_enough(
    candidates: Iterable[T], unit: Callable[[T, Sequence[T]], Sequence[T] | None], is_enough: IsEnough[T]
) -> list[T] | None:
    """Adds candidates in their order until they are enough; None if all of them are not.

    `unit`: what leaves with a candidate, itself included, besides those that were added before; None if it must stay.
    """
    added: list[T] = []
    for candidate in candidates:
        more = unit(candidate, added)
        if more:
            added = [*added, *more]
            if is_enough(added):
                return added
    return None


def first_unneeded(
    leaving: Sequence[T], groups: Iterable[Collection[str]], is_enough: IsEnough[T]
) -> Collection[str] | None:
    """Returns the first of these groups, by uid, that can stay while the others leave; None if all are needed."""
    return next((group for group in groups if is_enough(_without(leaving, group))), None)


def put_back_unneeded(leaving: Sequence[T], groups: Iterable[Collection[str]], is_enough: IsEnough[T]) -> list[T]:
    """Returns those that must leave. Each of these groups stays, in their order, if the others are enough without."""
    needed = list(leaving)
    for group in groups:
        rest = _without(needed, group)
        if len(rest) < len(needed) and is_enough(rest):
            needed = rest
    return needed


def _without(leaving: Sequence[T], group: Collection[str]) -> list[T]:
    return [one for one in leaving if one.uid not in group]
