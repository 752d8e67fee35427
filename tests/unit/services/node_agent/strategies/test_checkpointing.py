"""All of a pod's processes are checkpointed or none, on a fake driver that keeps a state for each process."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.checkpointing import Checkpointer, PartialCheckpoint
from services.node_agent.strategies.lock_pool import LockPool
from tests.support.waiting import eventually
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup

UID = "5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
COPIED: list[tuple[str, str, float]] = []
"""What was told of copies: pod, way, seconds."""
DRIVER = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
/* Every process runs at first. KERF_BAD cannot be checkpointed; with KERF_STUCK no process can be
 * restored, and KERF_LAST never. */
static int *state, none;
__attribute__((constructor)) static void shared(void) {
    int file = open(STATES, O_RDWR | O_CREAT, 0600);
    size_t size = sizeof *state << 22;
    state = ftruncate(file, (off_t)size) ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}
static int is(const char *name, int pid) { return getenv(name) && atoi(getenv(name)) == pid; }
int cuInit(unsigned f) { return (int)f; }
int cuCheckpointProcessLock(int p, void *a) { (void)a; return state[p] ? 401 : (state[p] = 1, 0); }
int cuCheckpointProcessUnlock(int p, void *a) { (void)a; return state[p] != 1 ? 401 : (state[p] = 0, 0); }
int cuCheckpointProcessCheckpoint(int p, void *a) {
    (void)a;
    return is("KERF_BAD", p) ? 801 : state[p] != 1 ? 401 : (state[p] = 2, 0);
}
int cuCheckpointProcessRestore(int p, void *a) {
    (void)a;
    return getenv("KERF_STUCK") || is("KERF_LAST", p) ? 2 : state[p] != 2 ? 401 : (state[p] = 1, 0);
}
int cuCheckpointProcessGetState(int p, int *s) { return is("KERF_NO_GPU", p) ? 1 : (*s = state[p], none); }
"""


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """PIDs of three idle processes."""
    running = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    yield [process.pid for process in running]
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
async def checkpointer(tmp_path: Path, compiler: str, pids: list[int]) -> AsyncIterator[Checkpointer]:
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(  # noqa: ASYNC221
        [
            *(compiler, "-shared", "-fPIC", f'-DSTATES="{tmp_path}/states"'),
            *("-o", str(tmp_path / "driver.so"), str(tmp_path / "driver.c")),
        ],
        check=True,
    )
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.procs").touch()
    cgroup(tmp_path / "cgroup" / "kubepods" / f"pod{UID}" / "main", pids="".join(f"{pid}\n" for pid in pids))
    cgroup(tmp_path / "cgroup" / "kubepods" / f"pod{UID}")
    times = itertools.count()
    made = Checkpointer(
        LockPool(str(tmp_path / "driver.so"), tmp_path / "parked.json"),
        PodCgroups(tmp_path / "cgroup"),
        copied=lambda *told: COPIED.append(told),
        clock=lambda: float(next(times)),
    )
    COPIED.clear()
    yield made
    await made.locks.close()


