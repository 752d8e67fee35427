from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.services.node_agent.devices.machine import TWO, Machine, load


@pytest.fixture(scope="session")
def library() -> None:
    load()


@pytest.fixture
def machine(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine with two GPUs. At the end it stops hanging, so that no thread is left behind."""
    made = Machine(tmp_path / "state")
    made.become(TWO)
    monkeypatch.setenv("KERF_FAKE_NVML_STATE", str(tmp_path / "state"))
    yield made
    made.become(TWO)
