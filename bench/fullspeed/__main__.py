"""High-priority work arrives at a node full of low-priority slices: the time until it runs at full speed, by action.

    python -m bench.fullspeed [--runs 20] [--actions throttle,pause,checkpoint,evict] [--json]

Real C programs run with the interposer on the fake driver (tests/fakes/cuda), with the agent's own core, device gate,
control blocks and suspension, over a real NATS server. Four slices of 250 per mille each launch kernels of 1 ms without
end; the arriving work is granted 900 per mille.

The measured time begins with the order: the grant with `suspension` that all four slices get at once, or the SIGTERM
for evict. It ends at the beginning of the first of three consecutive windows of 100 ms in which the arriving work has
at least 95 % of its throughput alone on the node. It includes the agent's work with its durable checkpoint, the
driver's copy to the host for `checkpoint` (2 GiB/s, as measured on an H200), the hand-over of the new slice, and the
program's first calls. For `evict` it also includes the step that a program finishes after SIGTERM (100 kernels, while
the others still run), and the agent's check once a second for containers that have ended. It does not include
placement, the API server, the kubelet, the image and the start of the new container (its process is started before and
waits).

The clock is the fake driver's virtual clock, which does not run faster than the real one: the agent's work takes real
time, and the GPU's work virtual time. `clock_least` is the minimum of virtual time by real time over all runs; below 1
the machine was too slow, and the agent's part appears shorter by that factor.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.fullspeed.figures import full_speed_ns, percentile, rate_per_s
from bench.fullspeed.node import GPU_MIB, Pods, build, node, world
from cli.stack import quiet_logs
from services.node_agent.release.monitor import CHECK_S
from shared.model.suspension import Suspension

LOWS, LOW_MILLI, LOW_KERNEL_US, LOW_STEP = 4, 250, 1000, 100
HIGH_MILLI, HIGH_MIB, HIGH_KERNEL_US = 900, GPU_MIB // 2, 500
KEEPS_MILLI = 25
"""What each throttled slice keeps: together, the share that the new slice does not request."""
WARM_NS = 300_000_000
MEMORY_MIB = {"throttle": 384, "pause": 384, "checkpoint": GPU_MIB // LOWS, "evict": GPU_MIB // LOWS}
"""Memory of each low-priority slice. For actions that give up memory, the slices fill the GPU."""
ACTIONS = tuple(MEMORY_MIB)
RUN_MS = 900
"""How long the new work runs after its hand-over."""


class Run:
    """One arrival of high-priority work. It starts and ends with an empty node."""

    def __init__(self, pods: Pods, number: int) -> None:
        self._pods, self._number = pods, number
        self._lows: dict[str, subprocess.Popen[str]] = {}

    async def alone(self) -> list[int]:
        try:
            ready = self._ready()
            return await self._hand_over(ready)
        finally:
            await self._clean()

    async def after(self, action: str) -> tuple[list[int], int, float]:
        """Returns the end times of the new work's kernels, the time of the order, and the clock's pace: virtual by real
        time."""
        pods = self._pods
        try:
            await self._fill(MEMORY_MIB[action])
            ready = self._ready()
            begun_ns, begun_s = pods.now_ns(), time.monotonic()
            if action == "evict":
                await self._evict()
            else:
                keeps = KEEPS_MILLI if action == "throttle" else 0
                suspension = Suspension(action=action, plan_id=f"run-{self._number}", compute_milli=keeps)  # type: ignore[arg-type]
                await asyncio.gather(
                    *(pods.say(name, MEMORY_MIB[action], LOW_MILLI, suspension) for name in self._lows)
                )
            done = await self._hand_over(ready)
            return done, begun_ns, (pods.now_ns() - begun_ns) / 1e9 / (time.monotonic() - begun_s)
        finally:
            await self._clean()

    async def _fill(self, memory_mib: int) -> None:
        for place in range(LOWS):
            name = f"low-{self._number}-{place}"
            await self._pods.admit(name, memory_mib, LOW_MILLI)
            self._lows[name] = self._pods.run(name, "low", memory_mib, LOW_KERNEL_US, LOW_STEP)
        for process in self._lows.values():
            await asyncio.to_thread(process.stdout.readline)  # type: ignore[union-attr]
        await asyncio.sleep(WARM_NS / 1e9)

    def _ready(self) -> subprocess.Popen[str]:
        return self._pods.run(f"high-{self._number}", "high", HIGH_MIB, HIGH_KERNEL_US, RUN_MS)

    async def _hand_over(self, ready: subprocess.Popen[str]) -> list[int]:
        await self._pods.admit(f"high-{self._number}", HIGH_MIB, HIGH_MILLI)
        out, _ = await asyncio.to_thread(ready.communicate, "go\n")
        if ready.returncode:
            raise SystemExit(f"the new work ended with {ready.returncode}")
        return [int(line) for line in out.split()]

    async def _evict(self) -> None:
        """Sends SIGTERM, as the kubelet does, and lets the agent notice the end at its own interval."""
        phase_s = random.random() * CHECK_S
        for process in self._lows.values():
            process.send_signal(signal.SIGTERM)
        await asyncio.sleep(phase_s)
        while self._lows:
            for name in [name for name, process in self._lows.items() if process.poll() is not None]:
                self._lows.pop(name).communicate()
                await self._pods.gone(name)
            if self._lows:
                await asyncio.sleep(CHECK_S)

    async def _clean(self) -> None:
        for name, process in self._lows.items():
            process.kill()
            await asyncio.to_thread(process.communicate)
            await self._pods.gone(name)
        await self._pods.gone(f"high-{self._number}")


async def measure(folder: Path, runs: int, actions: tuple[str, ...]) -> dict[str, Any]:
    build(folder)
    numbers, clocks = itertools.count(), []
    async with node(folder) as pods:
        alone = [await Run(pods, next(numbers)).alone() for _ in range(3)]
        alone_per_s = statistics.median(rate_per_s(done, done[0] + WARM_NS) for done in alone)
        found: dict[str, Any] = {}
        for action in actions:
            times = []
            for _ in range(runs):
                done, since_ns, pace = await Run(pods, next(numbers)).after(action)
                clocks.append(pace)
                took_ns = full_speed_ns(done, since_ns, alone_per_s)
                if took_ns is None:
                    raise SystemExit(
                        f"after {action} the new work did not reach full speed within {RUN_MS} ms of its start"
                    )
                times.append(took_ns / 1e6)
                print(f"{action} {len(times)}/{runs}: {times[-1]:.0f} ms", file=sys.stderr, flush=True)
            found[action] = {"ms_p50": percentile(times, 0.5), "ms_p99": percentile(times, 0.99), "runs": runs}
    return {
        "device": "fake",
        "actions": found,
        "alone_per_s": round(alone_per_s, 1),
        "clock_least": round(min(clocks), 3),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--runs", type=int, default=20, help="number of runs of each action")
    arguments.add_argument("--actions", default=",".join(ACTIONS))
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    quiet_logs()
    with tempfile.TemporaryDirectory(prefix="kerf-fullspeed-") as name:
        os.environ |= world(Path(name))
        found = asyncio.run(measure(Path(name), asked.runs, tuple(asked.actions.split(","))))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for action, figures in found["actions"].items():
        print(
            f"{action:12} p50 {figures['ms_p50']:6.0f} ms   p99 {figures['ms_p99']:6.0f} ms   of {figures['runs']} runs"
        )


if __name__ == "__main__":
    main()
