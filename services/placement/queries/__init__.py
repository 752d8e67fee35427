"""Answers to questions on the bus: a function for each, and a line in its module's `ANSWERS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from services.placement.core import Core


class Moment(NamedTuple):
    """When a question is answered."""

    now: float
    """The core's clock, in seconds."""
    wall: float
    """Seconds since 1970."""


Answers = dict[str, Callable[[Core, Any, Moment], Any]]
"""By the name of the query: the function that returns the answer, or the steps to it (`explain.steps.Steps`)."""