async def test_the_time_of_a_copy_is_told_when_all_of_the_pod_was_copied(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERF_LAST", str(pids[2]))
    assert await checkpointer.checkpoint(UID, (1,)) == ""
    assert await checkpointer.checkpoint(UID, (1,)) == "", "nothing is left to be copied"
    assert COPIED == [(UID, "out", 1.0)]
    assert await checkpointer.restore(UID) != ""
    assert len(COPIED) == 1, "it failed"


async def test_the_time_of_a_restore_is_told_too(checkpointer: Checkpointer) -> None:
    await checkpointer.checkpoint(UID, (1,))
    await checkpointer.restore(UID)
    await checkpointer.restore(UID)
    assert COPIED == [(UID, "out", 1.0), (UID, "back", 1.0)]


async def test_of_a_pod_of_which_a_part_is_on_the_host_no_time_is_told(
    checkpointer: Checkpointer, pids: list[int]
) -> None:
    """It has more on GPUs than is copied."""
    await checkpointer.locks.checkpoint(pids[0])
    assert await checkpointer.checkpoint(UID, (1,)) == ""
    await checkpointer.locks.restore(pids[0])
    await checkpointer.locks.unlock(pids[0])
    assert await checkpointer.restore(UID) == ""
    assert COPIED == []


async def test_what_was_put_back_after_a_failure_tells_no_time(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the pod came back, in less time than all of it."""
    monkeypatch.setenv("KERF_BAD", str(pids[1]))
    assert await checkpointer.checkpoint(UID, (1,)) != ""
    assert COPIED == []


async def test_all_processes_on_gpus_are_checkpointed_and_restored_and_no_others(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERF_NO_GPU", str(pids[1]))
    assert await checkpointer.checkpoint(UID, (1,)) == ""
    assert [await checkpointer.locks.state(pid) for pid in pids] == [2, None, 2]
    assert await checkpointer.checkpoint(UID, (1,)) == "", "asked again, it is so"
    assert await checkpointer.restore(UID) == ""
    assert [await checkpointer.locks.state(pid) for pid in pids] == [0, None, 0]


async def test_a_failed_checkpoint_restores_the_processes_before_it(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERF_BAD", str(pids[1]))
    assert await checkpointer.checkpoint(UID, (1,)) == f"the driver answers 801 to the checkpoint of process {pids[1]}"
    assert [await checkpointer.locks.state(pid) for pid in pids] == [0, 0, 0]


async def test_what_was_on_the_host_stays_there_when_the_checkpoint_is_ordered_again_and_fails(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other pods have its place on the GPU by now. A process that has begun meanwhile goes on."""
    monkeypatch.setenv("KERF_BAD", str(pids[1]))
    for pid in (pids[0], pids[2]):
        await checkpointer.locks.checkpoint(pid)
    assert "801" in await checkpointer.checkpoint(UID, (1,))
    assert [await checkpointer.locks.state(pid) for pid in pids] == [2, 0, 2]


async def test_a_failed_restore_is_reported_as_a_partial_checkpoint(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERF_BAD", str(pids[1]))
    monkeypatch.setenv("KERF_STUCK", "1")
    with pytest.raises(PartialCheckpoint, match="801"):
        await checkpointer.checkpoint(UID, (1,))
    assert [await checkpointer.locks.state(pid) for pid in pids] == [2, 0, 2]


async def test_a_pod_without_a_cgroup_has_nothing_on_gpus(checkpointer: Checkpointer) -> None:
    other = f"{os.getpid():08x}-0000-0000-0000-000000000000"
    assert (await checkpointer.checkpoint(other, ()), await checkpointer.restore(other)) == ("", "")


async def test_no_process_goes_on_while_another_one_stays_on_the_host(
    checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was restored before it goes back: it would wait for it in a collective."""
    monkeypatch.setenv("KERF_LAST", str(pids[2]))
    assert await checkpointer.checkpoint(UID, (1,)) == ""
    assert await checkpointer.restore(UID) == f"the driver answers 2 to the restoring of process {pids[2]}"
    assert [await checkpointer.locks.state(pid) for pid in pids] == [2, 2, 2]


async def test_two_pods_that_are_copied_at_once_do_not_take_the_same_room(
    tmp_path: Path, checkpointer: Checkpointer, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other one copies may be there already and be counted twice, so it is not refused before that is over."""
    other = f"{os.getpid():08x}-0000-0000-0000-000000000000"
    for uid, its in ((UID, pids[:2]), (other, pids[2:])):
        cgroup(tmp_path / "cgroup" / "kubepods" / f"pod{uid}" / "main", pids="".join(f"{pid}\n" for pid in its))
        cgroup(tmp_path / "cgroup" / "kubepods" / f"pod{uid}")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {100 * 1024} kB\nSwapFree: 0 kB\n")
    monkeypatch.setattr(checkpointer, "_meminfo", lambda: tmp_path / "meminfo")
    told: list[tuple[str, str]] = []
    no_room, copy, go = checkpointer.no_room, checkpointer.locks.checkpoint, asyncio.Event()

    async def looked(uid: str, bytes_of: tuple[int, ...]) -> str:
        told.append((uid, await no_room(uid, bytes_of)))
        return told[-1][1]

    async def copied(pid: int) -> None:
        await go.wait()
        await copy(pid)

    monkeypatch.setattr(checkpointer, "no_room", looked)
    monkeypatch.setattr(checkpointer.locks, "checkpoint", copied)
    both = [asyncio.create_task(checkpointer.checkpoint(UID, (60 << 20,)))]
    await eventually(lambda: told)
    both.append(asyncio.create_task(checkpointer.checkpoint(other, (60 << 20,))))
    await eventually(lambda: len(told) > 1)
    go.set()
    assert await asyncio.gather(*both) == ["", ""]
    full = "the node has 40 MiB of memory left, but the pod has 60 MiB on GPUs"
    assert told == [(UID, ""), (other, full), (other, "")]
    assert [await checkpointer.locks.state(pid) for pid in pids] == [2, 2, 2]
