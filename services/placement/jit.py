"""Loops over the book's columns, compiled. numpy says what is the same for all nodes; what differs from GPU to GPU and
ends early is a loop, and a loop in plain Python is a hundred times too slow (docs/decisions/0014)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiles for the types of the first call, and keeps the result beside the source for the next process."""
    return cast(F, njit(cache=True)(function))
