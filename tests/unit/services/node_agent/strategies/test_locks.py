"""The driver's process locks on the fake libcuda: a locked process does not run, and no crash leaves a process
locked."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.lock_worker import started
from services.node_agent.strategies.locks import LockError, Locks, NoWorker
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[5]


@pytest.fixture
async def locks(cuda: str, world: str, tmp_path: Path) -> AsyncIterator[Locks]:
    made = Locks(cuda, tmp_path / "run" / "locks.json")
    await made.start()
    yield made
    await made.close()


def progress(cuda: str, pid: int) -> int:
    """GPU time of a process, read by a helper process, because the test must not become a client of the fake driver."""
    script = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); "
        "d.kerf_fake_gpu_ns.restype = ctypes.c_uint64; print(d.kerf_fake_gpu_ns(0, int(sys.argv[2])))"
    )
    return int(
        subprocess.run(
            [sys.executable, "-c", script, cuda, str(pid)], check=True, capture_output=True, text=True
        ).stdout
    )


async def test_a_locked_process_runs_nothing_and_continues_after_the_unlock(
    cuda: str, victim: int, locks: Locks, state: Callable[[int], int]
) -> None:
    await eventually(lambda: progress(cuda, victim) > 0)
    await locks.lock(victim)
    assert state(victim) == 1
    first = progress(cuda, victim)
    assert progress(cuda, victim) == first
    await locks.unlock(victim)
    assert state(victim) == 0
    await eventually(lambda: progress(cuda, victim) > first)


async def test_a_process_that_the_driver_does_not_know_cannot_be_locked(locks: Locks) -> None:
    with pytest.raises(LockError, match="answers 1 to the lock"):
        await locks.lock(1)
    assert locks.held == set()


async def test_closing_unlocks_all(
    cuda: str, world: str, tmp_path: Path, victim: int, state: Callable[[int], int]
) -> None:
    made = Locks(cuda, tmp_path / "locks.json")
    await made.lock(victim)
    await made.close()
    assert state(victim) == 0
    with pytest.raises(LockError, match="is terminating"):
        await made.lock(victim)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_killed_or_frozen_agent_leaves_no_process_locked(
    how: signal.Signals, cuda: str, tmp_path: Path, victim: int, state: Callable[[int], int]
) -> None:
    with agent(cuda, tmp_path / "locks.json", victim, patience_ms=400) as (process, _):
        assert state(victim) == 1
        os.kill(process.pid, how)
        await eventually(lambda: state(victim) == 0)


async def test_a_killed_worker_leaves_no_process_locked(
    cuda: str, tmp_path: Path, victim: int, state: Callable[[int], int]
) -> None:
    """The agent continues and starts another worker."""
    with agent(cuda, tmp_path / "locks.json", victim, patience_ms=60_000) as (_, worker):
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: state(victim) == 0)


async def test_when_agent_and_worker_are_killed_at_once_the_next_start_unlocks(
    cuda: str, tmp_path: Path, victim: int, state: Callable[[int], int]
) -> None:
    with agent(cuda, tmp_path / "locks.json", victim, patience_ms=60_000) as (process, worker):
        os.kill(worker, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        process.wait()
    assert state(victim) == 1
    successor = Locks(cuda, tmp_path / "locks.json")
    await successor.start()
    assert state(victim) == 0
    await successor.close()


@pytest.fixture
def hanging(tmp_path: Path, compiler: str) -> str:
    source = tmp_path / "hangs.c"
    source.write_text(
        "#include <unistd.h>\nint cuInit(unsigned f){return f;}\n"
        "int cuCheckpointProcessLock(int p, void *a){(void)p;(void)a;for(;;)pause();}\n"
        "int cuCheckpointProcessUnlock(int p, void *a){(void)p;(void)a;return 0;}\n"
        "int cuCheckpointProcessGetState(int p, int *s){(void)p;*s=0;return 0;}\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "hangs.so"), str(source)], check=True)
    return str(tmp_path / "hangs.so")


@pytest.fixture
def stubborn(tmp_path: Path, compiler: str) -> str:
    """A driver whose first unlock fails, so that the process stays locked."""
    source = tmp_path / "stubborn.c"
    source.write_text(
        "static int locked, asked;\nint cuInit(unsigned f){return f;}\n"
        "int cuCheckpointProcessLock(int p, void *a){(void)p;(void)a;locked=1;return 0;}\n"
        "int cuCheckpointProcessUnlock(int p, void *a){(void)p;(void)a;if(!asked++)return 600;locked=0;return 0;}\n"
        "int cuCheckpointProcessGetState(int p, int *s){(void)p;*s=locked;return 0;}\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "stubborn.so"), str(source)], check=True)
    return str(tmp_path / "stubborn.so")


async def test_a_failed_unlock_is_retried(tmp_path: Path, stubborn: str) -> None:
    journal = tmp_path / "locks.json"
    locks = Locks(stubborn, journal)
    await locks.lock(os.getpid())
    await locks.unlock(os.getpid())
    assert str(os.getpid()) in journal.read_text()
    await locks.close()
    assert journal.read_text() == "{}", "tried again, and done"


async def test_a_hanging_driver_costs_only_the_worker(tmp_path: Path, hanging: str) -> None:
    locks = Locks(hanging, tmp_path / "locks.json", answer_s=0.3)
    with pytest.raises(LockError, match="did not answer"):
        await locks.lock(os.getpid())
    await locks.unlock(os.getpid())
    assert (tmp_path / "locks.json").read_text() == "{}", "its successor has undone the lock"
    await locks.close()


async def test_a_driver_without_locks_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot be used") as found:
        await Locks(ctypes.util.find_library("c") or "libc.so.6", tmp_path / "locks.json").start()
    assert not isinstance(found.value, NoWorker), "that is so as long as the driver is loaded"


async def test_a_driver_that_comes_after_the_agent_is_found(tmp_path: Path, stubborn: str) -> None:
    library = "/nowhere/libcuda.so.1"
    locks = Locks(lambda: library, tmp_path / "locks.json")
    with pytest.raises(NoWorker, match="cannot open shared object"):
        await locks.state(os.getpid())
    library = stubborn
    assert await locks.state(os.getpid()) == 0
    await locks.close()


@contextlib.contextmanager
def agent(cuda: str, journal: Path, pid: int, patience_ms: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A separate agent process that holds a lock, with its worker's PID."""
    command = [
        sys.executable,
        "-m",
        "tests.unit.services.node_agent.strategies.holder",
        cuda,
        str(journal),
        str(pid),
        str(patience_ms),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        word, worker = process.stdout.readline().split()
        assert word == "locked"
        yield process, int(worker)
        process.kill()


CHECKPOINTED = 2
MIB = 1 << 20


def taken(cuda: str) -> int:
    """MiB in use on the fake driver's first device, by all processes."""
    script = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); "
        "d.kerf_fake_used_bytes.restype = ctypes.c_uint64; print(d.kerf_fake_used_bytes(0) >> 20)"
    )
    return int(subprocess.run([sys.executable, "-c", script, cuda], check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The victim's context takes 10 of the device's 16 GiB."""
    monkeypatch.setenv("KERF_FAKE_CUDA_CONTEXT_MIB", "10240")


async def test_a_checkpoint_frees_the_memory_and_a_restore_takes_it_again(
    full: None, cuda: str, victim: int, locks: Locks, state: Callable[[int], int]
) -> None:
    assert taken(cuda) == 10240
    await locks.checkpoint(victim)
    assert (state(victim), taken(cuda), await locks.state(victim)) == (CHECKPOINTED, 0, CHECKPOINTED)
    await locks.checkpoint(victim)
    first = progress(cuda, victim)
    await locks.restore(victim)
    assert (state(victim), taken(cuda), progress(cuda, victim)) == (1, 10240, first), "it goes on with `unlock`"
    await locks.unlock(victim)
    await eventually(lambda: progress(cuda, victim) > first)
    await locks.restore(victim)
    assert (state(victim), locks.held) == (0, set())


async def test_a_restore_without_room_on_the_device_fails_and_the_process_stays_checkpointed(
    full: None, cuda: str, world: str, victim: int, locks: Locks, state: Callable[[int], int]
) -> None:
    await locks.checkpoint(victim)
    command = [sys.executable, str(ROOT / "tests/unit/services/node_agent/strategies/victim.py"), cuda]
    # The process prints its first line at once.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as taker:  # noqa: ASYNC220
        assert taker.stdout is not None
        assert taker.stdout.readline() == "begun\n"
        with pytest.raises(LockError, match="answers 2 to the restoring"):
            await locks.restore(victim)
        assert state(victim) == CHECKPOINTED
        taker.kill()
    await locks.restore(victim)
    assert state(victim) == 1


async def test_a_process_stays_checkpointed_when_agent_and_worker_die_and_the_next_agent_can_restore_it(
    full: None, cuda: str, world: str, tmp_path: Path, victim: int, state: Callable[[int], int]
) -> None:
    first = Locks(cuda, tmp_path / "parked.json")
    await first.checkpoint(victim)
    await first.close()
    assert state(victim) == CHECKPOINTED, "other pods use its memory"
    # The worker was killed between the checkpoint and the journal entry.
    (tmp_path / "parked.json").write_text(f'{{"{victim}": {started(victim)}}}')
    second = Locks(cuda, tmp_path / "parked.json")
    await second.start()
    assert state(victim) == CHECKPOINTED
    assert (tmp_path / "parked.json").read_text() == "{}"
    await second.restore(victim)
    assert state(victim) == 1
    await second.close()
    assert state(victim) == 0


async def test_a_process_that_the_driver_does_not_know_cannot_be_checkpointed_and_needs_no_restore(
    locks: Locks,
) -> None:
    assert await locks.state(1) is None
    with pytest.raises(LockError, match="to the checkpoint of process 1"):
        await locks.checkpoint(1)
    await locks.restore(1)
