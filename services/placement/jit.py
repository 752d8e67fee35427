"""Compiled loops over the book's arrays. numpy handles what is the same for all nodes. Work that differs between GPUs
and ends early is a loop, and a loop in plain Python is a hundred times too slow (docs/decisions/0014).

Compiling all loops takes 5 to 12 seconds, once: the result is cached beside the source, or in NUMBA_CACHE_DIR. A
service compiles before it competes for the lease, and an installation once (`python -m
services.placement.engine.precompile`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiles for the argument types of the first call."""
    try:
        return cast(F, njit(cache=True)(function))
    except RuntimeError:  # no folder to keep it in can be written: every process compiles for itself
        return cast(F, njit()(function))
