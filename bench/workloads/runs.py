"""Runs a workload's program: alone and beside another one, without Kerf and in slices."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.workloads.outcome import Outcome, Result, Stop
from bench.workloads.place import Bench, PeakSampler, family
from bench.workloads.workload import Workload
from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Slice
from shared.model.units import MIB

TIMEOUT_S = 120.0
HALF_MILLI = 500
LEAD_NS = 100_000_000
"""On a GPU: from the moment when all programs are ready until they begin."""
TIMED = "timed"


class Container(NamedTuple):
    """Where a program runs. Without edits: on the machine itself, without Kerf."""

    memory_mib: int
    compute_milli: int = 0
    edits: ContainerEdits | None = None
    control_block: Path | None = None
    account: Callable[[], tuple[int, ...]] = tuple


def without_kerf(place: Bench, workload: Workload, rounds: int) -> Outcome:
    place.cases += 1
    return _run(place, workload, rounds, [Container(place.device.memory_mib)])[0]


def in_slices(
    place: Bench, workload: Workload, rounds: int, *, count: int = 1, memory_mib: int = 0, compute_milli: int = 0
) -> list[Outcome]:
    """`count` programs at the same time, each in a slice. `memory_mib` 0: all of the GPU."""
    size = memory_mib or place.device.memory_mib
    with place.registry() as registry:
        made = [place.slice_on(f"slice-{index}", workload.devices, size, compute_milli) for index in range(count)]
        prepared = [(slice_, place.edits(registry, slice_, share)) for slice_, share in made]
        containers = [
            Container(size, compute_milli, edits, registry.folder(slice_.key), _account_of(registry, slice_))
            for slice_, edits in prepared
        ]
        return _run(place, workload, rounds, containers)


def _account_of(registry: SliceRegistry, slice_: Slice) -> Callable[[], tuple[int, ...]]:
    def account() -> tuple[int, ...]:
        found = registry.read(slice_.key)
        return () if found is None else tuple(gpu.account_bytes for gpu in found.gpus)

    return account


def _run(place: Bench, workload: Workload, rounds: int, containers: Sequence[Container]) -> list[Outcome]:
    ready = Start(place, len(containers))
    with ThreadPoolExecutor(len(containers)) as pool:
        runs = [
            pool.submit(_run_one, place, workload, rounds, container, index, ready)
            for index, container in enumerate(containers)
        ]
        return [run.result() for run in runs]


class Start:
    """Where the programs of a run wait until all of them are ready."""

    def __init__(self, place: Bench, count: int) -> None:
        self._fake, self.count, self.at_ns = place.device.fake, count, 0
        self._barrier = threading.Barrier(count, self._decide, TIMEOUT_S)

    def _decide(self) -> None:
        self.at_ns = 0 if self._fake else time.monotonic_ns() + LEAD_NS

    def wait(self) -> int:
        """Returns when the timed part begins; 0: at once. Raises BrokenBarrierError if another program has failed."""
        self._barrier.wait()
        return self.at_ns

    def give_up(self) -> None:
        self._barrier.abort()


def _run_one(place: Bench, workload: Workload, rounds: int, container: Container, index: int, ready: Start) -> Outcome:
    words = (min(workload.memory_mib, container.memory_mib), container.memory_mib + 1, rounds, workload.devices)
    process = place.begin_program(
        [str(place.folder / workload.program), *map(str, words), str(ready.count)],
        container.edits,
        container.control_block,
        container=index,
        devices=workload.devices,
    )
    sampler = None if place.device.fake else PeakSampler(place.device.uuid, lambda: family(process.pid))
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    if sampler:
        sampler.start()
    try:
        outcome = _follow(process, container, ready)
    finally:
        watchdog.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
        if sampler:
            sampler.stop()
    return msgspec.structs.replace(
        outcome,
        memory_bytes=container.memory_mib * MIB,
        compute_milli=container.compute_milli,
        context_bytes=place.costs[0],
        sampled_peak_bytes=sampler.peak_bytes if sampler and sampler.samples else None,
    )


def _follow(process: subprocess.Popen[str], container: Container, ready: Start) -> Outcome:
    """Lets the program go on at each stop, and reads what is known there."""
    assert process.stdout is not None
    assert process.stdin is not None
    stops: list[Stop] = []
    result: Result | None = None
    begun = time.monotonic()
    for line in process.stdout:
        said = msgspec.json.decode(line)
        if "at" not in said:
            result = msgspec.convert(said, Result)
            continue
        if said["at"] == TIMED:
            try:
                at_ns = ready.wait()
            except threading.BrokenBarrierError:
                return Outcome(stops=tuple(stops), failure="the program beside it failed")
        else:
            at_ns = 0
            stops.append(msgspec.convert(said | {"account_bytes": container.account()}, Stop))
        process.stdin.write(f"{at_ns}\n")
        process.stdin.flush()
    last = stops[-1].at if stops else "its start"
    process.wait()
    if result is not None and not process.returncode:
        return Outcome(stops=tuple(stops), result=result)
    ready.give_up()
    if time.monotonic() - begun >= TIMEOUT_S:
        return Outcome(stops=tuple(stops), failure=f"it has not ended within {TIMEOUT_S:g} s; the last stop was {last}")
    assert process.stderr is not None
    text = process.stderr.read().strip()[-400:]
    return Outcome(stops=tuple(stops), failure=f"it ended with status {process.returncode} after {last}: {text}")
