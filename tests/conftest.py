"""For all tests."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# A limit on the time of an example fails on a busy machine, and says nothing about the code.
hypothesis.settings.register_profile("kerf", deadline=None)
hypothesis.settings.load_profile("kerf")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Adds a line for each failed test to the file that `make test` prints last.

    Three suites run one after the other: without it, what failed in the first is thousands of lines above the end.
    """
    path = os.environ.get("KERF_FAILED_TESTS")
    if not path or hasattr(terminalreporter.config, "workerinput"):  # pytest-xdist's workers report to the first
        return
    with Path(path).open("a") as file:
        for report in [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            file.write(f"{report.nodeid}: {' '.join(message.split())[:400]}\n")
