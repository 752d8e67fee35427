"""Runs cases over all parsers, and counts."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable

import msgspec

from tests.fuzz.parser import Failure, Parser, run_case

MAX_GROWTH_MIB = 200
"""Of the process, after a tenth of the cases: more means that a parser keeps what it reads."""
MAX_SHOWN = 50
"""Failures that are reported in full."""


class Count(msgspec.Struct):
    cases: int = 0
    accepted: int = 0
    failures: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    cases: int
    by_parser: dict[str, Count]
    failures: tuple[Failure, ...]
    """The first of each problem; at most `MAX_SHOWN`."""
    failed: int
    """How many cases failed, with those that have the problem of an earlier one."""
    growth_mib: int
    """How much the process's largest memory grew after the first tenth of the cases."""
    seconds: float


def run(parsers: Iterable[Parser], cases: int, *, first: int = 0, say: Callable[[str], None] = str) -> Report:
    """`cases` in all, divided over the parsers by weight. `first`: the number of each parser's first case."""
    chosen = tuple(parsers)
    began, each = time.monotonic(), max(1, cases // sum(parser.weight for parser in chosen))
    counts = {parser.name: Count() for parser in chosen}
    problems: dict[tuple[str, str, str], Failure] = {}
    failed, base_kib, done, told = 0, 0, 0, began
    rounds = max(parser.weight for parser in chosen) * each
    for number in range(rounds):
        for parser in chosen:
            if number >= parser.weight * each:
                continue
            accepted, failure = run_case(parser, first + number)
            count = counts[parser.name]
            count.cases, count.accepted, done = count.cases + 1, count.accepted + accepted, done + 1
            if failure is not None:
                count.failures, failed = count.failures + 1, failed + 1
                key = (parser.name, failure.where, failure.problem.partition(":")[0])
                if key not in problems:
                    problems[key] = failure
                    say(f"{parser.name} {failure.number}: {failure.problem} {failure.where}")
        if not base_kib and number >= rounds // 10:
            base_kib = _peak_kib()
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"{done} cases, {failed} failures")
    return Report(
        cases=done,
        by_parser=counts,
        failures=tuple(problems.values())[:MAX_SHOWN],
        failed=failed,
        growth_mib=(_peak_kib() - base_kib) // 1024,
        seconds=round(time.monotonic() - began, 1),
    )


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
