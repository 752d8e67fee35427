"""The benchmark's environment: the interposer, a driver, control blocks of containers, and processes in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.node_agent.strategies.rules import Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Part, Slice

ROOT = Path(__file__).resolve().parents[2]
FAKE_UUID = "GPU-00000000-0000-0000-0000-000000000001"
FAKE_START_NS = 2_000_000_000
FAKE_COSTS = {
    "KERF_FAKE_CUDA_LAUNCH_NS": "5000",
    "KERF_FAKE_CUDA_EVENT_NS": "4000",
    "KERF_FAKE_CUDA_SWITCH_NS": "200000",
    "KERF_FAKE_CUDA_LATE_NS": "60000",
}
"""What hurts on a real machine: a launch costs 5 us of CPU time, the record of an event keeps the GPU idle for 4 us
between two kernels (docs/decisions/0263), the change to another process's context takes 0.2 ms (0268), and a thread
that slept wakes 60 us late."""
LEAD_NS = 4_000_000_000
"""Lead time before processes on a real GPU begin together, because contexts take seconds."""


@dataclass
class Device:
    name: str
    uuid: str
    libcuda: str
    driver_version: str = ""
    memory_mib: int = 16384

    @property
    def fake(self) -> bool:
        return self.name == "fake"


def fake_device(folder: Path) -> Device:
    """The fake driver that `build` puts into this folder."""
    return Device("fake", FAKE_UUID, str(folder / "libcuda.so.1"))


@dataclass
class Load:
    """A process's work: a request of `depth` kernels of `kernel_us` every `period_us`. With `period_us` 0 the kernels
    follow each other without end: `depth` of them are queued at any time, or, with `waits`, the program waits for each
    `depth`."""

    kernel_us: int
    period_us: int = 0
    depth: int = 1
    waits: bool = False

    def words(self, at_ns: int, ms: int) -> list[str]:
        if not self.period_us and not self.waits:
            return ["saturate", str(at_ns), str(ms), str(self.kernel_us), str(self.depth)]
        return ["loop", str(at_ns), str(ms), str(self.kernel_us), str(self.period_us), str(self.depth)]


@dataclass
class Place:
    folder: Path
    device: Device
    policy: Policy = field(default_factory=Policy)
    cases: int = 0
    calibration: dict[str, str] = field(default_factory=dict)
    costs: tuple[int, int] = (0, 0)
    """Bytes that a context takes, and that a memory pool takes at a time."""

    @property
    def library(self) -> Path:
        return self.folder / "test" / "libkerf.so"

    def clock(self) -> int:
        """Returns nanoseconds for heartbeats. On the fake driver, whose time is virtual, a heartbeat is never stale."""
        return 1 << 62 if self.device.fake else time.monotonic_ns()

    @contextlib.contextmanager
    def registry(self) -> Iterator[SliceRegistry]:
        """The slice registry of one case, with heartbeats."""
        self.cases += 1
        made = SliceRegistry(self.folder / f"case-{self.cases}", self.policy, self.clock, lambda: self.costs)
        stop = threading.Event()

        def heartbeats() -> None:
            while not stop.wait(0.5):
                made.heartbeat()

        thread = threading.Thread(target=heartbeats)
        thread.start()
        try:
            yield made
        finally:
            stop.set()
            thread.join()
            made.close()

    def slice(self, name: str, compute_milli: int = 0, memory_mib: int = 0, priority: int = 0) -> Slice:
        part = Part(uuid=self.device.uuid, memory_mib=memory_mib or self.device.memory_mib, compute_milli=compute_milli)
        return Slice(uid=name, container="c", strategy="interposer", parts=(part,), priority=priority)

    def calibrate(self) -> None:
        """Calibrates the kernel once, while the GPU is idle. On the fake driver a kernel takes exactly the given
        time."""
        if not self.device.fake:
            known = last_line(self.start(["calibrate", "10000000"], None))
            self.calibration = {"KERF_PROBE_STEPS_PER_NS": str(known["steps_per_ns"])}

    def begin(self) -> int:
        return FAKE_START_NS if self.device.fake else time.monotonic_ns() + LEAD_NS

    def start(
        self,
        words: Sequence[str],
        control_block: Path | None,
        *,
        client: int = 0,
        clients: int = 1,
        more: Mapping[str, str] = {},
    ) -> subprocess.Popen[str]:
        """Starts a process in the container of that control block. None: without the interposer."""
        world = {
            "KERF_FAKE_CUDA": str(self.folder / f"world-{self.cases}"),
            "KERF_FAKE_CUDA_CLIENT": str(client),
            "KERF_FAKE_CUDA_CLIENTS": str(clients),
            **FAKE_COSTS,
        }
        container = (
            {} if control_block is None else {"LD_PRELOAD": str(self.library), "KERF_DIRECTORY": str(control_block)}
        )
        command = [str(self.folder / "probe"), self.device.libcuda, *words]
        return subprocess.Popen(
            command,
            env=os.environ | dict(world) | dict(self.calibration) | dict(container) | dict(more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def used_bytes(self) -> int:
        """Returns the used memory of this case's fake device, read by a process without the interposer."""
        script = (
            "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); d.kerf_fake_used_bytes.restype = ctypes.c_uint64; "
            "print(d.kerf_fake_used_bytes(0))"
        )
        asked = subprocess.run(
            [sys.executable, "-c", script, self.device.libcuda],
            env=os.environ | {"KERF_FAKE_CUDA": str(self.folder / f"world-{self.cases}")},
            check=True,
            capture_output=True,
            text=True,
        )
        return int(asked.stdout)

    def together(
        self, registry: SliceRegistry | None, loads: Mapping[Key, Load], seconds: int
    ) -> dict[Key, dict[str, Any]]:
        """Runs the loads at the same time, with the control blocks of the registry if there is one. Returns their
        results."""
        if registry is None:
            self.cases += 1
        at_ns, running = self.begin(), {}
        for client, (key, load) in enumerate(loads.items()):
            control_block = None if registry is None else registry.folder(key)
            running[key] = self.start(
                load.words(at_ns, seconds * 1000), control_block, client=client, clients=len(loads)
            )
        return {key: last_line(process) for key, process in running.items()}


def lines(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Returns the lines that the process prints until it ends. Exits the benchmark if the process fails."""
    out, errors = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"the probe ended with {process.returncode}: {errors.strip()[-400:]}")
    return [json.loads(line) for line in out.splitlines()]


def last_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    return lines(process)[-1]


def build(folder: Path, *, fake: bool) -> None:
    """Builds the interposer, its probe, a driver that does nothing and, if requested, the fake driver. What is built
    already in the folder that KERF_BUILD names is taken from there."""
    if built := os.environ.get("KERF_BUILD"):
        shutil.copytree(built, folder, dirs_exist_ok=True)
    for source in ("native/interposer", *(["tests/fakes/cuda"] if fake else [])):
        subprocess.run(["make", "-s", "-C", str(ROOT / source), f"BUILD={folder}"], check=True)
    null = [
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(folder / "null.so"),
        str(Path(__file__).with_name("null.c")),
    ]
    subprocess.run(null, check=True)
