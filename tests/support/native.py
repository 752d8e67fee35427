"""The C programs that tests run, compiled by their own Makefiles: the interposer with its probe, the fake driver."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def enforcement_built(into: Path) -> Path:
    """All of it in that folder. Skips without a C compiler; raises CalledProcessError with the compiler's output."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    for folder in ("native/interposer", "tests/fakes/cuda"):
        subprocess.run(["make", "-s", "-C", str(ROOT / folder), f"BUILD={into}"], check=True)
    return into
