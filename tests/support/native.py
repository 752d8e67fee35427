"""The C programs that tests run, compiled by their own Makefiles into one place. What is up to date stays as it is.

python -m tests.support.native     compiles all of them
"""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "native"
SOURCES = {
    "enforcement": ("native/interposer", "native/remote", "tests/fakes/cuda", "tests/fakes/mps"),
    "nvml": ("tests/fakes/nvml",),
    "programs": ("tests/interposer/programs",),
}
"""By folder of BUILD: the interposer with its probe, the fake driver and its MPS daemon; the fake NVML; programs that
use a GPU."""


@functools.cache
def built(name: str) -> Path:
    """The folder of BUILD with that name, up to date. One process compiles at a time.

    Skips without a C compiler; raises CalledProcessError after the compiler's output.
    """
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for sources in SOURCES[name]:
            subprocess.run(["make", "-s", "-C", str(ROOT / sources), f"BUILD={folder}"], check=True)
    return folder


if __name__ == "__main__":
    for each in SOURCES:
        built(each)
