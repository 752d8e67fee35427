"""Many real programs take turns on few GPUs: results, failures, and the time from the order to full speed.

    python -m bench.turns [--programs 100] [--gpus 8] [--seconds 600] [--json]

Real C programs run with the interposer on the fake driver (tests/fakes/cuda), with the agent's own core, device gate,
control blocks, suspension and process locks, over a real NATS server. Whose turn it is follows from
`shared.turns.rules`, with levels and turns of seconds. Each program computes on its memory, and has 2 to 10 of a GPU's
16 GiB; the host takes 64 GiB for each GPU. What hurts is imitated: a checkpoint copies at 2 GiB/s and a restore at
4.5, each takes 0.2 s more for each process, and threads wake 60 us late.

At the end each program that is not done is resumed once more and gets SIGTERM. The result of each is compared with that
of the same program with as many kernels alone on an empty fake driver, without the interposer.

The time of a turn begins with the first order and ends at the beginning of the first of three consecutive windows of
100 ms in which the program that comes has at least 95 % of its speed alone. By kind: `pause`, if all memory stays where
it is; `checkpoint`, if memory of the one that yields, or of another that is suspended, goes to the host, or that of the
one that comes returns from there. The clock is the fake driver's, which does not run faster than the real one;
`clock_least` is its least pace over a tenth of the time.

SIGTERM and SIGINT end it and its programs; the programs also end when it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from bench.enforce.place import ROOT
from bench.enforce.place import build as build_enforcement
from bench.fullspeed.figures import full_speed_ns, percentile
from bench.fullspeed.node import COPIES, Pods, node
from bench.turns.turns import Node, Place, Program, Turn, due
from cli.stack import quiet_logs
from shared.model.suspension import Suspension
from shared.turns.rules import TurnRules

GPU_MIB, HOST_MIB, WHOLE = 16_384, 65_536, 1000
"""HOST_MIB: what the host takes for each GPU."""
KERNEL_US = 2000
ALONE_PER_S = 1e6 / (KERNEL_US + 10)
"""Kernels per second of a program alone: a launch takes some microseconds of its CPU."""
RULES = TurnRules(level_bounds_gpu_s=(1, 3, 9, 27), min_turn_s=1, max_wait_s=120)
MEMORY_MIB = (2048, 4096, 6144, 10_240)
LENGTHS_S = (1, 2, 4, 8, 16, 32, 64, 128)
LOOK_S = 0.05


class Turns:
    def __init__(self, pods: Pods, folder: Path, shape: Node, programs: list[Program]) -> None:
        self._pods, self._folder, self._shape = pods, folder, shape
        self.programs = {program.name: program for program in programs}
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._busy: dict[int, asyncio.Task[None]] = {}
        self.results: dict[str, tuple[int, int]] = {}
        self.turns: list[tuple[str, str, int]] = []
        """Of each turn: its kind, the program that came, and the time of the order."""
        self.failures: list[str] = []
        self.most_on_host_mib = 0
        self._clock: list[tuple[int, float]] = []

    async def run(self, seconds: float) -> float:
        """Returns the least pace of the virtual clock."""
        begun = self._now_s()
        while (now := self._now_s()) - begun < seconds and any(p.place != "done" for p in self.programs.values()):
            self._clock.append((self._pods.now_ns(), time.monotonic()))
            await self._collect()
            for turn in due(self._shape, self.programs.values(), self._busy, now):
                self.programs[turn.next].gpu = turn.gpu
                self._busy[turn.gpu] = asyncio.create_task(self._take(turn))
            await asyncio.sleep(LOOK_S)
        await asyncio.gather(*self._busy.values())
        step = max(1, len(self._clock) // 10)
        points = self._clock[::step]
        return min(((b - a) / 1e9 / (t - s) for (a, s), (b, t) in itertools.pairwise(points)), default=1.0)

    async def finish(self) -> None:
        """Lets every program that has begun run once more, and end after the kernel that runs."""
        for program in list(self.programs.values()):
            if program.place in ("paused", "host"):
                runs = [p for p in self.programs.values() if p.place == "runs" and p.gpu == program.gpu]
                for other in runs:
                    await self._end(other)
                if program.place == "paused" or self._fits(program):
                    await self._resume(program)
                    await self._end(program)
            elif program.place == "runs":
                await self._end(program)
        for program in self.programs.values():
            if program.place in ("paused", "host", "runs"):
                await self._resume(program)
                await self._end(program)

    def log(self, name: str) -> list[int]:
        raw = (self._folder / f"{name}.log").read_bytes()
        return [number for (number,) in struct.iter_unpack("<Q", raw[: len(raw) // 8 * 8])]

    async def kill(self) -> None:
        """Ends all programs, and the turns that might start more."""
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        for process in self._running.values():
            process.kill()
            process.communicate()

    def _now_s(self) -> float:
        return self._pods.now_ns() / 1e9

    def _fits(self, program: Program) -> bool:
        there = sum(p.memory_mib for p in self.programs.values() if p.gpu == program.gpu and p.place == "paused")
        return there + program.memory_mib <= GPU_MIB

    async def _take(self, turn: Turn) -> None:
        comes, begun_ns = self.programs[turn.next], self._pods.now_ns()
        kind = "checkpoint" if comes.place == "host" else turn.kind
        try:
            for name in turn.to_host:
                await self._suspend(self.programs[name], "checkpoint")
            for name in turn.pause:
                await self._suspend(self.programs[name], "pause")
            if comes.place == "new":
                await self._pods.admit(comes.name, comes.memory_mib, WHOLE, turn.gpu)
                self._running[comes.name] = self._pods.run(
                    comes.name, comes.seed, comes.memory_mib - 64, KERNEL_US, comes.kernels,
                    self._folder / f"{comes.name}.log", gpu=turn.gpu,
                )  # fmt: skip
                comes.move("runs", self._now_s())
            elif comes.place != "done":
                await self._resume(comes)
            self.turns.append((kind, comes.name, begun_ns))
        except SystemExit as error:
            self.failures.append(str(error))
        finally:
            del self._busy[turn.gpu]

    async def _suspend(self, program: Program, action: str) -> None:
        if program.place not in ("runs", "paused"):
            return  # it has ended meanwhile
        suspension = Suspension(action=action, plan_id=program.name)  # type: ignore[arg-type]
        await self._pods.say(program.name, program.memory_mib, WHOLE, suspension, program.gpu)
        place: Place = "host" if action == "checkpoint" else "paused"
        program.move(place, self._now_s())
        on_host = sum(p.memory_mib for p in self.programs.values() if p.place == "host")
        self.most_on_host_mib = max(self.most_on_host_mib, on_host)

    async def _resume(self, program: Program) -> None:
        await self._pods.say(program.name, program.memory_mib, WHOLE, None, program.gpu)
        program.move("runs", self._now_s())

    async def _collect(self) -> None:
        for name in [name for name, process in self._running.items() if process.poll() is not None]:
            if self.programs[name].gpu not in self._busy:
                await self._done(name)

    async def _end(self, program: Program) -> None:
        self._running[program.name].send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._running[program.name].wait)
        await self._done(program.name)

    async def _done(self, name: str) -> None:
        process = self._running.pop(name)
        out, _ = process.communicate()
        if process.returncode:
            self.failures.append(f"program {name} ended with {process.returncode}")
        else:
            kernels, word = out.split()
            self.results[name] = int(kernels), int(word)
        self.programs[name].move("done", self._now_s())
        await self._pods.gone(name)


def alone(folder: Path, program: Program, kernels: int) -> int:
    """The word after so many kernels of a program on an empty fake driver, without the interposer."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KERF_FAKE_")}
    command = [
        str(folder / "program"), str(folder / "libcuda.so.1"),
        str(program.seed), str(program.memory_mib - 64), str(KERNEL_US), str(kernels),
    ]  # fmt: skip
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return int(out.split()[1])


