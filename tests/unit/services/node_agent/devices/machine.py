"""The fake NVML of tests/fakes/nvml, loaded under the real pynvml; a test describes its machine as text."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.support.native import built

TWO = (
    "driver 580.95.05\ncuda 13000\n"
    "gpu 0 GPU-a NVIDIA_H200 143771 00000000:01:00.0 0 9 0 0 0\n"
    "gpu 1 GPU-b NVIDIA_H200 143771 00000000:02:00.0 1 9 0 1 0\n"
)


def load() -> None:
    """Called before pynvml loads that name: the loader then returns the fake."""
    ctypes.CDLL(str(built("nvml") / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)


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
