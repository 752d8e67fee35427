"""The version of this installation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

PACKAGE = "kerf-gpu"


def version() -> str:
    """The version of the installed package; `unknown` where Kerf runs from its sources without being installed."""
    try:
        return version_of(PACKAGE)
    except PackageNotFoundError:
        return "unknown"
