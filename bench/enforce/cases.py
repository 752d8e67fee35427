"""The benchmark's cases. Each case returns figures; the reader and the tests decide what is a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bench.enforce.place import FAKE_UUID, Device, Load, Place, last_line, lines
from services.node_agent.strategies.quantum_scheduler import MAX_FLOOR_SUM_MILLI
from services.node_agent.strategies.rules import Override
from shared.model.units import MIB

Figures = dict[str, Any]
LIMIT_MIB, CHUNK_KIB = 512, 4096
PROCESSES = 64
MIXES = ((100, 900), (300, 700), (500, 500), (200, 300, 500))
KERNELS_US = (500, 200, 900)
LENGTHS_US = (300, 1_000, 2_000, 5_000, 10_000, 20_000)
DEPTH = 8
"""Kernels that a program queues ahead. A program that waits for each one leaves the GPU idle by itself."""
LONG_RUN = 10
"""Windows of a second that a long-run error is a mean of."""
BURSTS = ((8, 20, 20_000), (1, 100, 2_000), (30, 9, 1_500))
"""Launches, kernel and pause in us: programs that learn of the end of their work by no call."""
TIGHT = (100, 20, 0, 400)
"""Launches, kernel and pause in us, and rounds, of a program whose queue is never empty."""
SPEEDS = {
    "no limit, alone": (0, False),
    "whole GPU, beside a paused slice": (1000, True),
    "half, alone": (500, False),
}
"""Compute in thousandths, and whether a paused slice is beside it."""
HIGH = Load(kernel_us=500, period_us=25_000, depth=40)
"""A request of 20 ms every 25 ms: a fifth of the GPU is idle."""
FLOOR_MILLI = 50
"""A minimum share as an operator may set it."""
LOW = Load(kernel_us=250, depth=8)
SHORT = (
    Load(kernel_us=100, period_us=1_250, depth=10),
    Load(kernel_us=250, period_us=3_750, depth=12),
    Load(kernel_us=500, period_us=8_125, depth=13),
)
"""Requests of 1, 3 and 6.5 ms that leave a fifth of the GPU idle."""
LONG = (Load(kernel_us=20_000, depth=DEPTH), Load(kernel_us=1_000, depth=DEPTH))
"""A slice with a tenth of the GPU and launches four times as long as its window, beside one with nine tenths and short
launches."""
LAUNCHES = 200_000
HOOK_RUNS = 5
LAUNCH_CASES = {
    "no limits": (0, 0, 0, 0, 0),
    "share of a half, alone": (500, 0, 0, 0, 0),
    "share of a half beside 1": (500, 0, 1, 500, 0),
    "share of a half beside 8": (500, 0, 8, 60, 0),
    "high tier, 1 behind it": (0, 100, 1, 0, 0),
    "high tier, 8 behind it": (0, 100, 8, 0, 0),
    "low tier, 1 before it": (0, 0, 1, 0, 100),
    "low tier, 8 before it": (0, 0, 8, 0, 100),
    "low tier, 31 before it": (0, 0, 31, 0, 100),
}
"""Compute in thousandths and priority of the slice, and number, compute and priority of the others on its GPU."""


def memory(place: Place) -> Figures:
    """Memory limit: one process with every kind of allocation, and many processes of one container at once.

    Measures the memory that the calls returned, and on the fake driver also the device's used memory. The control
    block's own sum is not used, because it is what has to be proven.
    """
    with place.registry() as registry:
        one = place.slice("one", memory_mib=LIMIT_MIB)
        registry.put(one)
        found = [
            line
            for line in lines(place.start(["memory", str(CHUNK_KIB), str(4 * LIMIT_MIB)], registry.folder(one.key)))
            if "path" in line
        ]
        many = place.slice("many", memory_mib=LIMIT_MIB)
        registry.put(many)
        each = LIMIT_MIB // PROCESSES * 4  # so a quarter of them fit
        held = [place.start(["hold", str(each)], registry.folder(many.key)) for _ in range(PROCESSES)]
        results = [_first(process) for process in held]
        on_device = [line["device_bytes"] for line in found if "device_bytes" in line]
        if place.device.fake:
            on_device.append(place.used_bytes())
        for process in held:
            process.communicate(timeout=60)
    max_bytes = max(max(line["bytes"], line["again"]) for line in found)
    together = sum(1 for line in results if line["result"] == 0) * each * MIB
    limit = LIMIT_MIB * MIB
    return {
        "memory_overshoot_bytes_max": max(0, max_bytes - limit, together - limit, max(on_device, default=0) - limit),
        "memory_device_bytes_max": max(on_device, default=None),
        "memory_unused_bytes_max": max(
            limit - min(min(line["bytes"], line["again"]) for line in found), limit - together
        ),
        "paths": len(found),
        "processes": PROCESSES,
    }


def _first(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(msgspec.json.decode(process.stdout.readline()))


def shares(place: Place, seconds: int) -> Figures:
    """Compute shares: mixes of slices that always have work.

    Measures the maximum difference from the share in any window of a second, in percent of a GPU. The first window is
    omitted, because the processes start in it.
    """
    errors = {_name(mix): _error_percent(place, mix, KERNELS_US, seconds) for mix in MIXES}
    return {"share_error_percent_max": max(errors.values()), "share_error_percent": errors}


def launch_lengths(place: Place, seconds: int) -> Figures:
    """The same for all mixes and lengths of launches, in any window of a second and over ten of them."""
    worst: dict[str, Figures] = {}
    long_run: dict[str, Figures] = {}
    for length_us in LENGTHS_US:
        name = f"{length_us / 1000:g}"
        worst[name], long_run[name] = {}, {}
        for mix in MIXES:
            wrong = _errors(place, mix, (length_us,) * len(mix), max(seconds, LONG_RUN + 1))
            worst[name][_name(mix)] = round(max(abs(error) for slice_ in wrong for error in slice_), 3)
            long_run[name][_name(mix)] = round(
                max(abs(sum(slice_[-LONG_RUN:])) / len(slice_[-LONG_RUN:]) for slice_ in wrong), 3
            )
    return {
        "length_share_error_percent_max": max(max(row.values()) for row in worst.values()),
        "share_error_percent_by_launch_ms": worst,
        "share_error_percent_over_10_s_by_launch_ms": long_run,
    }


def idle_time(place: Place) -> Figures:
    """Programs that pause without a call that tells of it: how much more they are charged than they used."""
    found = {}
    for launches, kernel_us, pause_us in BURSTS:
        with place.registry() as registry:
            one = place.slice("one", 300, memory_mib=1024)
            registry.put(one)
            words = ["burst", str(launches), str(kernel_us), str(pause_us), "200"]
            said = last_line(place.start(words, registry.folder(one.key)))
            reading = registry.read(one.key)
            assert reading is not None
            found[f"{launches} x {kernel_us} us every {pause_us / 1000:g} ms"] = {
                "gpu_ms": said["gpu_ns"] / 1e6,
                "charged_ms": round(reading.gpus[0].used_ns / 1e6, 3),
                "of_pause_percent": round(
                    100 * (reading.gpus[0].used_ns - said["gpu_ns"]) / (said["elapsed_ns"] - said["gpu_ns"]), 3
                ),
            }
    return {
        "idle_charged_percent": max(row["of_pause_percent"] for row in found.values()),
        "idle_charged": found,
    }


def busy(place: Place) -> Figures:
    """Short kernels that follow each other without end: the part of the time in which the GPU runs them, for the share
    of the slice. The program records no events; those of the library are what it loses."""
    place.cases += 1
    found = {"without the library": _busy_percent(place, None, 1000)}
    for name, (compute_milli, beside) in SPEEDS.items():
        with place.registry() as registry:
            one = place.slice("one", compute_milli, memory_mib=1024)
            registry.put(one)
            if beside:
                other = place.slice("two", compute_milli, memory_mib=1024)
                registry.put(other, Override(paused=True))
            found[name] = _busy_percent(place, registry.folder(one.key), compute_milli or 1000)
    bare = found["without the library"]
    return {
        "busy_loss_percent_max": round(max(100 * (1 - percent / bare) for percent in found.values()), 1),
        "busy_percent": found,
    }


def _busy_percent(place: Place, control_block: Path | None, share_milli: int) -> float:
    said = last_line(place.start(["burst", *map(str, TIGHT)], control_block))
    return round(100_000 * float(said["gpu_ns"]) / float(said["elapsed_ns"]) / share_milli, 1)


def _name(mix: tuple[int, ...]) -> str:
    return ":".join(str(milli // 10) for milli in mix)


def _error_percent(place: Place, mix: tuple[int, ...], kernels_us: tuple[int, ...], seconds: int) -> float:
    wrong = _errors(place, mix, kernels_us, seconds)
    return round(max(abs(error) for slice_ in wrong for error in slice_), 3)


def _errors(place: Place, mix: tuple[int, ...], kernels_us: tuple[int, ...], seconds: int) -> list[list[float]]:
    """The difference from its share of each slice in each second but the first, in percent of the GPU."""
    with place.registry() as registry:
        slices = [place.slice(f"s{i}", milli, memory_mib=place.device.memory_mib // 8) for i, milli in enumerate(mix)]
        for slice_ in slices:
            registry.put(slice_)
        loads = {slice_.key: Load(kernel_us=kernels_us[i], depth=DEPTH) for i, slice_ in enumerate(slices)}
        said = place.together(registry, loads, seconds)
    return [
        [done / 1e7 - milli / 10 for done in said[slice_.key]["done_ns"][1:]]
        for slice_, milli in zip(slices, mix, strict=True)
    ]


def long_launches(place: Place, seconds: int) -> Figures:
    """The same for a tenth whose launches are longer than its window; one launch more or less is 2 % of a second."""
    with place.registry() as registry:
        slices = [place.slice(f"s{milli}", milli, memory_mib=1024) for milli in (100, 900)]
        for slice_ in slices:
            registry.put(slice_)
        said = place.together(
            registry, {slice_.key: load for slice_, load in zip(slices, LONG, strict=True)}, 2 * seconds
        )
    windows = {milli: said[slice_.key]["done_ns"][1:] for slice_, milli in zip(slices, (100, 900), strict=True)}
    return {
        "long_share_error_percent": {
            str(milli // 10): round(max(abs(ns / 1e7 - milli / 10) for ns in done), 3)
            for milli, done in windows.items()
        },
        "long_share_mean_percent": {
            str(milli // 10): round(sum(done) / len(done) / 1e7, 2) for milli, done in windows.items()
        },
    }


def tiers(place: Place, seconds: int) -> Figures:
    """A slice that serves requests and leaves a fifth of the GPU idle, alone and beside a busy slice of lower
    priority."""
    with place.registry() as registry:
        high = place.slice("high", priority=100, memory_mib=1024)
        registry.put(high)
        alone = place.together(registry, {high.key: HIGH}, seconds)[high.key]
    with_low, greedy = _beside(place, HIGH, seconds)
    idle_ns = 1e9 - HIGH.kernel_us * HIGH.depth * 1e9 / HIGH.period_us
    got = greedy["done_ns"][1:]
    return {
        "high_throughput_loss_percent": round(100 * (1 - with_low["requests"] / alone["requests"]), 3),
        "high_p99_loss_percent": round(100 * (with_low["p99_ns"] / alone["p99_ns"] - 1), 3),
        "high_p50_loss_percent": round(100 * (with_low["p50_ns"] / alone["p50_ns"] - 1), 3),
        "low_percent_of_idle": round(100 * sum(got) / len(got) / idle_ns, 1),
        "high_request_ms": HIGH.kernel_us * HIGH.depth / 1000,
        "high_alone_p99_ms": alone["p99_ns"] / 1e6,
        "high_p99_ms": with_low["p99_ns"] / 1e6,
    }


def requests(place: Place, seconds: int) -> Figures:
    """Short requests beside a busy slice of lower priority.

    Without a minimum share, the slice of lower priority must end its work before the next request. With a minimum share
    of a twentieth, it gets that share nevertheless.
    """
    usual, found = place.policy, {}
    for load in SHORT:
        with place.registry() as registry:
            high = place.slice("high", priority=100, memory_mib=1024)
            registry.put(high)
            alone = place.together(registry, {high.key: load}, seconds)[high.key]
        row: Figures = {"alone_p99_ms": alone["p99_ns"] / 1e6}
        for name, milli in (("", 0), ("_with_least", FLOOR_MILLI)):
            place.policy = msgspec.structs.replace(usual, least_milli=milli)
            try:
                with_low, greedy = _beside(place, load, seconds)
            finally:
                place.policy = usual
            idle_ns = 1e9 - load.kernel_us * load.depth * 1e9 / load.period_us
            got = greedy["done_ns"][1:]
            row[f"p99_loss_percent{name}"] = round(100 * (with_low["p99_ns"] / alone["p99_ns"] - 1), 2)
            row[f"throughput_loss_percent{name}"] = round(100 * (1 - with_low["requests"] / alone["requests"]), 2)
            row[f"low_percent_of_idle{name}"] = round(100 * sum(got) / len(got) / idle_ns, 1)
        found[f"{load.kernel_us * load.depth / 1000:g} ms"] = row
    return {
        "short_p99_loss_percent_max": max(row["p99_loss_percent"] for row in found.values()),
        "short_requests": found,
    }


def _beside(place: Place, load: Load, seconds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    with place.registry() as registry:
        high, low = place.slice("high", priority=100, memory_mib=1024), place.slice("low", memory_mib=1024)
        for slice_ in (high, low):
            registry.put(slice_)
        said = place.together(registry, {high.key: load, low.key: LOW}, seconds)
    return said[high.key], said[low.key]


def least(place: Place, seconds: int) -> Figures:
    """The minimum share of a slice beside a slice of higher priority that is always busy."""
    usual = place.policy
    place.policy = msgspec.structs.replace(usual, least_milli=100)
    try:
        with place.registry() as registry:
            high, low = place.slice("high", priority=100, memory_mib=1024), place.slice("low", memory_mib=1024)
            for slice_ in (high, low):
                registry.put(slice_)
            said = place.together(registry, {high.key: Load(kernel_us=500, depth=4, waits=True), low.key: LOW}, seconds)
    finally:
        place.policy = usual
    got = said[low.key]["done_ns"][1:]
    return {
        "least_asked_percent": 10.0,
        "least_got_percent": round(sum(got) / len(got) / 1e7, 2),
        "least_cap_percent": MAX_FLOOR_SUM_MILLI / 10,
    }


def hook(place: Place) -> Figures:
    """The additional time per launch with the library, by what its slice's rules ask of it.

    Measured on a driver that does nothing, with the real clock.
    """
    on_null = replace(place, device=Device("null", FAKE_UUID, str(place.folder / "null.so")))
    bare = min(_ns_per_launch(on_null, None) for _ in range(HOOK_RUNS))
    found = {name: _launch_cost(on_null, *case) - bare for name, case in LAUNCH_CASES.items()}
    place.cases = on_null.cases
    return {
        "hook_ns_per_launch": round(max(0.0, found["no limits"]), 2),
        "launch_ns_by_case": {name: round(max(0.0, ns), 1) for name, ns in found.items()},
        "null_launch_ns": bare,
    }


def _launch_cost(place: Place, milli: int, priority: int, others: int, other_milli: int, other_priority: int) -> float:
    with place.registry() as registry:
        for number in range(others):
            registry.put(place.slice(f"other{number}", other_milli, memory_mib=64, priority=other_priority))
        one = place.slice("one", milli, memory_mib=64, priority=priority)
        registry.put(one)
        return min(_ns_per_launch(place, registry.folder(one.key)) for _ in range(HOOK_RUNS))


def _ns_per_launch(place: Place, control_block: Path | None) -> float:
    said = last_line(place.start(["launch", str(LAUNCHES)], control_block))
    return float(said["ns_per_launch"])


def locks(place: Place) -> Figures:
    """Process locks: counts the processes that stay locked after the agent that locked them has failed.

    The agent is killed, frozen, or killed together with its worker; in the last case its successor starts before the
    count.
    """
    left = 0
    times: list[tuple[int, int]] = []
    for how in ("killed", "frozen", "all killed"):
        place.cases += 1
        victims = [
            place.start(Load(kernel_us=500).words(0, 600_000), None, client=client, clients=2) for client in range(2)
        ]
        try:
            time.sleep(1.0 if place.device.fake else 5.0)  # the processes must be at work
            left += _after(place, [victim.pid for victim in victims], how, times)
        finally:
            for victim in victims:
                victim.kill()
                victim.communicate()
    return {
        "processes_left_locked": left,
        "lock_us": min(lock for lock, _ in times),
        "unlock_us": min(unlock for _, unlock in times),
    }


def _after(place: Place, pids: list[int], how: str, times: list[tuple[int, int]]) -> int:
    journal = place.folder / f"locks-{place.cases}.json"
    environment = os.environ | {"KERF_FAKE_CUDA": str(place.folder / f"world-{place.cases}")}
    command = [sys.executable, "-m", "bench.enforce.holder", place.device.libcuda, str(journal), *map(str, pids)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        lock, unlock = map(int, agent.stdout.readline().split())
        times.append((lock, unlock))
        locked = [pid for pid in pids if _state(place, environment, pid) == 1]
        if len(locked) != len(pids):
            raise SystemExit(f"of {len(pids)} processes {len(locked)} were locked")
        workers = [int(pid) for pid in children(agent.pid)]
        if how == "all killed":
            for pid in (*workers, agent.pid):
                os.kill(pid, signal.SIGSTOP)
            for pid in (*workers, agent.pid):
                os.kill(pid, signal.SIGKILL)
            agent.wait()
            _successor(place, environment, journal)
        else:
            os.kill(agent.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(_state(place, environment, pid) == 1 for pid in pids):
                time.sleep(0.05)
        left = sum(_state(place, environment, pid) == 1 for pid in pids)
        with contextlib.suppress(ProcessLookupError):
            agent.kill()
    return left


def children(pid: int) -> list[str]:
    """The PIDs of the processes that the main thread of a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def _successor(place: Place, environment: dict[str, str], journal: Any) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path; from services.node_agent.strategies.locks import Locks; "
        "l = Locks(sys.argv[1], Path(sys.argv[2])); asyncio.run(l.start())"
    )
    subprocess.run(
        [sys.executable, "-c", script, place.device.libcuda, str(journal)],
        env=environment,
        check=True,
        stderr=subprocess.DEVNULL,
    )


def _state(place: Place, environment: dict[str, str], pid: int) -> int:
    """Returns the process's state as the driver reports it: 0 running, 1 locked."""
    script = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); s = ctypes.c_int(-1); d.cuInit(0); "
        "d.cuCheckpointProcessGetState(int(sys.argv[2]), ctypes.byref(s)); print(s.value)"
    )
    command = [sys.executable, "-c", script, place.device.libcuda, str(pid)]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
