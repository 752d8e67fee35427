"""The steps on a machine with a GPU: each ends in its time, with all that it has started, and its words are kept."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from bench.on_gpu.__main__ import GROUPS, Step, _without_pytorch, run
from tests.support.waiting import eventually


def step(name: str, script: str, limit_s: float = 30, **more: str) -> Step:
    return Step(name=name, command=(sys.executable, "-c", script), limit_s=limit_s, more=more)


def test_what_a_step_says_and_its_status_are_kept() -> None:
    found = run([step("a", "import os; print('{\"x\": ' + os.environ['X'] + '}')", X="3")], {}, time.monotonic() + 60)
    assert (found["a"]["status"], found["a"]["out"]) == (0, {"x": 3})
    assert found["a"]["command"].startswith("python -c")


def test_a_step_that_fails_ends_no_other_one() -> None:
    steps = [step("bad", "import sys; sys.exit('why')"), step("good", "print('said')")]
    found = run(steps, {}, time.monotonic() + 60)
    assert (found["bad"]["status"], found["bad"]["errors"]) == (1, "why\n")
    assert (found["good"]["status"], found["good"]["out"]) == (0, "said\n")


async def test_a_step_beyond_its_limit_is_ended_with_its_children_and_what_it_said_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = (
        "import subprocess, sys, pathlib; c = subprocess.Popen(['sleep', 'infinity']); print('begun', flush=True); "
        f"pathlib.Path({str(file)!r}).write_text(str(c.pid)); c.wait()"
    )
    found = run([step("long", script, 1.0)], {}, time.monotonic() + 60)
    assert (found["long"]["status"], found["long"]["out"]) == ("not ended within 1 s", "begun\n")
    child = int(file.read_text())
    await eventually(lambda: _has_ended(child), what="the end of what it had started")


def _has_ended(pid: int) -> bool:
    """A killed process stays as a zombie until its parent has read its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_an_interrupt_ends_what_runs(tmp_path: Path) -> None:
    """Each step has a session of its own, which a terminal's interrupt does not reach."""
    file = tmp_path / "pid"
    script = f"import os, signal, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); signal.pause()"
    code = (
        "import sys, time; from bench.on_gpu.__main__ import Step, run; "
        "run([Step(name='a', command=(sys.executable, '-c', sys.argv[1]), limit_s=60)], {}, time.monotonic() + 60)"
    )
    bench = await asyncio.create_subprocess_exec(sys.executable, "-c", code, script, stderr=asyncio.subprocess.DEVNULL)
    await eventually(lambda: file.exists() and bool(file.read_text()), within_s=30, what="the step")
    bench.send_signal(signal.SIGINT)
    await bench.wait()
    await eventually(lambda: _has_ended(int(file.read_text())), what="the end of the step")


def test_steps_of_pytorch_are_told_apart() -> None:
    left, without = _without_pytorch(GROUPS)
    assert {"canary", "nvml", "checkpoints"} <= {each.name for group in left for each in group}
    assert {"trainings", "pytorch-oom", "rates-bare"} <= set(without)


def test_no_step_runs_beyond_the_end_of_all() -> None:
    found = run([step("long", "import signal; signal.pause()", 50)], {}, time.monotonic() + 1)
    assert str(found["long"]["status"]).startswith("not ended within")
    assert found["long"]["seconds"] < 20


def test_no_two_steps_have_the_same_name() -> None:
    names = [each.name for group in GROUPS for each in group]
    assert len(names) == len(set(names)) > 20
