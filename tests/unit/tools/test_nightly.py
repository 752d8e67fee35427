"""The nightly run: a line for each step, limits, and the exit status."""

from __future__ import annotations

import argparse
import os
import re
import select
import sys
from pathlib import Path

import pytest

from tools.nightly import ROOT, Step, main, run, steps


def step(name: str, code: str, *, limit_s: float = 30) -> Step:
    return Step(name, (sys.executable, "-c", code), limit_s)


def test_a_step_that_passes_says_its_last_line(tmp_path: Path) -> None:
    passed, line = run(step("sim", "print('much'); print('seeds: 3')"), tmp_path)
    assert passed
    assert re.fullmatch(r"sim: passed, \d+ s: seeds: 3", line)
    assert (tmp_path / "sim.log").read_text() == "much\nseeds: 3\n"


def test_a_step_that_fails_says_with_what(tmp_path: Path) -> None:
    passed, line = run(step("fuzz", "import sys; sys.exit('a parser failed')"), tmp_path)
    assert not passed
    assert re.fullmatch(r"fuzz: FAILED with status 1, \d+ s: a parser failed", line)


def test_a_step_that_is_not_done_in_time_ends_with_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print(child.pid, flush=True); child.wait()"
    )
    passed, line = run(step("churn", code, limit_s=3), tmp_path)
    assert not passed
    assert "churn: FAILED: not done after 3 s" in line
    assert _ends(int((tmp_path / "churn.log").read_text()))


def _ends(pid: int) -> bool:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(watched, "rb"):
        return bool(select.select([watched], [], [], 10)[0])


@pytest.mark.parametrize(("codes", "status"), [(("", ""), 0), (("exit(3)", ""), 1)])
def test_all_run_and_the_status_says_whether_one_failed(
    codes: tuple[str, ...],
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tools.nightly.LOGS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["nightly"])
    with pytest.raises(SystemExit) as ended:
        main([step(f"s{number}", code) for number, code in enumerate(codes)])
    assert ended.value.code == status
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["s0", "s1"]


def test_each_step_is_a_target_of_the_makefile_with_its_amount() -> None:
    given = argparse.Namespace(cases=1, seeds=2, guided_s=7.0, seconds=3.0, mutants_s=4.0, versions_s=5.0, limit_s=6.0)
    made = steps(given)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [one.name for one in made] == ["fuzz", "sim", "guided", "churn", "mutants", "versions"]
    assert {one.command[2] for one in made} <= targets
    assert [one.command[3:] for one in made] == [("CASES=1",), ("SEEDS=2",), ("SECONDS=7.0",), ("SECONDS=3.0",), (), ()]
    assert [one.limit_s for one in made] == [6.0, 6.0, 13.0, 9.0, 4.0, 5.0]
