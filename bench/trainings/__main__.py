"""Two trainings take turns on one GPU: `python -m bench.trainings [--seconds 300] [--turn 20] [--fake] [--json]`

On the first GPU of this machine, two PyTorch trainings of some 20 GiB each (`torch_training.py`) run in slices of all
of it. The agent's own core, suspension and process locks suspend the one and resume the other, by orders over a real
NATS server: first with all memory on the GPU, then with that of the one that waits on the host. Beside that, in the
same run: one training alone, and both at once, with the driver's time slicing and, where nvidia-cuda-mps-control is
installed, under MPS, all without Kerf. All have the same seed, so all must have the same losses, step by step and bit
for bit.

`of_alone_percent`: steps of both together in a second, in percent of those of one training alone. The time of a turn
begins with the order to suspend, and ends when the first step of the other begins; or with the first of three steps in
a row that are as fast as alone, to 95 %.

It needs PyTorch (`--python` names a Python that has it), the GPU for itself, root or CAP_SYS_PTRACE, and room on the
host for one training. With --fake the trainings are stand-ins on the fake driver, in its virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.enforce.__main__ import real
from bench.enforce.others import has_mps, mps_daemon
from bench.enforce.place import Device, build, fake_device
from bench.fullspeed.figures import percentile
from bench.fullspeed.node import Pods, node
from bench.trainings.figures import Step, between, different, full_speed_ns, step_ns, steps_of
from bench.turns.__main__ import build as build_fake
from bench.turns.__main__ import until_signal, world
from cli.stack import quiet_logs
from shared.model.suspension import Suspension

HERE = Path(__file__).parent
WHOLE_MILLI = 1000
LIMIT_MIB, DATA_MIB = 32_768, 4096
FAKE_MIB, FAKE_LIMIT_MIB = 4096, 6144
NAMES = {"pause": "turns_on_the_gpu", "checkpoint": "turns_by_the_host"}
WARM_STEPS = 10
"""Steps of which the first ones are slow: libraries choose and load their kernels."""
START_S = 120.0
LOOK_S = 0.05


class Training:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def steps(self) -> list[Step]:
        return steps_of(self._log.read_text()) if self._log.exists() else []

    async def warm(self) -> None:
        """Returns when it has made some steps. Exits the benchmark if it does not."""
        deadline = time.monotonic() + START_S
        while len(self.steps()) < WARM_STEPS:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"a training does not start; its status is {self._process.returncode}")
            await asyncio.sleep(LOOK_S)

    async def end(self) -> dict[str, Any]:
        """Ends it after the step that runs, and returns what it prints."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(self._process.communicate)
        if self._process.returncode:
            raise SystemExit(f"a training ended with status {self._process.returncode}")
        return dict(json.loads(out.splitlines()[-1]))

    def kill(self) -> None:
        """Does nothing to one that has ended."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def _begun(command: Sequence[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env={**os.environ, **more}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


class Bench:
    def __init__(self, folder: Path, device: Device, python: str) -> None:
        self._folder, self._device, self._python = folder, device, python
        self.runs: list[list[Step]] = []
        self.memory: list[dict[str, Any]] = []
        self._logs = 0

    def command(self, log: Path) -> list[str]:
        if self._device.fake:
            return [self._python, str(HERE / "stand_in.py"), self._device.libcuda, str(log), str(FAKE_MIB - 1024), "1"]
        return [self._python, str(HERE / "torch_training.py"), str(log), str(DATA_MIB), "1"]

    def log(self) -> Path:
        self._logs += 1
        return self._folder / f"training-{self._logs}.log"

    @contextlib.asynccontextmanager
    async def trainings(self, count: int, environment: Mapping[str, str] = {}) -> AsyncIterator[list[Training]]:
        """So many without Kerf, warm."""
        begun = []
        for number in range(count):
            log = self.log()
            clients = {"KERF_FAKE_CUDA_CLIENT": str(number), "KERF_FAKE_CUDA_CLIENTS": str(count)}
            more = {**environment, **(clients if self._device.fake else {})}
            begun.append(Training(_begun(self.command(log), more), log))
        async with self._ended(begun):
            yield begun

    @contextlib.asynccontextmanager
    async def _ended(self, begun: Sequence[Training]) -> AsyncIterator[None]:
        try:
            for training in begun:
                await training.warm()
            yield
            self.memory += [await training.end() for training in begun]
            self.runs += [training.steps() for training in begun]
        finally:
            for training in begun:
                training.kill()

    async def together(self, count: int, seconds: float, environment: Mapping[str, str] = {}) -> dict[str, Any]:
        async with self.trainings(count, environment) as begun:
            first = [len(training.steps()) for training in begun]
            await asyncio.sleep(seconds)
            ran = [training.steps()[at:] for training, at in zip(begun, first, strict=True)]
        from_ns, to_ns = max(run[0].end_ns for run in ran), min(run[-1].end_ns for run in ran)
        return {
            "steps_per_s": [round(between(run, from_ns, to_ns) * 1e9 / (to_ns - from_ns), 3) for run in ran],
            "step_ms_p50": [round(step_ns(run) / 1e6, 2) for run in ran],
        }

    async def under_mps(self, seconds: float) -> dict[str, Any] | None:
        if self._device.fake or not has_mps():
            return None
        with mps_daemon(self._folder) as where:
            return await self.together(2, seconds, where)

    async def turns(
        self,
        seconds: Mapping[str, float],
        turn_s: Mapping[str, float],
        ended: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """Turns of each kind, one after the other, of the same two trainings. `ended` gets the kind and its record."""
        gpu_mib = self._device.memory_mib if not self._device.fake else FAKE_LIMIT_MIB * 2
        limit_mib = FAKE_LIMIT_MIB if self._device.fake else LIMIT_MIB
        names = ("a", "b")
        async with node(self._folder, 1, gpu_mib, "programs", self._device) as pods:
            begun: list[Training] = []
            try:
                order = _Order(pods, limit_mib)
                for name in names:
                    await pods.admit(name, limit_mib, WHOLE_MILLI)
                    log = self.log()
                    begun.append(Training(pods.run_command(name, self.command(log)), log))
                    await begun[-1].warm()
                    if name != names[-1]:
                        await order.suspend(name, "pause")
                now = len(names) - 1
                for kind, kind_s in seconds.items():
                    if kind == "checkpoint":
                        await order.suspend(names[1 - now], kind)
                    rows: list[dict[str, Any]] = []
                    from_ns, first = pods.now_ns(), [len(training.steps()) for training in begun]
                    while pods.now_ns() - from_ns < kind_s * 1e9:
                        await asyncio.sleep(turn_s[kind])
                        other = 1 - now
                        rows.append(await order.exchange(names[now], names[other], kind) | {"comes": other})
                        print(f"{kind}: {json.dumps(rows[-1])}", file=sys.stderr, flush=True)
                        now = other
                    await asyncio.sleep(min(2.0, turn_s[kind]))
                    to_ns = pods.now_ns()
                    ran = [t.steps()[at:] for t, at in zip(begun, first, strict=True)]
                    ended(kind, {"rows": rows, "from_ns": from_ns, "to_ns": to_ns, "ran": ran})
                for number in (now, 1 - now):
                    if number != now:
                        await order.resume(names[number])
                    self.memory.append(await begun[number].end())
                    await pods.gone(names[number])
                self.runs += [training.steps() for training in begun]
            finally:
                for training in begun:
                    training.kill()


class _Order:
    """Orders to the agent, and how long it took to carry them out."""

    def __init__(self, pods: Pods, limit_mib: int) -> None:
        self._pods, self._limit_mib = pods, limit_mib

    async def suspend(self, name: str, action: str) -> None:
        suspension = Suspension(action=action, plan_id=name)  # type: ignore[arg-type]
        await self._pods.say(name, self._limit_mib, WHOLE_MILLI, suspension)

    async def resume(self, name: str) -> None:
        await self._pods.say(name, self._limit_mib, WHOLE_MILLI, None)

    async def exchange(self, goes: str, comes: str, action: str) -> dict[str, Any]:
        at = [self._pods.now_ns()]
        await self.suspend(goes, action)
        at.append(self._pods.now_ns())
        await self.resume(comes)
        at.append(self._pods.now_ns())
        return {"order_ns": at[0], "suspend_ms": (at[1] - at[0]) / 1e6, "resume_ms": (at[2] - at[1]) / 1e6}


def of_kind(told: Mapping[str, Any], alone: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the turns of a kind."""
    alone_ns, rows = round(alone["step_ms_p50"][0] * 1e6), told["rows"]
    speeds = [full_speed_ns(told["ran"][row["comes"]], row["order_ns"], alone_ns) for row in rows]
    known = [speed for speed in speeds if speed is not None]
    seconds = (told["to_ns"] - told["from_ns"]) / 1e9
    rates = [len(run) / seconds for run in told["ran"]]
    figures = {
        "turns": len(rows),
        "seconds": round(seconds, 1),
        "steps_per_s": [round(rate, 3) for rate in rates],
        "step_ms_p50": [round(step_ns(run) / 1e6, 2) for run in told["ran"] if len(run) > 1],
        "of_alone_percent": round(100 * sum(rates) / alone["steps_per_s"][0], 1),
        "never_at_full_speed": len(speeds) - len(known),
    }
    for name, values in {
        "suspend_ms": [row["suspend_ms"] for row in rows],
        "resume_ms": [row["resume_ms"] for row in rows],
        "to_first_step_ms": [first / 1e6 for first, _ in known],
        "to_full_speed_ms": [full / 1e6 for _, full in known],
    }.items():
        if values:
            figures[name] = {"p50": round(percentile(values, 0.5), 1), "most": round(max(values), 1)}
    return figures