def drawn(count: int, seed: int, seconds: float, gpus: int) -> list[Program]:
    """Programs of lengths as jobs have them: most are short, and a few are most of the work: a quarter more than the
    GPUs can do in the time."""
    draw = random.Random(seed)
    lengths = [draw.choices(LENGTHS_S, weights=[1 / length for length in LENGTHS_S])[0] for _ in range(count)]
    scale = 1.25 * seconds * gpus / sum(lengths)
    return [
        Program(
            name=f"p{number}",
            memory_mib=draw.choice(MEMORY_MIB),
            kernels=max(100, round(length * scale * 1e6 / KERNEL_US)),
            seed=draw.randrange(1 << 30),
        )
        for number, length in enumerate(lengths)
    ]


async def measure(folder: Path, programs: int, gpus: int, seconds: float, *, seed: int = 1) -> dict[str, Any]:
    build(folder)
    shape = Node(gpus=gpus, gpu_mib=GPU_MIB, host_mib=HOST_MIB * gpus, rules=RULES)
    async with node(folder, gpus, GPU_MIB, "program") as pods:
        turns = Turns(pods, folder, shape, drawn(programs, seed, seconds, gpus))
        try:
            pace = await turns.run(seconds)
            ended = sum(program.place == "done" for program in turns.programs.values())
            await turns.finish()
        finally:
            await turns.kill()
    times: dict[str, list[float]] = {"pause": [], "checkpoint": []}
    unknown = 0
    for kind, name, begun_ns in turns.turns:
        took_ns = full_speed_ns([at for at in turns.log(name) if at >= begun_ns], begun_ns, ALONE_PER_S)
        if took_ns is None:
            unknown += 1  # it ended, or its turn did, before three windows were over
        else:
            times[kind].append(took_ns / 1e6)
    same = 0
    for name, (kernels, word) in turns.results.items():
        same += await asyncio.to_thread(alone, folder, turns.programs[name], kernels) == word
    return {
        "device": "fake",
        "programs": programs,
        "gpus": gpus,
        "seconds": seconds,
        "begun": len(turns.results),
        "ended_by_themselves": ended,
        "results_as_alone": same,
        "turns": len(turns.turns),
        "failures": turns.failures,
        "host_mib_most": turns.most_on_host_mib,
        "host_mib": shape.host_mib,
        "to_full_speed": {
            kind: {"turns": len(ms), "ms_p50": percentile(ms, 0.5), "ms_p99": percentile(ms, 0.99)}
            for kind, ms in times.items()
            if ms
        },
        "too_short_to_tell": unknown,
        "clock_least": round(pace, 3),
    }


