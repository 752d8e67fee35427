"""Compiled loops over the book's arrays. numpy handles what is the same for all nodes. Work that differs between GPUs
and ends early is a loop, and a loop in plain Python is a hundred times too slow (docs/decisions/0014).

Compiling all loops takes 5 to 12 seconds, once: the result is cached beside the source, or in NUMBA_CACHE_DIR. A
service compiles before it competes for the lease, and an installation once (`python -m
services.placement.engine.precompile`). The image holds the result for its own processor name (NUMBA_CPU_NAME) in
KERF_COMPILED; Numba ignores a cache that it cannot write, so it is copied to NUMBA_CACHE_DIR first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import structlog
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def copy_compiled(environ: Mapping[str, str]) -> bool:
    """Copies what the image has compiled into an empty NUMBA_CACHE_DIR; whether it did.

    A cache that cannot be written is logged: every start then compiles for itself.
    """
    source, target = environ.get("KERF_COMPILED"), environ.get("NUMBA_CACHE_DIR")
    if not source or not target:
        return False
    try:
        if Path(target).is_dir() and any(Path(target).iterdir()):
            return False
        for file in (path for path in Path(source).rglob("*") if path.is_file()):
            # Contents alone: a volume's times and modes are not this process's to set.
            copy = Path(target) / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    except OSError as error:
        structlog.get_logger().warning("compiled_loops_not_copied", source=source, target=target, error=str(error))
        return False
    return True


def jit(function: F) -> F:
    """Compiles for the argument types of the first call."""
    try:
        return cast(F, njit(cache=True)(function))
    except RuntimeError:  # no folder to keep it in can be written: every process compiles for itself
        return cast(F, njit()(function))


copy_compiled(os.environ)  # before the first function below is made: Numba looks for its cache then
