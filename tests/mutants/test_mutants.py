"""The list fits the code, and a sample of it is tried. `make mutants` tries all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.mutants.catalogue import every
from tests.mutants.mutant import Mutant
from tests.mutants.runner import LIMIT_S, Unfit, run

SAMPLE = 40
"""One mutant in so many is tried with each run of the tests."""


def test_every_mutant_can_be_tried() -> None:
    assert [problem for mutant in every() if (problem := mutant.problem())] == []


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)  # each has its tests run twice, without it and with it
@pytest.mark.parametrize("mutant", every()[::SAMPLE], ids=lambda mutant: mutant.name)
def test_a_sample_of_the_mutants_is_killed(mutant: Mutant) -> None:
    assert [result.verdict for result in run([mutant], jobs=1)] == ["explained" if mutant.survives else "killed"]


MENDED = Mutant(
    name="mended",
    what="it changes a comment",
    file="tests/mutants/__init__.py",
    old="One-line weakenings",
    new="Weakenings",
    tests=("tests/mutants/test_mutants.py::test_every_mutant_can_be_tried",),
)


def test_a_mutant_that_no_test_notices_survives() -> None:
    assert [result.verdict for result in run([MENDED], jobs=1)] == ["survived"]


def test_a_mutant_of_text_that_is_not_there_is_named() -> None:
    with pytest.raises(Unfit, match=r"tests/mutants/__init__\.py has the text 0 times"):
        run([msgspec.structs.replace(MENDED, old="no such text")], jobs=1)


def test_tests_that_fail_without_any_mutant_say_nothing() -> None:
    test = "tests/mutants/test_mutants.py::test_a_sample_of_the_mutants_is_killed[no-such-mutant]"
    with pytest.raises(Unfit, match="do not pass on the code as it is"):
        run([msgspec.structs.replace(MENDED, tests=(test,))], jobs=1)


@pytest.mark.parametrize("test", ["tests/mutants/no_such_file.py", "tests/mutants/test_mutants.py::no_such_test"])
def test_a_mutant_with_a_test_that_is_not_there_is_named(test: str) -> None:
    with pytest.raises(Unfit, match=f"mended: there is no {test}"):
        run([msgspec.structs.replace(MENDED, tests=(test,))], jobs=1)


def test_the_tree_itself_is_not_touched() -> None:
    file = Path(MENDED.file)
    before = file.read_bytes()
    run([MENDED], jobs=1)
    assert file.read_bytes() == before
