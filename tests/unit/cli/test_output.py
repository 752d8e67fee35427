"""What the CLI prints where there is no terminal."""

from __future__ import annotations

import subprocess
import sys


def test_a_heading_in_a_pipe_is_no_longer_than_a_page() -> None:
    program = 'from cli.output import heading; heading("kerf why pod")'
    (line,) = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert line.startswith("kerf why pod ─")
    assert len(line) == 100
