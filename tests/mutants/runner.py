"""Tries mutants on copies of the tree, so that the tree itself is never touched."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from tests.mutants.mutant import ROOT, Mutant

LIMIT_S = 240
"""For the tests of one mutant. One that makes them hang is noticed, too."""
_PASSED, _FAILED, _TIMED_OUT = 0, 1, 124

Verdict = Literal["killed", "survived", "explained", "invalid"]


class Result(msgspec.Struct, frozen=True):
    mutant: str
    verdict: Verdict
    """killed: a test failed. survived: none did. explained: none did, and the mutant says why. invalid: it could not be
    tried, or it was killed although it says that it survives."""
    by: str = ""
    """The test that failed, or the reason."""


class Unfit(Exception):
    """The code as it is does not pass the tests, so their failing would say nothing of a mutant."""


def run(mutants: Sequence[Mutant], *, jobs: int, told: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Tries each mutant, `jobs` at a time. Raises Unfit."""
    problems = [problem for mutant in mutants if (problem := mutant.problem())]
    if problems:
        raise Unfit("\n".join(problems))
    with ExitStack() as stack:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        trees = [stack.enter_context(_copy()) for _ in range(jobs)]
        for tree in trees:
            copies.put(tree)
        _check(trees[0], sorted({test for mutant in mutants for test in mutant.tests}), jobs)

        def one(mutant: Mutant) -> Result:
            tree = copies.get()
            try:
                result = _try(mutant, tree)
            finally:
                copies.put(tree)
            told(result)
            return result

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutants))


def _try(mutant: Mutant, tree: Path) -> Result:
    path = tree / mutant.file
    original = path.read_bytes()
    try:
        mutant.apply(tree)
        status, output = _pytest(tree, "-x", *mutant.tests)
    finally:
        path.write_bytes(original)
    if status == _TIMED_OUT:
        return Result(mutant.name, "killed", f"no end within {LIMIT_S} s")
    if status not in (_PASSED, _FAILED):
        return Result(mutant.name, "invalid", f"pytest ended with {status}: {output[-300:]}")
    if status == _PASSED:
        return Result(mutant.name, "explained", mutant.survives) if mutant.survives else Result(mutant.name, "survived")
    summary = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR ")) and "::" in line]
    failed = summary[0].partition(" ")[2].partition(" - ")[0] if summary else "a test"
    if mutant.survives:
        return Result(mutant.name, "invalid", f"it says that it survives, and {failed} has killed it")
    return Result(mutant.name, "killed", failed)


def _check(tree: Path, tests: Sequence[str], jobs: int) -> None:
    status, output = _pytest(tree, "-n", str(jobs), *tests, limit_s=LIMIT_S * 5)
    if status != _PASSED:
        raise Unfit(f"the tests do not pass on the code as it is:\n{output[-3000:]}")


def _pytest(tree: Path, *arguments: str, limit_s: float = LIMIT_S) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _TIMED_OUT, ""
    return done.returncode, done.stdout + done.stderr


@contextmanager
def _copy() -> Iterator[Path]:
    """All files that git knows or would add, as they are now."""
    named = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory(prefix="kerf-mutants-") as folder:
        tree = Path(folder)
        for name in (part.decode() for part in named.split(b"\0") if part):
            source, target = ROOT / name, tree / name
            if source.is_file():  # one that was deleted and not committed is listed all the same
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        yield tree