async def measure(
    folder: Path, device: Device, python: str, seconds: float, turn_s: float, beside_s: float
) -> dict[str, Any]:
    if device.fake:
        build_fake(folder)
    else:
        build(folder, fake=False)
    bench = Bench(folder, device, python)
    found: dict[str, Any] = {"device": device.name, "driver_version": device.driver_version}

    def keep(name: str, figures: dict[str, Any] | None) -> None:
        if figures is not None:
            if name != "alone" and "of_alone_percent" not in figures:
                rate = 100 * sum(figures["steps_per_s"]) / found["alone"]["steps_per_s"][0]
                figures["of_alone_percent"] = round(rate, 1)
            found[name] = figures
            print(f"{name}: {json.dumps(figures)}", file=sys.stderr, flush=True)

    keep("alone", await bench.together(1, beside_s))
    keep("time_slicing", await bench.together(2, beside_s))
    keep("mps", await bench.under_mps(beside_s))
    await bench.turns(
        {"pause": seconds / 5, "checkpoint": seconds * 4 / 5},
        {"pause": turn_s / 4, "checkpoint": turn_s},
        lambda kind, told: keep(NAMES[kind], of_kind(told, found["alone"])),
    )
    compared, differ = different(bench.runs)
    in_turns, differ_in_turns = different(bench.runs[-2:])
    found |= {
        "memory_mib": max(each["memory_mib"] for each in bench.memory),
        "steps": [len(run) for run in bench.runs],
        "losses": {"compared": compared, "differ": differ, "in_turns": in_turns, "differ_in_turns": differ_in_turns},
    }
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=float, default=300, help="how long they take turns, a fifth of it paused")
    arguments.add_argument("--turn", type=float, default=20, help="seconds of a turn; a quarter of it when paused")
    arguments.add_argument("--beside", type=float, default=20, help="seconds of each run without Kerf")
    arguments.add_argument("--python", default=sys.executable, help="a Python with PyTorch")
    arguments.add_argument("--libcuda", default="libcuda.so.1")
    arguments.add_argument("--fake", action="store_true", help="stand-ins on the fake driver")
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    quiet_logs()
    with tempfile.TemporaryDirectory(prefix="kerf-trainings-") as name:
        folder = Path(name)
        if asked.fake:
            os.environ |= world(folder, 1)
            device: Device | None = fake_device(folder)
        else:
            device = real(asked.libcuda)
        if device is None:
            raise SystemExit("no GPU: libcuda.so.1 does not answer. --fake runs stand-ins on the fake driver")
        found = asyncio.run(
            until_signal(measure(folder, device, asked.python, asked.seconds, asked.turn, asked.beside))
        )
    if asked.json:
        print(json.dumps(found, indent=2))
    else:
        for key, value in found.items():
            print(f"{key:18} {value}")
    if found["losses"]["differ"]:
        raise SystemExit("losses differ between runs")


if __name__ == "__main__":
    main()
