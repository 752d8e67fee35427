from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.native import built

HERE = Path(__file__).parent
ROOT = HERE.parents[4]


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="session")
def cuda() -> str:
    return str(built("enforcement") / "libcuda.so.1")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KERF_FAKE_CUDA", str(tmp_path / "world"))
    return str(tmp_path / "world")


@pytest.fixture
def victim(cuda: str, world: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, str(HERE / "victim.py"), cuda], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process.pid
        process.kill()


@pytest.fixture
def state(cuda: str, world: str) -> Callable[[int], int]:
    """The process's state as the driver reports it: 0 running, 1 locked."""
    script = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); s = ctypes.c_int(-1); d.cuInit(0); "
        "d.cuCheckpointProcessGetState(int(sys.argv[2]), ctypes.byref(s)); print(s.value)"
    )

    def ask(pid: int) -> int:
        return int(
            subprocess.run(
                [sys.executable, "-c", script, cuda, str(pid)], check=True, capture_output=True, text=True
            ).stdout
        )

    return ask
