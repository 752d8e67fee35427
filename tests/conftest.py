"""For all tests."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# A limit on the time of an example fails on a busy machine, and says nothing about the code.
hypothesis.settings.register_profile("kerf", deadline=None)
hypothesis.settings.load_profile("kerf")

FAILED_TESTS = os.environ.pop("KERF_FAILED_TESTS", "")
"""The file for lines about failed tests. Taken out of the environment: tests of mutants run pytest, and shall fail."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Adds a line for each failed test to the file that `make test` prints last.

    Three suites run one after the other: without it, what failed in the first is thousands of lines above the end.
    """
    if not FAILED_TESTS or hasattr(
        terminalreporter.config, "workerinput"
    ):  # pytest-xdist's workers report to the first
        return
    with Path(FAILED_TESTS).open("a") as file:
        for report in [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            file.write(f"{report.nodeid}: {' '.join(message.split())[:400]}\n")
