"""The fake NVML of tests/fakes/nvml, loaded under the real pynvml; a test describes its machine as text."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

FAKE = Path(__file__).resolve().parents[4] / "fakes" / "nvml"
TWO = (
    "driver 580.95.05\ncuda 13000\n"
    "gpu 0 GPU-a NVIDIA_H200 143771 00000000:01:00.0 0 9 0 0 0\n"
    "gpu 1 GPU-b NVIDIA_H200 143771 00000000:02:00.0 1 9 0 1 0\n"
)


def load(build: Path) -> None:
    """Called before pynvml loads that name: the loader then returns the fake."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler to build the fake NVML with")
    subprocess.run(["make", "-s", "-C", str(FAKE), f"BUILD={build}"], check=True)
    ctypes.CDLL(str(build / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)


class Machine:
    """A machine whose GPUs are those in its file, which is replaced atomically."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.text = ""

    def become(self, text: str) -> None:
        self.text = text
        temporary = self._file.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(self._file)

    def also(self, lines: str) -> None:
        self.become(self.text + lines)
