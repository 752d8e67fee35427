"""The container's account, and its gate, in states that a test of whole processes cannot reproduce."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "native" / "interposer"


def alone(name: str, tmp_path: Path, *more: str, part: str = "account.c") -> list[str]:
    """Compiles the program with one part of the interposer alone, and returns what it prints."""
    program = tmp_path / name
    sources = [str(HERE / f"{name}.c"), str(SOURCES / part)]
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-std=gnu11", f"-I{SOURCES}", *more, "-o", str(program), *sources, "-lpthread"],
        check=True,
    )
    return subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=30).stdout.split()


def test_a_slot_that_a_new_process_takes_during_a_repair_keeps_its_charge(tmp_path: Path) -> None:
    """Otherwise its memory would be on the device but not in the account, and the account would fall below zero at the
    free."""
    assert alone("reclaim_race", tmp_path) == [str(10 << 30), "0"]


def test_an_allocation_fails_if_the_limit_is_lowered_between_its_check_and_its_count(tmp_path: Path) -> None:
    """The agent has already read the sum, and other pods use the rest."""
    assert alone("shrink_race", tmp_path, "-Wl,--wrap=pthread_mutex_lock") == ["0", "0", "0"]


def test_launches_are_judged_while_the_agent_changes_what_the_slice_may_have(tmp_path: Path) -> None:
    """What is divided by is what was checked: else a neighbour that comes or ends could kill the program (SIGFPE)."""
    assert alone("gate_race", tmp_path, "-O2", part="gate.c") == ["1"]
