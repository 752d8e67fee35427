"""Copies go on side by side, and a worker that hangs takes no locks but its own with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.lock_pool import LockPool
from services.node_agent.strategies.lock_worker import Places, started
from services.node_agent.strategies.locks import LockError
from tests.support.waiting import eventually

DRIVER = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
/* A copy ends when as many are going on as the first word says. A process whose state is 9 hangs. */
static volatile int *state;
__attribute__((constructor)) static void shared(void) {
    int file = open(STATES, O_RDWR | O_CREAT, 0600);
    size_t size = sizeof *state << 22;
    state = ftruncate(file, (off_t)size) ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}
int cuInit(unsigned f) { return (int)f; }
int cuCheckpointProcessLock(int p, void *a) { (void)a; return state[p] ? 401 : (state[p] = 1, 0); }
int cuCheckpointProcessUnlock(int p, void *a) { (void)a; return state[p] != 1 ? 401 : (state[p] = 0, 0); }
static int copy(int p, int from, int to) {
    if (state[p] != from) return 401;
    __sync_fetch_and_add(&state[1], 1);
    while (state[1] < state[0]) usleep(1000);
    state[p] = to;
    return 0;
}
int cuCheckpointProcessCheckpoint(int p, void *a) {
    (void)a;
    while (state[p] == 9) usleep(1000);
    return copy(p, 1, 2);
}
int cuCheckpointProcessRestore(int p, void *a) { (void)a; return copy(p, 2, 1); }
int cuCheckpointProcessGetState(int p, int *s) { *s = state[p] == 9 ? 1 : state[p]; return 0; }
"""


@pytest.fixture
def driver(tmp_path: Path, compiler: str) -> Path:
    (tmp_path / "driver.c").write_text(DRIVER)
    made = tmp_path / "driver.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f'-DSTATES="{tmp_path}/states"', "-o", str(made), str(tmp_path / "driver.c")],
        check=True,
    )
    return made


@pytest.fixture
def pids() -> Iterator[list[int]]:
    running = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    yield [process.pid for process in running]
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
async def pool(driver: Path, tmp_path: Path) -> AsyncIterator[LockPool]:
    made = LockPool(str(driver), tmp_path / "parked.json", answer_s=1.0, patience_ms=200)
    await made.start()
    yield made
    await made.close()


class States:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "states"

    def set(self, at: int, value: int) -> None:
        with self._path.open("r+b") as file:
            file.seek(4 * at)
            file.write(value.to_bytes(4, "little"))

    def get(self, at: int) -> int:
        with self._path.open("rb") as file:
            file.seek(4 * at)
            return int.from_bytes(file.read(4), "little")


async def test_copies_go_on_side_by_side(pool: LockPool, pids: list[int], tmp_path: Path) -> None:
    """None of them ends before all have begun."""
    states = States(tmp_path)
    states.set(0, len(pids))
    for pid in pids:
        await pool.lock(pid)
    await asyncio.gather(*map(pool.checkpoint, pids))
    assert [await pool.state(pid) for pid in pids] == [2, 2, 2]
    assert pool.held == frozenset()
    states.set(1, 0)
    await asyncio.gather(*map(pool.restore, pids))
    assert pool.held == set(pids)
    for pid in pids:
        await pool.unlock(pid)
    assert [await pool.state(pid) for pid in pids] == [0, 0, 0]


async def test_a_process_stays_locked_while_others_are_copied_for_longer_than_the_patience(
    pool: LockPool, pids: list[int], tmp_path: Path
) -> None:
    states = States(tmp_path)
    for pid in pids:
        await pool.lock(pid)
    states.set(0, 1000)
    copy = asyncio.create_task(pool.checkpoint(pids[0]))
    await eventually(lambda: states.get(1) == 1)
    until = asyncio.get_running_loop().time() + 1.0  # five times the patience

    def over() -> bool:
        assert (states.get(pids[1]), states.get(pids[2])) == (1, 1)
        return asyncio.get_running_loop().time() > until

    await eventually(over)
    states.set(0, 0)
    await copy
    assert pool.held == set(pids[1:])


async def test_a_worker_that_hangs_takes_no_locks_but_its_own_with_it(
    driver: Path, pids: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.node_agent.strategies.locks.COPY_S", 0.5)
    pool, states = LockPool(str(driver), tmp_path / "parked.json"), States(tmp_path)
    for pid in pids:
        await pool.lock(pid)
    states.set(pids[0], 9)
    with pytest.raises(LockError, match="did not answer"):
        await pool.checkpoint(pids[0])
    assert pool.held == set(pids[1:])
    await pool.checkpoint(pids[1])
    assert [states.get(pid) for pid in pids[1:]] == [2, 1]
    await pool.close()
    assert states.get(pids[2]) == 0


@pytest.mark.parametrize("name", ["parked.json", "parked-1.json", "parked-20.json"])
async def test_the_next_agent_undoes_the_locks_of_every_worker(
    driver: Path, pids: list[int], tmp_path: Path, name: str
) -> None:
    """Also of one with more workers, or with a single one as in former versions."""
    first = LockPool(str(driver), tmp_path / "first" / "parked.json")
    await first.lock(pids[0])
    (tmp_path / name).write_text(json.dumps({pids[0]: started(pids[0])}))
    pool = LockPool(str(driver), tmp_path / "parked.json")
    assert pool.has_leftovers()
    await pool.start()
    assert (await pool.state(pids[0]), pool.has_leftovers()) == (0, False)
    await pool.close()
    await first.close()


def test_places_that_several_workers_write_at_once_are_all_kept(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from services.node_agent.strategies.lock_worker import Places\n"
        "for at in range(50): Places(Path(sys.argv[1])).write(f'pod-{sys.argv[2]}-{at}', 'GPU-0')"
    )
    path = tmp_path / "moved.json"
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), str(number)]) for number in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(Places(path).read()) == 200
