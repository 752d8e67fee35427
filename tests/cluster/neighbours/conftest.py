"""A control plane for each module of this folder; one that needs more of it has a fixture `plane` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.whole import policed_plane
from tools.control_plane import ControlPlane


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with policed_plane() as made:
        yield made
