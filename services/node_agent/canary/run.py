"""Runs the canary: the probe under the interposer, on a real control block, as in a container."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from services.node_agent.canary import verdict
from services.node_agent.canary.verdict import DriverLimit, Proof
from services.node_agent.config import Config
from services.node_agent.devices.memory_limits import NO_LIMIT, MemoryLimitError, MemoryLimitsUnsupported
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.processes import child
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules, folder_name, remove
from services.node_agent.strategies.interposer import CONTAINER_DIR
from services.node_agent.strategies.rules import Policy, plan
from services.node_agent.strategies.slices import Key, Part, Slice
from shared.formats import UNREADABLE
from shared.model.strategies import TIME_SLICE
from shared.model.units import MIB

LIBRARY = "libkerf.so"
STEPS_PER_NS = "KERF_PROBE_STEPS_PER_NS"
"""From this variable a probe takes how long its kernel is, instead of measuring it."""
LIMIT_BYTES = 512 << 20
CHUNK_KIB = 16 << 10
MAX_PROBE_MIB = 1024
"""If no limit holds, the probe stops here: the rest of the GPU is not the canary's."""
DRIVER_LIMIT_BYTES, MAX_UNLIMITED_MIB = 1024 << 20, 1536
"""The driver's limit for a cgroup, which includes the context, and where the probe stops if it does not hold."""
CGROUP = "kerf-canary"
SHARE_MILLI = 300
SHARE_MS = 3_000
KERNEL_US = 500
TURNS_MS = 3_000
CALIBRATION_STEPS = (10_000_000, 200_000)
"""Of the kernel: some 0.1 s, after which an idle GPU runs at its full clock, and then so short that it fits between the
work of others."""
COPY_MIB, COPY_MS = 64, 100
"""The pinned memory that is copied, and how long in each direction. A copy that has begun is finished."""
CONTEXTS = 3
"""How many contexts are measured one after the other, without the interposer, which would report the slice."""
TIMEOUT_S = 60.0


class CanaryError(Exception):
    """The canary could not be run: nothing is proven, and nothing disproven."""


