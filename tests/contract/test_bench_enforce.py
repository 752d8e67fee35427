"""The enforcement bench on the fake driver: the figures of docs/benchmarks.md, as bounds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.enforce.__main__ import KEYS, measure
from bench.enforce.cases import LAUNCH_CASES, LIMIT_MIB, hook
from bench.enforce.place import FAKE_UUID, Device, Place, build


def test_slices_hold_on_the_fake_driver(tmp_path: Path) -> None:
    """Time is virtual, except for the cost of a launch. The records of events, the program's own too, cost GPU time:
    most where kernels are short."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    build(tmp_path, fake=True)
    found = measure(tmp_path, Device("fake", FAKE_UUID, str(tmp_path / "libcuda.so.1")), seconds=4)
    assert set(KEYS) <= set(found)
    figures = {key: value for key, value in found.items() if isinstance(value, int | float)}
    assert (
        figures["memory_overshoot_bytes_max"],
        figures["memory_unused_bytes_max"],
        figures["processes_left_locked"],
    ) == (0, 0, 0)
    assert figures["memory_device_bytes_max"] == LIMIT_MIB << 20, (
        "the memory that the GPU reports, not the control block's"
    )
    assert figures["share_error_percent_max"] < 5
    assert figures["idle_charged_percent"] < 7
    assert figures["busy_loss_percent_max"] < 6
    assert {name: round(percent) for name, percent in found["busy_percent"].items()} == {
        "without the library": 100,
        "no limit, alone": 100,
        "whole GPU, beside a paused slice": 100,
        "half, alone": 95,
    }
    assert all(error < 2 for error in found["long_share_error_percent"].values())
    by_length = found["share_error_percent_by_launch_ms"]
    assert set(by_length) == {"0.3", "1", "2", "5", "10", "20"}
    assert all(set(row) == {"10:90", "30:70", "50:50", "20:30:50"} for row in by_length.values())
    assert figures["length_share_error_percent_max"] < 4
    assert set(found["launch_ns_by_case"]) == set(LAUNCH_CASES)
    assert figures["short_p99_loss_percent_max"] < 12  # in 4 s the first requests count, before their pattern is known
    assert all(row["throughput_loss_percent"] < 1 for row in found["short_requests"].values())
    assert figures["high_throughput_loss_percent"] < 1
    assert figures["high_p99_loss_percent"] < 7
    assert figures["low_percent_of_idle"] > 60
    assert abs(figures["least_got_percent"] - figures["least_asked_percent"]) < 1


def test_memory_is_judged_by_the_memory_that_the_gpu_reports(tmp_path: Path) -> None:
    """A process without the interposer has the memory, and no control block counts it."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    build(tmp_path, fake=True)
    place = Place(tmp_path, Device("fake", FAKE_UUID, str(tmp_path / "libcuda.so.1")))
    holder = place.start(["hold", "100"], None)
    assert holder.stdout is not None
    assert holder.stdout.readline() == '{"result": 0}\n'
    assert place.used_bytes() == 100 << 20
    holder.communicate(timeout=60)
    assert place.used_bytes() == 0


def test_finished_cases_are_kept_and_not_run_again(tmp_path: Path) -> None:
    device, results = Device("fake", FAKE_UUID, str(tmp_path / "libcuda.so.1")), tmp_path / "results.json"
    build(tmp_path, fake=True)
    found = measure(tmp_path, device, 2, ["idle"], results)
    assert set(json.loads(results.read_text())) == {"idle"}
    kept = {"idle": {"idle_charged_percent": 77.0}}
    results.write_text(json.dumps(kept))
    assert measure(tmp_path, device, 2, ["idle"], results)["idle_charged_percent"] == 77.0
    assert found["idle_charged_percent"] < 7


def test_the_cases_are_listed_and_an_unknown_one_is_named() -> None:
    command = [sys.executable, "-m", "bench.enforce", "--fake"]
    listed = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert {"memory", "shares", "idle", "lengths", "hook", "locks"} <= set(listed)
    wrong = subprocess.run([*command, "--case", "sharse"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "no case sharse" in wrong.stderr


def test_the_driver_itself_tells_of_the_gpu(tmp_path: Path) -> None:
    """In a process of its own: a driver stays loaded."""
    build(tmp_path, fake=True)
    libcuda = tmp_path / "libcuda.so.1"
    script = "import sys; from bench.enforce.__main__ import real; print(real(sys.argv[1]).uuid, real('no-driver'))"
    command = [sys.executable, "-c", script, str(libcuda)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == [FAKE_UUID, "None"]


def test_the_cost_of_a_launch_is_measured_on_a_machine_with_a_gpu_too(tmp_path: Path) -> None:
    """Its GPU has another UUID than that of the driver that does nothing."""
    build(tmp_path, fake=False)
    place = Place(tmp_path, Device("a GPU", "GPU-641cbef0-f8f4-dd2e-6987-f01dfd6c0629", "libcuda.so.1"))
    assert set(hook(place)["launch_ns_by_case"]) == set(LAUNCH_CASES)
