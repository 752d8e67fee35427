"""A small run of the suspension bench: an agent over real NATS, programs on the fake driver.

The times are for readers; this checks only what they rest on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.fullspeed.__main__ import ACTIONS, HIGH_KERNEL_US, HIGH_MILLI, measure
from bench.fullspeed.node import world


async def test_every_suspend_action_brings_the_new_work_to_full_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it has its share in virtual time, and after each action 95 % of that; otherwise the bench ends with an
    error."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    for name, value in world(tmp_path).items():
        monkeypatch.setenv(name, value)
    found = await measure(tmp_path, 1, ACTIONS)
    assert set(found) == {"device", "actions", "alone_per_s", "clock_least"}
    assert found["device"] == "fake"
    assert list(found["actions"]) == ["throttle", "pause", "checkpoint", "evict"]
    assert all(figures["runs"] == 1 and figures["ms_p50"] == figures["ms_p99"] for figures in found["actions"].values())
    granted_per_s = HIGH_MILLI * 1000 / HIGH_KERNEL_US
    assert 0.97 * granted_per_s < found["alone_per_s"] <= granted_per_s
