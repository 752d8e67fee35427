from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native import enforcement_built


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interposer, its probe and the fake driver."""
    return enforcement_built(tmp_path_factory.mktemp("interposer"))
