"""What the CLI prints where there is no terminal."""

from __future__ import annotations

import subprocess
import sys

from cli.events import _told
from shared.contracts.events import SliceImpaired


def test_a_heading_in_a_pipe_is_no_longer_than_a_page() -> None:
    program = 'from cli.output import heading; heading("kerf why pod")'
    (line,) = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert line.startswith("kerf why pod ─")
    assert len(line) == 100


def test_a_slice_that_has_lost_its_gpu_is_told_in_a_sentence() -> None:
    event = SliceImpaired(
        node="n1",
        uid="u",
        namespace="team",
        name="train",
        container="main",
        gpu="GPU-1",
        reason="mps-fault",
        sentence="a program has caused a fatal fault",
    )
    assert _told(event) == ("team/train", "container main on n1: a program has caused a fatal fault")
