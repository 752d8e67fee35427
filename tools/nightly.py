"""What is too long for every change, one after the other: fuzz, sim, guided, churn, mutants, versions.

`make nightly` runs it. One line on stdout for each, with its result and the last line that it wrote; all that it wrote
is in build/nightly. Each has its own amount of work, and none runs longer than its limit. Exit status 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "nightly"
_SHOWN = 160
"""Characters of a step's last line that are shown."""


class Step(NamedTuple):
    name: str
    command: Sequence[str]
    limit_s: float


def steps(args: argparse.Namespace) -> list[Step]:
    """In their order, with the amounts and limits that were given."""
    return [
        Step("fuzz", ("make", "--quiet", "fuzz", f"CASES={args.cases}"), args.limit_s),
        Step("sim", ("make", "--quiet", "sim", f"SEEDS={args.seeds}"), args.limit_s),
        Step("guided", ("make", "--quiet", "guided", f"SECONDS={args.guided_s}"), args.guided_s + args.limit_s),
        Step("churn", ("make", "--quiet", "churn", f"SECONDS={args.seconds}"), args.seconds + args.limit_s),
        Step("mutants", ("make", "--quiet", "mutants"), args.mutants_s),
        Step("versions", ("make", "--quiet", "versions"), args.versions_s),
    ]


def run(step: Step, logs: Path) -> tuple[bool, str]:
    """(whether it passed, its line). What it started ends with it."""
    logs.mkdir(parents=True, exist_ok=True)
    log, began = logs / f"{step.name}.log", time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(step.command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
        try:
            status = process.wait(step.limit_s)
            said = "passed" if status == 0 else f"FAILED with status {status}"
        except subprocess.TimeoutExpired:
            status, said = 1, f"FAILED: not done after {step.limit_s:.0f} s"
        finally:
            _end(process)
    lines = log.read_text(errors="replace").strip().splitlines()
    took_s = time.monotonic() - began
    return status == 0, f"{step.name}: {said}, {took_s:.0f} s: {lines[-1][:_SHOWN] if lines else 'it wrote nothing'}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """With SIGKILL what is left of its group, for a make that is ended leaves its programs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it had ended
    process.wait()


def main(todo: Sequence[Step] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.nightly", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of fuzz (%(default)s)")
    parser.add_argument("--seeds", type=int, default=100_000, help="of sim (%(default)s)")
    parser.add_argument("--guided-s", type=float, default=3600, help="of guided, seconds of CPU (%(default).0f)")
    parser.add_argument("--seconds", type=float, default=3600, help="of churn (%(default).0f)")
    parser.add_argument("--mutants-s", type=float, default=14_400, help="at most, of mutants (%(default).0f)")
    parser.add_argument("--versions-s", type=float, default=14_400, help="at most, of versions (%(default).0f)")
    parser.add_argument("--limit-s", type=float, default=14_400, help="at most, of each other one (%(default).0f)")
    parser.add_argument("--only", default="", help="names with commas between them")
    args = parser.parse_args()
    chosen = list(todo or steps(args))
    wanted = args.only.split(",") if args.only else [step.name for step in chosen]
    if unknown := set(wanted) - {step.name for step in chosen}:
        parser.error(f"there is no {min(unknown)}; there are {', '.join(step.name for step in chosen)}")
    failed = False
    for step in chosen:
        if step.name in wanted:
            passed, line = run(step, LOGS)
            failed |= not passed
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