def build(folder: Path) -> None:
    """Builds the interposer, the fake driver and the programs."""
    build_enforcement(folder, fake=True)
    pace = str(ROOT / "bench" / "fullspeed" / "programs.c")
    for source, name in ((str(Path(__file__).with_name("program.c")), "program"), (pace, "programs")):
        subprocess.run(["cc", "-O2", "-std=gnu11", "-o", str(folder / name), source, "-ldl"], check=True)


def world(folder: Path, gpus: int) -> dict[str, str]:
    """Returns the fake driver's settings, for this process and its children."""
    return {
        "KERF_FAKE_CUDA": str(folder / "world"),
        "KERF_FAKE_CUDA_DEVICES": str(gpus),
        "KERF_FAKE_CUDA_MIB": str(GPU_MIB),
        **COPIES,
        "KERF_FAKE_CUDA_CHECKPOINT_US": "200000",
        "KERF_FAKE_CUDA_LATE_NS": "60000",
    }


async def until_signal(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Returns what the work returns. A SIGTERM or SIGINT cancels it, and raises SystemExit when it has cleaned up."""
    came: list[signal.Signals] = []
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()

    def end(sign: signal.Signals) -> None:
        came.append(sign)
        task.cancel()

    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, end, sign)
    try:
        return await task
    except asyncio.CancelledError:
        if not came:
            raise
        raise SystemExit(128 + came[0]) from None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--programs", type=int, default=100)
    arguments.add_argument("--gpus", type=int, default=8)
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    quiet_logs()
    with tempfile.TemporaryDirectory(prefix="kerf-turns-") as name:
        os.environ |= world(Path(name), asked.gpus)
        found = asyncio.run(until_signal(measure(Path(name), asked.programs, asked.gpus, asked.seconds)))
    if asked.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['begun']} programs, {found['turns']} turns, {len(found['failures'])} failures, "
            f"{found['results_as_alone']} results as alone"
        )
        for kind, figures in found["to_full_speed"].items():
            print(f"{kind:12} p50 {figures['ms_p50']:6.0f} ms   p99 {figures['ms_p99']:6.0f} ms")
    if found["failures"] or found["results_as_alone"] != found["begun"]:
        with contextlib.suppress(BrokenPipeError):
            print("failures or other results than alone", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
