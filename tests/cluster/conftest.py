"""A real API server for the tests of this folder: one for all of them, a namespace per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import control_plane, namespace

__all__ = ["control_plane", "namespace"]
FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, whichever folder the run was started with
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all tests of a module with a control plane of its own, or each worker would start one."""
    for item in items:
        if FOLDER in item.path.parents and "plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
