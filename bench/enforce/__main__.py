"""Measures how well slices are enforced: `python -m bench.enforce [--seconds 6] [--libcuda FILE] [--fake] [--json]`.

It runs on the first GPU of this machine if NVML reports one, otherwise on the fake driver of tests/fakes/cuda, whose
time is virtual; `device` says which. On a GPU it takes about ten minutes with --seconds 12. It needs the GPU for
itself, and root or CAP_SYS_PTRACE for the locks. There it also runs the pair of `tiers` without the library (with the
driver's own time slicing), and under MPS if nvidia-cuda-mps-control is installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from pathlib import Path

from bench.enforce import cases, others
from bench.enforce.place import FAKE_UUID, Device, Place, build

KEYS = (
    "device",
    "memory_overshoot_bytes_max",
    "share_error_percent_max",
    "high_throughput_loss_percent",
    "high_p99_loss_percent",
    "low_percent_of_idle",
    "hook_ns_per_launch",
    "processes_left_locked",
)


def real(libcuda: str) -> Device | None:
    """Returns the first GPU, or None if there is none."""
    import pynvml  # noqa: PLC0415 - not needed on the fake

    try:
        ctypes.CDLL(libcuda)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except (OSError, pynvml.NVMLError):
        return None
    memory_mib = pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    return Device(
        pynvml.nvmlDeviceGetName(handle),
        pynvml.nvmlDeviceGetUUID(handle),
        libcuda,
        pynvml.nvmlSystemGetDriverVersion(),
        memory_mib,
    )


def measure(folder: Path, device: Device, seconds: int) -> dict[str, object]:
    place = Place(folder, device)
    place.calibrate()
    found: dict[str, object] = {"device": device.name}
    if not device.fake:
        found["driver_version"] = device.driver_version
    for name, run in (
        ("memory", lambda: cases.memory(place)),
        ("shares", lambda: cases.shares(place, seconds)),
        ("long launches", lambda: cases.long_launches(place, seconds)),
        ("launch lengths", lambda: cases.launch_lengths(place, seconds)),
        ("tiers", lambda: cases.tiers(place, seconds)),
        ("short requests", lambda: cases.requests(place, seconds)),
        ("least", lambda: cases.least(place, seconds)),
        ("hook", lambda: cases.hook(place)),
        ("locks", lambda: cases.locks(place)),
    ):
        print(f"{name} ...", file=sys.stderr, flush=True)
        found |= run()
    if not device.fake:
        found["others"] = others.compare(place, seconds)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=int, default=6, help="duration of each case, in seconds")
    arguments.add_argument("--libcuda", default="libcuda.so.1")
    arguments.add_argument("--fake", action="store_true", help="use the fake driver even if there is a GPU")
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    if asked.seconds < 2:
        arguments.error(f"--seconds is {asked.seconds}; it must be at least 2, for the first second is not measured")
    with tempfile.TemporaryDirectory(prefix="kerf-enforce-") as name:
        folder = Path(name)
        device = None if asked.fake else real(asked.libcuda)
        build(folder, fake=device is None)
        found = measure(folder, device or Device("fake", FAKE_UUID, str(folder / "libcuda.so.1")), asked.seconds)
    if asked.json:
        print(
            json.dumps(
                {key: found[key] for key in KEYS} | {key: value for key, value in found.items() if key not in KEYS},
                indent=2,
            )
        )
    else:
        for key, value in found.items():
            print(f"{key:32} {value}")


if __name__ == "__main__":
    main()
