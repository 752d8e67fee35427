"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from services.node_agent.strategies.kept_file import allow_descriptors
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_descriptors()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 1000, "1000 1000"), (1000, 1000, "1000 1000")])
def test_the_agent_may_open_as_many_files_as_its_hard_limit_allows(soft: int, hard: int, then: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == then
