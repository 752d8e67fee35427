"""Measures how well slices are enforced: `python -m bench.enforce [--seconds 6] [--case NAME] [--fake] [--json]`.

It runs on the first GPU of this machine if there is one, otherwise on the fake driver of tests/fakes/cuda, whose
time is virtual, where a launch costs 5 us and threads wake 60 us late; `device` says which. Each case is printed as it
ends, and `--results FILE` keeps what has ended, so that a run that was cut off goes on. On a GPU it needs the GPU for
itself, and root or CAP_SYS_PTRACE for the locks. There it also runs the pair of `tiers` without the library (with the
driver's own time slicing), and under MPS if nvidia-cuda-mps-control is installed. A checkout without its environment
needs the wheels msgspec and structlog alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.enforce import cases, others
from bench.enforce.place import Device, Place, build, fake_device

KEYS = (
    "device",
    "memory_overshoot_bytes_max",
    "share_error_percent_max",
    "length_share_error_percent_max",
    "idle_charged_percent",
    "high_throughput_loss_percent",
    "high_p99_loss_percent",
    "low_percent_of_idle",
    "hook_ns_per_launch",
    "launch_ns_by_case",
    "processes_left_locked",
)


def real(libcuda: str) -> Device | None:
    """Returns the first GPU, or None if there is none. Asks the driver itself: a bare machine has no Python package of
    it."""
    try:
        driver = ctypes.CDLL(libcuda)
    except OSError:
        return None
    device, total = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(16)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for result in (
        driver.cuDeviceGetName(name, len(name), device),
        driver.cuDeviceGetUuid_v2(uuid, device),
        driver.cuDeviceTotalMem_v2(ctypes.byref(total), device),
    ):
        if result:
            raise SystemExit(f"the driver answers {result} when asked for its first GPU; is another program using it?")
    return Device(name.value.decode(), f"GPU-{UUID(bytes=uuid.raw)}", libcuda, _driver_version(), total.value >> 20)


def device_for(folder: Path, libcuda: str, *, fake: bool) -> Device:
    """The first GPU, or the fake driver in this folder, if there is none or `fake` asks for it."""
    return (None if fake else real(libcuda)) or fake_device(folder)


def _driver_version() -> str:
    """As NVML reports it; empty where there is no NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    version = ctypes.create_string_buffer(80)
    known = not nvml.nvmlInit_v2() and not nvml.nvmlSystemGetDriverVersion(version, len(version))
    return version.value.decode() if known else ""


def cases_of(place: Place, seconds: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, in this order, by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "memory": lambda: cases.memory(place),
        "shares": lambda: cases.shares(place, seconds),
        "idle": lambda: cases.idle_time(place),
        "busy": lambda: cases.busy(place),
        "long": lambda: cases.long_launches(place, seconds),
        "lengths": lambda: cases.launch_lengths(place, seconds),
        "tiers": lambda: cases.tiers(place, seconds),
        "requests": lambda: cases.requests(place, seconds),
        "least": lambda: cases.least(place, seconds),
        "hook": lambda: cases.hook(place),
        "locks": lambda: cases.locks(place),
    }
    if not place.device.fake:
        found["others"] = lambda: {"others": others.compare(place, seconds)}
    return found


def measure(
    folder: Path, device: Device, seconds: int, only: Collection[str] = (), results: Path | None = None
) -> dict[str, Any]:
    """Runs the cases (`only` these, if any are named) and returns their figures.

    Each case's figures go to stderr as it ends, and into the file `results`; cases that are in it already are not run
    again.
    """
    place = Place(folder, device)
    place.calibrate()
    found: dict[str, Any] = {"device": device.name}
    if not device.fake:
        found["driver_version"] = device.driver_version
    known: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results and results.exists() else {}
    for name, run in cases_of(place, seconds).items():
        if only and name not in only:
            continue
        if name not in known:
            known[name] = run()
            if results:
                results.write_text(json.dumps(known, indent=2) + "\n")
        print(f"{name}: {json.dumps(known[name])}", file=sys.stderr, flush=True)
        found |= known[name]
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=int, default=6, help="duration of each case, in seconds")
    arguments.add_argument("--libcuda", default="libcuda.so.1")
    arguments.add_argument("--fake", action="store_true", help="use the fake driver even if there is a GPU")
    arguments.add_argument("--list", action="store_true", help="print the names of the cases, and end")
    arguments.add_argument("--case", action="append", default=[], metavar="NAME", help="run this one; may be repeated")
    arguments.add_argument("--results", type=Path, help="a file that keeps finished cases, which are not run again")
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    if asked.seconds < 2:
        arguments.error(f"--seconds is {asked.seconds}; it must be at least 2, for the first second is not measured")
    with tempfile.TemporaryDirectory(prefix="kerf-enforce-") as name:
        folder = Path(name)
        chosen = device_for(folder, asked.libcuda, fake=asked.fake)
        names = list(cases_of(Place(folder, chosen), asked.seconds))
        if asked.list:
            print("\n".join(names))
            return
        if unknown := sorted(set(asked.case) - set(names)):
            arguments.error(f"there is no case {unknown[0]}; known are {', '.join(names)}")
        build(folder, fake=chosen.fake)
        found = measure(folder, chosen, asked.seconds, asked.case, asked.results)
    if asked.json:
        first = [key for key in KEYS if key in found]
        print(json.dumps({key: found[key] for key in [*first, *(key for key in found if key not in KEYS)]}, indent=2))
    else:
        for key, value in found.items():
            print(f"{key:32} {value}")


if __name__ == "__main__":
    main()
