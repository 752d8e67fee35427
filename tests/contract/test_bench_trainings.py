"""A short run of the bench of trainings with its stand-ins: an agent over real NATS, on the fake driver."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from bench.enforce.place import FAKE_UUID, Device
from bench.trainings.__main__ import measure
from bench.turns.__main__ import world


async def test_two_trainings_take_turns_and_lose_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    for name, value in world(tmp_path, 1).items():
        monkeypatch.setenv(name, value)
    device = Device("fake", FAKE_UUID, str(tmp_path / "libcuda.so.1"))
    found = await measure(tmp_path, device, sys.executable, 5, 1, 1)
    assert (found["losses"]["differ"], found["losses"]["differ_in_turns"]) == (0, 0)
    assert found["losses"]["in_turns"] > 10
    for kind, way in (("turns_on_the_gpu", "pause"), ("turns_by_the_host", "checkpoint")):
        assert found[kind]["turns"] >= 2, way
        assert all(rate > 0 for rate in found[kind]["steps_per_s"]), "both had their turns"
    assert found["turns_by_the_host"]["suspend_ms"]["p50"] > found["turns_on_the_gpu"]["suspend_ms"]["most"]
    assert found["time_slicing"]["of_alone_percent"] > 90
    assert "mps" not in found
