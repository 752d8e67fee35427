"""A small run of the bench of turns: an agent over real NATS, real programs on the fake driver.

The times are for readers; this checks what they rest on: no failure, results bit for bit those of running alone, the
host never beyond its memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.turns.__main__ import measure, world


async def test_two_dozen_programs_take_turns_on_two_gpus_and_compute_what_they_compute_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    for name, value in world(tmp_path, 2).items():
        monkeypatch.setenv(name, value)
    found = await measure(tmp_path, 24, 2, 12)
    assert found["failures"] == []
    assert found["results_as_alone"] == found["begun"] > 2
    assert found["turns"] > found["begun"], "some had more than one turn"
    assert set(found["to_full_speed"]) == {"pause", "checkpoint"}
    assert 0 < found["host_mib_most"] <= found["host_mib"]