class Canary:
    """Runs the probe. `under` wraps a command so that it sees the control block of a folder where a container would."""

    def __init__(
        self,
        *,
        build: Path,
        folder: Path,
        libcuda: str,
        clock: Callable[[], int],
        under: Callable[[Path, Sequence[str]], Sequence[str]],
        limit: Callable[[str, Path, int], Awaitable[None]] | None = None,
        cgroups: Path | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        """`build`: the folder of the interposer and the probe.

        `libcuda`: the driver's library as this process sees it. `limit` sets the driver's memory limit of a cgroup on a
        GPU, or raises MemoryLimitError. `cgroups` is the root of the pods' cgroups of version 2; None: they have none.
        """
        self._limit, self._cgroups = limit, cgroups
        self._build, self._folder, self._libcuda, self._clock = build, folder, libcuda, clock
        self._under, self._environment = under, dict(environment)

    @property
    def program(self) -> tuple[str, str]:
        """The probe, and the driver's library as this process sees it."""
        return str(self._build / "probe"), self._libcuda

    async def run(self, gpu: str, driver_version: str, library: str, at_ms: int, *, alone: bool = True) -> Proof:
        """Measures limits and costs on one GPU. Raises CanaryError, OSError, and ValueError if the GPU's UUID is
        malformed.

        `alone`: no slice has a part of this GPU; otherwise the canary's share may be smaller.
        """
        limits = GpuRule(uuid=gpu, memory_limit_bytes=LIMIT_BYTES)
        wrong, max_bytes, paths = await self.memory(gpu)
        got = 0
        calibrated: dict[str, str] = {}
        if not wrong:
            calibrated = await self._calibrated(gpu)
            share = msgspec.structs.replace(limits, compute_milli=SHARE_MILLI)
            lines = await self._probe(share, *_loop(), environment=calibrated)
            wrong, got = verdict.of_share(lines[-1] if lines else {}, SHARE_MILLI, SHARE_MS, alone=alone)
        turns, turned = ("", ()) if wrong else await self._turns(gpu, calibrated)
        costs = (
            {}
            if wrong
            else (await self._lines(gpu, [str(self._build / "probe"), self._libcuda, "context", str(CONTEXTS)]))[-1]
        )
        by_driver: DriverLimit = "untried"
        why = ""
        if not wrong:
            by_driver, why = await self._driver_limit(gpu)
        return Proof(
            driver_version=driver_version,
            library=library,
            ok=not wrong,
            sentence=wrong,
            at_ms=at_ms,
            gpu=gpu,
            memory_limit_bytes=LIMIT_BYTES,
            max_memory_bytes=max_bytes,
            paths=paths,
            share_asked_milli=SHARE_MILLI,
            share_got_milli=got,
            context_bytes=verdict.of_contexts(costs),
            seen_bytes=verdict.of_sight(costs) if costs else verdict.UNKNOWN,
            driver_limit=by_driver,
            driver_limit_sentence=why,
            pool_chunk_bytes=verdict.of_pools(costs),
            turns_milli=turned,
            turns_sentence=turns,
        )

    async def copies(self, gpu: str, cpus: str) -> dict[str, Any]:
        """Measures pinned copies to one GPU and back, on these CPUs (empty: any), without the interposer.

        Raises CanaryError, OSError.
        """
        command = [str(self._build / "probe"), self._libcuda, "copy", str(COPY_MIB), str(COPY_MS), cpus or "-"]
        return (await self._lines(gpu, command))[-1]

    async def memory(
        self, gpu: str, environment: Mapping[str, str] = {}, prefix: Sequence[str] = ()
    ) -> tuple[str, int, tuple[str, ...]]:
        """Fills a slice along all allocation paths. Returns what is wrong, the most bytes given, and the paths.

        `environment`: further variables of the probe; `prefix`: what runs it. Raises CanaryError, OSError, ValueError.
        """
        rule, what = GpuRule(uuid=gpu, memory_limit_bytes=LIMIT_BYTES), ("memory", str(CHUNK_KIB), str(MAX_PROBE_MIB))
        lines = await self._probe(rule, *what, environment=environment, prefix=prefix)
        return verdict.of_memory(lines, LIMIT_BYTES, CHUNK_KIB << 10)

    async def _driver_limit(self, gpu: str) -> tuple[DriverLimit, str]:
        """Runs the probe in a cgroup of its own that the driver limits, without the interposer. Returns what the limit
        does, and why it does not hold for all memory."""
        if self._limit is None or self._cgroups is None:
            return "none", "the host has no cgroups of version 2 for pods"
        try:
            with _cgroup(self._cgroups / CGROUP) as folder:
                await self._limit(gpu, folder, DRIVER_LIMIT_BYTES)
                lines = await self._lines(
                    gpu,
                    ["sh", "-c", 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"', "sh", str(folder),
                     str(self._build / "probe"), self._libcuda, "limit", str(CHUNK_KIB), str(MAX_UNLIMITED_MIB)],
                )  # fmt: skip
                await self._limit(gpu, folder, NO_LIMIT)
        except MemoryLimitsUnsupported as error:
            return "none", str(error)
        except (MemoryLimitError, CanaryError) as error:
            return "fails", str(error)
        except OSError as error:
            return "fails", f"the agent cannot have a cgroup of its own ({error.filename}: {error.strerror})"
        return verdict.of_driver_limit(lines, DRIVER_LIMIT_BYTES, CHUNK_KIB << 10)

    async def _calibrated(self, gpu: str) -> dict[str, str]:
        """Measures the probe's kernel, without the interposer and beside no other probe. Returns the variable by which
        other probes know it: two that measured it at once would take each other's time for their own kernels', and one
        that waits for its turn would measure it after the other's end."""
        command = [str(self._build / "probe"), self._libcuda, "calibrate"]
        found = [(await self._lines(gpu, [*command, str(steps)]))[-1] for steps in CALIBRATION_STEPS]
        return {STEPS_PER_NS: str(max(float(line["steps_per_ns"]) for line in found))}

    async def _turns(self, gpu: str, environment: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
        """Keeps two time-sliced slices busy at once: of equal rank, then of different rank. Returns what is wrong, and
        the shares."""
        part = (Part(uuid=gpu, memory_mib=LIMIT_BYTES // MIB, compute_milli=0),)
        found: list[str] = []
        shares: list[int] = []
        for ranked in (False, True):
            pair = [
                Slice(uid=self._folder.name, container=name, strategy=TIME_SLICE, parts=part, priority=priority)
                for name, priority in (("first", int(ranked)), ("second", 0))
            ]
            wrong, got = verdict.of_turns(await self._at_once(pair, gpu, environment), ranked)
            found += [wrong] if wrong else []
            shares += got
        return "; ".join(found), tuple(shares)

    async def _at_once(self, slices: Sequence[Slice], gpu: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
        """Runs the loop in all of the slices, under the rules that a node's slices get, and returns what each did."""
        rules = plan(slices, Policy(), {})
        folders = {slice_.key: self._folder.parent / folder_name(slice_.key) for slice_ in slices}
        blocks: dict[Key, ControlBlock] = {}
        for folder in folders.values():
            remove(folder)
        command = [str(self._build / "probe"), self._libcuda, "loop", "ready", str(TURNS_MS), str(KERNEL_US), "0", "1"]
        try:
            blocks |= {key: ControlBlock(folder, self._clock) for key, folder in folders.items()}
            for key, block in blocks.items():
                block.write(rules[key], context_bytes=0, driver_path=self._libcuda)
            start = asyncio.Barrier(len(slices))
            ran = await asyncio.gather(
                *(
                    self._lines(gpu, self._under(folder, command), folder, start, environment=environment)
                    for folder in folders.values()
                )
            )
        finally:
            for block in blocks.values():
                block.close()
            for folder in folders.values():
                remove(folder)
        return [lines[-1] for lines in ran]

    async def _probe(
        self,
        rule: GpuRule,
        *what: str,
        environment: Mapping[str, str] = {},
        prefix: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        remove(self._folder)
        control_block = ControlBlock(self._folder, self._clock)
        try:
            control_block.write(Rules(gpus=(rule,)), context_bytes=0, driver_path=self._libcuda)
            command = self._under(self._folder, [str(self._build / "probe"), self._libcuda, *what])
            return await self._lines(rule.uuid, [*prefix, *command], environment=environment)
        finally:
            control_block.close()
            remove(self._folder)

    async def _lines(
        self,
        gpu: str,
        command: Sequence[str],
        folder: Path | None = None,
        start: asyncio.Barrier | None = None,
        *,
        environment: Mapping[str, str] = {},
    ) -> list[dict[str, Any]]:
        """Runs a command and returns the lines that it prints. `gpu`: the UUID of the only one that it sees. By number
        CUDA has others where some are in MIG mode.

        `start`: the command waits until it has passed this barrier, after it has printed its first line.
        """
        what = command[command.index(self._libcuda) + 1]
        order = {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        own = os.environ | self._environment | order | dict(environment)
        own["KERF_DIRECTORY"] = str(folder or self._folder)  # only read by the tests' build
        process = await asyncio.create_subprocess_exec(
            *command,
            env=own,
            stdin=asyncio.subprocess.DEVNULL if start is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, errors = await asyncio.wait_for(_communicate(process, start), TIMEOUT_S)
        except TimeoutError:
            raise CanaryError(f"the canary's {what} probe has not ended within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:  # late, or the agent ends
                await child.end(process)
        if process.returncode:
            raise CanaryError(
                f"the canary's {what} probe ended with status {process.returncode}: "
                f"{errors.decode(errors='replace').strip()[-400:]}"
            )
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in out.splitlines()]
        except UNREADABLE as error:
            raise CanaryError(f"the canary's {what} probe printed invalid JSON: {error}") from error


@contextlib.contextmanager
def _cgroup(folder: Path) -> Iterator[Path]:
    """A cgroup for the time of the context. Raises OSError."""
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    finally:
        folder.rmdir()  # and with it a limit that could not be cleared


async def _communicate(process: asyncio.subprocess.Process, start: asyncio.Barrier | None) -> tuple[bytes, bytes]:
    if start is None or process.stdout is None:
        return await process.communicate()
    first = await process.stdout.readline()
    await start.wait()
    out, errors = await process.communicate(b"\n")
    return first + out, errors


def _loop() -> tuple[str, ...]:
    return "loop", "0", str(SHARE_MS), str(KERNEL_US), "0", "1"


def canary_of(config: Config, devices: DeviceMonitor, clock: Callable[[], int], libcuda: Callable[[], str]) -> Canary:
    """Returns the canary of this node, for its driver as it is now."""
    build = Path(config.interposer_dir)
    return Canary(
        build=build,
        folder=Path(config.run_dir) / "canary",
        libcuda=libcuda(),
        clock=clock,
        under=in_a_namespace(build / LIBRARY),
        limit=devices.limit_memory,
        cgroups=PodCgroups(Path(config.cgroup_dir)).root_v2(),
    )


def in_a_namespace(library: Path) -> Callable[[Path, Sequence[str]], Sequence[str]]:
    """Wraps a command in a mount namespace with the control block where a container has it, and preloads
    the library. Needs root.
    """
    script = (
        'mkdir -p "$2" && mount --bind "$1" "$2" && shift 2 && '
        'LD_PRELOAD="$1" && export LD_PRELOAD && shift && exec "$@"'
    )
    own = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, "sh"]
    return lambda folder, command: [*own, str(folder), CONTAINER_DIR, str(library), *command]
