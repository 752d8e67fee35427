"""What the agent's canary finds on this machine's first GPU: `python -m bench.canary [--fake] [--json]`.

The same run by which an agent decides whether it offers `firm`, `time_slice` and `policed`: the probe in a mount
namespace with the interposer, without it for the memory of a context, and the bandwidth to the host. It needs root, and
the GPU for itself. Ends with 1 if nothing is proven.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.enforce.__main__ import device_for
from bench.enforce.place import Device, build
from services.node_agent.canary import verdict
from services.node_agent.canary.run import LIBRARY, Canary, in_a_namespace
from services.node_agent.devices.memory_limits import MemoryLimitError
from services.node_agent.devices.nvml import NvmlDevices


async def _limit(gpu: str, cgroup: Path, limit_bytes: int) -> None:
    devices = NvmlDevices(timeout_s=10.0)
    try:
        await devices.inventory("here", "now")
        await devices.limit_memory(gpu, cgroup, limit_bytes)
    finally:
        await devices.close()


async def measure(folder: Path, device: Device, cgroups: Path) -> dict[str, Any]:
    begun = time.monotonic()
    canary = Canary(
        build=folder,
        folder=folder / "run" / "canary",
        libcuda=device.libcuda,
        clock=(lambda: 1 << 62) if device.fake else time.monotonic_ns,
        under=in_a_namespace(folder / LIBRARY),
        limit=_no_limit if device.fake else _limit,
        cgroups=cgroups if (cgroups / "cgroup.controllers").exists() else None,
        environment={"KERF_FAKE_CUDA": str(folder / "world")} if device.fake else {},
    )
    proof = await canary.run(device.uuid, device.driver_version or "fake", "this tree", 0)
    copies = await canary.copies(device.uuid, "")
    return {
        "device": device.name,
        "driver_version": device.driver_version,
        "seconds": round(time.monotonic() - begun, 1),
        "firm": verdict.offered(proof, proof.driver_version, proof.library) or "offered",
        "time_slice": verdict.not_time_sliced(proof) or "offered",
        "policed": verdict.not_policed(proof) or "offered",
        "driver_limit": verdict.not_by_driver(proof) or "holds",
        "host_copies": copies,
        "proof": msgspec.to_builtins(proof),
    }


async def _no_limit(gpu: str, cgroup: Path, limit_bytes: int) -> None:
    raise MemoryLimitError(f"the fake NVML is not asked for a limit of {limit_bytes} on {gpu} for {cgroup}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--fake", action="store_true", help="use the fake driver even if there is a GPU")
    arguments.add_argument("--cgroups", type=Path, default=Path("/sys/fs/cgroup"))
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerf-canary-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        device = device_for(folder, "libcuda.so.1", fake=asked.fake)
        build(folder, fake=device.fake)
        found = asyncio.run(measure(folder, device, asked.cgroups))
    if asked.json:
        print(json.dumps(found, indent=2))
    else:
        for key, value in found.items():
            print(f"{key:16} {value}")
    sys.exit(0 if found["proof"]["ok"] else 1)


if __name__ == "__main__":
    main()
