"""Which function of ours answers which suite, and where Kerf means to differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bench.peercases import hami, hami_requests, kai, volcano
from bench.peercases.differs import differs

Case = dict[str, Any]
Run = Callable[[Case], str]


class Suite(msgspec.Struct):
    cases: int = 0
    passed: int = 0
    differs: int = 0
    failed: dict[str, str] = {}

    def counts(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "failed": sorted(self.failed)}


def judge(cases: Iterable[Case], *, everything: bool) -> dict[str, Suite]:
    """By peer/suite, in order of appearance."""
    suites: dict[str, Suite] = {}
    for case in cases:
        if not (everything or case["universal"]):
            continue
        suite = suites.setdefault(f"{case['peer']}/{case['suite']}", Suite())
        suite.cases += 1
        problem = _problem(case)
        if not problem:
            suite.passed += 1
        elif differs(case):
            suite.differs += 1
        else:
            suite.failed[case["id"]] = problem
    return suites


def _problem(case: Case) -> str:
    run = _runner(case)
    if run is None:
        return "nothing of Kerf's answers this suite"
    try:
        return run(case)
    except (LookupError, ValueError) as error:
        # A case that cannot be told in our words is one that fails, and the others still run.
        return f"cannot be told in Kerf's objects: {type(error).__name__}: {error}"


def _runner(case: Case) -> Run | None:
    if case["peer"] == "KAI":
        return kai.run
    return {"HAMi": hami.SUITES | hami_requests.SUITES, "Volcano": volcano.SUITES}[case["peer"]].get(case["suite"])
