"""The peers' universal cases on Kerf's own code, and the bench's own bookkeeping."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peercases import kai
from bench.peercases.suites import judge

FILE = Path(__file__).parents[2] / "data" / "peer_cases.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_universal_case_ends_as_its_peer_demands(case: dict[str, Any]) -> None:
    (suite,) = judge([case], everything=False).values()
    assert suite.failed == {}
    assert suite.passed == 1


def test_a_case_with_another_expectation_fails() -> None:
    """The benchmark checks the results of the tasks."""
    for case in (c for c in CASES if c["peer"] == "KAI"):
        turned = json.loads(json.dumps(case))
        for want in (*turned["expected"]["jobs"].values(), *turned["expected"].get("tasks", {}).values()):
            want["status"] = {
                "binding": "pending",
                "running": "pending",
                "pipelined": "pending",
                "releasing": "running",
            }.get(want["status"], "binding")
        assert kai.run(turned) != ""


def test_a_case_with_more_evictions_than_allowed_fails() -> None:
    case = next(c for c in CASES if c["peer"] == "KAI" and c["expected"]["max_evictions_per_round"] == 2)
    turned = case | {"expected": case["expected"] | {"max_evictions_per_round": 1}}
    (suite,) = judge([turned], everything=False).values()
    assert suite.counts() == {"cases": 1, "passed": 0, "differs": 0, "failed": [case["id"]]}
    assert "2 are evicted, and 1 would do" in suite.failed[case["id"]]


def test_the_command_prints_one_object_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(json.dumps({"cases": [*CASES[:3], CASES[0] | {"universal": False}]}))
    done = subprocess.run(
        [sys.executable, "-m", "bench.peercases", "--cases", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=FILE.parents[2],
    )
    suites = json.loads(done.stdout)["suites"]
    assert sum(suite["cases"] for suite in suites.values()) == 3
