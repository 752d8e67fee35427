from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native import built


@pytest.fixture(scope="session")
def build() -> Path:
    """The interposer, its probe and the fake driver."""
    return built("enforcement")
