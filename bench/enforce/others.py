"""The same pair of loads without Kerf, on a real GPU: with the driver's own time slicing, and with MPS if it is
installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.enforce.cases import HIGH, LOW
from bench.enforce.place import Place, last_line

CONTROL = "nvidia-cuda-mps-control"
CONTROL_S = 30.0


def compare(place: Place, seconds: int) -> dict[str, Any]:
    """Returns, by way of sharing, the high-priority load's throughput and latency, alone and beside a busy load."""
    alone = pair(place, seconds, {}, low=False)
    found = {"alone": alone, "time slicing": pair(place, seconds, {})}
    if has_mps():
        with mps_daemon(place.folder) as where:
            found["MPS"] = pair(place, seconds, where)
    return found


def has_mps() -> bool:
    """Whether NVIDIA's MPS is installed here."""
    return shutil.which(CONTROL) is not None


@contextlib.contextmanager
def mps_daemon(folder: Path) -> Iterator[dict[str, str]]:
    """A control daemon of MPS with its files in a new folder below this one. Yields its clients' variables."""
    files = folder / "mps"
    files.mkdir()
    where = {"CUDA_MPS_PIPE_DIRECTORY": str(files), "CUDA_MPS_LOG_DIRECTORY": str(files)}
    subprocess.run([CONTROL, "-d"], env=os.environ | where, check=True, timeout=CONTROL_S)
    try:
        yield where
    finally:
        subprocess.run([CONTROL], input="quit\n", text=True, env=os.environ | where, check=True, timeout=CONTROL_S)


def pair(place: Place, seconds: int, environment: Mapping[str, str], *, low: bool = True) -> dict[str, Any]:
    place.cases += 1
    at_ns, clients = place.begin(), 1 + low
    high = place.start(HIGH.words(at_ns, seconds * 1000), None, clients=clients, more=environment)
    greedy = (
        place.start(LOW.words(at_ns, seconds * 1000), None, client=1, clients=clients, more=environment)
        if low
        else None
    )
    said = last_line(high)
    return {
        "requests": said["requests"],
        "p50_ms": said["p50_ns"] / 1e6,
        "p99_ms": said["p99_ns"] / 1e6,
        "low_done_ms": 0 if greedy is None else sum(last_line(greedy)["done_ns"]) / 1e6,
    }
