"""Typed state machines: which phase may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

P = TypeVar("P", bound=str)


class InvalidTransition(RuntimeError):
    """A phase that may not follow the present one: a defect in the core, never the effect of an input."""


class Transitions(Generic[P]):
    """A transition table: by phase, the phases that may follow it. A phase without followers is final."""

    def __init__(self, table: Mapping[P, tuple[P, ...]]) -> None:
        self.table = dict(table)

    def move(self, old: P, new: P) -> P:
        """Returns the new phase. Raises InvalidTransition if it may not follow the old one."""
        if new not in self.table[old]:
            raise InvalidTransition(f"{new} may not follow {old}; these may: {', '.join(self.table[old]) or 'none'}")
        return new
