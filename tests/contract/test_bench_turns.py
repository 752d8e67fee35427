"""A small run of the bench of turns: an agent over real NATS, real programs on the fake driver.

The times are for readers; this checks what they rest on: no failure, results bit for bit those of running alone, the
host never beyond its memory. However the bench ends, its programs end too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from bench.turns.__main__ import measure, world
from tests.support.waiting import eventually


async def test_eight_programs_take_turns_on_two_gpus_and_compute_what_they_compute_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    for name, value in world(tmp_path, 2).items():
        monkeypatch.setenv(name, value)
    # More programs would not all have begun, or not have had a second turn, on a machine that is slow.
    found = await measure(tmp_path, 8, 2, 10)
    assert found["failures"] == []
    assert found["results_as_alone"] == found["begun"] > 2
    assert found["turns"] > found["begun"], "some had more than one turn"
    assert set(found["to_full_speed"]) == {"pause", "checkpoint"}
    assert 0 < found["host_mib_most"] <= found["host_mib"]


def processes_of(folder: Path) -> list[str]:
    """The processes whose command names something in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_of_the_bench_runs_after_its_end(tmp_path: Path, sign: signal.Signals) -> None:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    command = [sys.executable, "-m", "bench.turns", "--programs", "4", "--gpus", "2", "--seconds", "600"]
    bench = await asyncio.create_subprocess_exec(
        *command, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(
            lambda: sum("/program " in each for each in processes_of(tmp_path)) >= 2, within_s=60, what="two programs"
        )
        bench.send_signal(sign)
        await eventually(lambda: bench.returncode is not None, within_s=30, what="the bench has ended")
        await eventually(lambda: not processes_of(tmp_path), within_s=30, what="all of its processes have ended")
    finally:
        if bench.returncode is None:
            bench.kill()
            await bench.wait()
    assert bench.returncode == (-sign if sign == signal.SIGKILL else 128 + sign)
