from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interposer, its probe and the fake driver."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    at = tmp_path_factory.mktemp("interposer")
    for folder in ("services/node_agent/interposer", "tests/fakes/cuda"):
        subprocess.run(["make", "-s", "-C", str(ROOT / folder), f"BUILD={at}"], check=True)
    return at
