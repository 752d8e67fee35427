"""How long the driver takes to move the memory of processes to the host and back.

    python -m bench.checkpoints [--mib 1024,8192,32768] [--together 1,2,4] [--fake] [--json]

Programs that hold memory on the first GPU are locked, checkpointed, restored and unlocked by the agent's own workers:
one of each size of --mib, then as many side by side as --together says, with the last size but one each. Times are in
ms, and those of the workers included. `with_library`: the same with the interposer in the program. `worker_own_mib` is
the memory of the host that each worker has to itself.

It needs the GPU for itself, root or CAP_SYS_PTRACE, and room on the host for the largest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.enforce.__main__ import device_for
from bench.enforce.cases import children
from bench.enforce.place import Place, build
from bench.fullspeed.node import COPIES
from services.node_agent.strategies.lock_pool import LockPool


@contextlib.contextmanager
def holding(place: Place, mib: int, count: int, *, library: bool) -> Iterator[list[int]]:
    """The PIDs of programs that hold so much memory each."""
    with place.registry() as registry:
        running = []
        try:
            for number in range(count):
                one = place.slice(f"s{number}", memory_mib=mib + 1024)
                if library:
                    registry.put(one)
                block = registry.folder(one.key) if library else None
                world = {"KERF_FAKE_CUDA": str(place.folder / "world")}
                running.append(place.start(["hold", str(mib)], block, client=number, clients=count, more=world))
            for process in running:
                assert process.stdout is not None
                said = json.loads(process.stdout.readline() or "{}")
                if said.get("result") != 0:
                    raise SystemExit(f"a program did not get {mib} MiB: {said}")
            yield [process.pid for process in running]
        finally:
            for process in running:
                process.kill()
                process.communicate()


async def turn(locks: LockPool, pids: Sequence[int], mib: int) -> dict[str, Any]:
    """Moves the memory of these processes to the host and back, side by side."""
    figures: dict[str, Any] = {"processes": len(pids), "mib_each": mib}
    spent = _spent(pids)
    for name, call in (
        ("lock_ms", locks.lock),
        ("checkpoint_ms", locks.checkpoint),
        ("restore_ms", locks.restore),
        ("unlock_ms", locks.unlock),
    ):
        begun = time.monotonic()
        await asyncio.gather(*map(call, pids))
        figures[name] = round((time.monotonic() - begun) * 1000, 1)
        if call == locks.checkpoint:
            figures |= {key: value - spent[key] for key, value in _spent(pids).items()} | {"host_mib": _host_mib(pids)}
    moved = mib * len(pids)
    for way in ("checkpoint", "restore"):
        figures[f"{way}_gib_per_s"] = round(moved / 1024 / (figures[f"{way}_ms"] / 1000), 2)
    return figures


def _spent(pids: Sequence[int]) -> dict[str, int]:
    """What these processes have taken of their CPUs, in ms, and how many page faults."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    tick_ms = 1000 // os.sysconf("SC_CLK_TCK")
    return {
        "page_faults": sum(int(each[7]) for each in fields),
        "user_ms": sum(int(each[11]) for each in fields) * tick_ms,
        "system_ms": sum(int(each[12]) for each in fields) * tick_ms,
    }


def _host_mib(pids: Sequence[int]) -> dict[str, int]:
    """The memory of the host that these processes have, and what of it is in huge pages or locked."""
    maps = list(map(_memory_kib, pids))
    return {name: sum(one[name] // 1024 for one in maps) for name in ("Rss", "AnonHugePages", "Anonymous", "Locked")}


def _memory_kib(pid: int) -> dict[str, int]:
    """The sums over a process's memory, by the kernel's names."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}


def _workers() -> list[int]:
    """The processes that make the driver's calls: children of this one."""
    found = children(os.getpid())
    return [int(pid) for pid in found if b"lock_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def resident_mib(pids: Sequence[int]) -> list[float]:
    """The memory of the host that processes have to themselves."""
    return [round((one["Private_Clean"] + one["Private_Dirty"]) / 1024, 1) for one in map(_memory_kib, pids)]


async def measure(place: Place, sizes: Sequence[int], counts: Sequence[int], *, once: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"device": place.device.name, "driver_version": place.device.driver_version}
    locks = LockPool(place.device.libcuda, place.folder / "journal.json", max(counts))
    rows: list[dict[str, Any]] = []
    try:
        plan = [(mib, 1) for mib in sizes] + [(sizes[max(0, len(sizes) - 2)], count) for count in counts if count > 1]
        for mib, count in plan:
            for library in (False,) if once else (False, True):
                with holding(place, mib, count, library=library) as pids:
                    row = {"with_library": library} | await turn(locks, pids, mib)
                    if not once:  # what the first has prepared is there
                        row["again"] = await turn(locks, pids, mib)
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
        workers = _workers()
        found["workers"] = len(workers)
        found["worker_own_mib"] = resident_mib(workers)
    finally:
        await locks.close()
    return found | {"rows": rows}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--mib", default="1024,8192,32768", help="memory of a program, several sizes")
    arguments.add_argument("--together", default="1,2,4", help="how many programs at once")
    arguments.add_argument("--once", action="store_true", help="each without the library alone, and no second time")
    arguments.add_argument("--libcuda", default="libcuda.so.1")
    arguments.add_argument("--fake", action="store_true", help="use the fake driver even if there is a GPU")
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    sizes, counts = ([int(word) for word in words.split(",")] for words in (asked.mib, asked.together))
    with tempfile.TemporaryDirectory(prefix="kerf-checkpoints-") as name:
        folder = Path(name)
        device = device_for(folder, asked.libcuda, fake=asked.fake)
        build(folder, fake=device.fake)
        if device.fake:
            os.environ |= {
                "KERF_FAKE_CUDA": str(folder / "world"),
                "KERF_FAKE_CUDA_MIB": str(max(sizes) * 8),
                **COPIES,
            }
        found = asyncio.run(measure(Place(folder, device), sizes, counts, once=asked.once))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for key in ("device", "driver_version", "workers", "worker_own_mib"):
        print(f"{key:16} {found[key]}")
    for row in found["rows"]:
        print(row)


if __name__ == "__main__":
    main()
