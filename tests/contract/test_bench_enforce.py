"""What the bench says of slices on the fake driver: the promises of the README, as bounds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.enforce.__main__ import KEYS, measure
from bench.enforce.place import FAKE_UUID, Device, build


def test_slices_hold_on_the_fake_driver(tmp_path: Path) -> None:
    """Time is virtual there, but for what a launch costs."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    build(tmp_path, fake=True)
    found = measure(tmp_path, Device("fake", FAKE_UUID, str(tmp_path / "libcuda.so.1")), seconds=4)
    assert set(KEYS) <= set(found)
    figures = {key: value for key, value in found.items() if isinstance(value, int | float)}
    assert (figures["memory_overshoot_bytes_max"], figures["memory_unused_bytes_max"], figures["processes_left_locked"]) == (0, 0, 0)
    assert figures["share_error_percent_max"] < 2
    assert figures["high_throughput_loss_percent"] < 1
    assert figures["high_p99_loss_percent"] < 5
    assert figures["low_percent_of_idle"] > 80
    assert abs(figures["least_got_percent"] - figures["least_asked_percent"]) < 1
