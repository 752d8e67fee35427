"""A sample of the cases, and that the fuzzing itself finds what it looks for. `make fuzz` runs many more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.watcher.core import Core
from shared.book.book import Book
from shared.book.states import grant_of, pod_state
from shared.contracts.facts import Put
from tests.fuzz.parser import SLOW_S, BrokenPromise, Parser, plain, promise, run_case
from tests.fuzz.parsers import parsers
from tests.fuzz.parsers.annotations import ANNOTATIONS
from tests.fuzz.run import run
from tests.support import build

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 20
"""Cases of each parser."""


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.name)
def test_every_example_is_accepted(parser: Parser) -> None:
    """Changes of something that is refused anyway would show little."""
    for example in parser.examples:
        parser.read(plain(example))


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.name)
def test_a_sample_of_damaged_input_is_read_or_refused(parser: Parser) -> None:
    failures = [failure for number in range(SAMPLE * parser.weight) if (failure := run_case(parser, number)[1])]
    assert not failures, failures[0]


@given(
    st.dictionaries(
        st.sampled_from([key for key, _ in ANNOTATIONS]), st.text() | st.sampled_from([text for _, text in ANNOTATIONS])
    )
)
def test_no_annotations_stop_the_watcher_or_placement(annotations: dict[str, str]) -> None:
    """Any text in any of Kerf's annotations, in any combination, on a pod that is bound."""
    pod = build.pod("a", node="n", limits={"kerf.dev/gpu-memory": "16Gi"}, annotations=annotations)
    pod_state(pod)
    grant_of(pod)
    Core("epoch").facts((Put(object=pod),), 1.0)
    Book().apply(Put(object=pod))


def _only(read: Callable[[bytes], object], *errors: type[Exception]) -> Parser:
    return Parser(name="planted", form="json", examples=({"a": [1, "x"]},), read=read, errors=errors)


def _raises(data: bytes) -> object:
    raise KeyError(data)


def _promises(data: bytes) -> object:
    promise(not data, "nothing comes")
    return data


def _works_long(data: bytes) -> object:
    end = time.process_time() + SLOW_S + 0.1
    while time.process_time() < end:
        pass
    return data


def test_an_undocumented_exception_is_a_failure_and_a_documented_one_is_not() -> None:
    _, failure = run_case(_only(_raises), 3)
    assert failure is not None
    assert failure.problem.startswith("KeyError")
    assert failure.where.partition(":")[0] == __file__
    assert run_case(_only(_raises, KeyError), 3) == (False, None)


def test_a_broken_promise_and_a_hang_are_failures() -> None:
    _, broken = run_case(_only(_promises, ValueError), 0)
    _, slow = run_case(_only(_works_long), 0)
    assert broken is not None
    assert broken.problem == f"{BrokenPromise.__name__}: nothing comes"
    assert slow is not None
    assert "of CPU time" in slow.problem


def test_parsers_have_names_of_their_own() -> None:
    names = [parser.name for parser in parsers()]
    assert len(names) == len(set(names)) > 200


def test_a_case_is_the_same_each_time_and_differs_from_the_next() -> None:
    parser = _only(lambda data: data)
    cases = [parser.case(number) for number in range(50)]
    assert cases == [parser.case(number) for number in range(50)]
    assert len(set(cases)) > 30


def test_a_run_counts_every_case_and_names_each_problem_once() -> None:
    report = run([_only(_raises), _only(lambda data: data)], 40)
    assert (report.cases, report.failed, len(report.failures)) == (40, 20, 1)


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "20", "--parser", "cpuset", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert (report["cases"], report["failed"], report["failures"]) == (20, 0, [])
    assert report["by_parser"]["cpuset"]["cases"] == 20
