"""Processes that bypass the interposer are time-sliced with the driver's lock, together with the other slices."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.gpu_locks import GpuLocks
from services.node_agent.strategies.overuse import ThrottleQuota
from services.node_agent.strategies.quantum_scheduler import QuantumPolicy
from services.node_agent.strategies.rules import Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from services.node_agent.strategies.time_slicing import TimeSlicer
from tests.support.waiting import eventually

GPU = "GPU-00000000-0000-0000-0000-000000000001"
MS = 1_000_000


class Clock:
    ns = 1_000 * MS

    def __call__(self) -> int:
        return self.ns


class Node:
    """One GPU with a slice that bypasses the interposer (`escaped`) and one of higher priority that does not
    (`high`)."""

    def __init__(self, folder: Path, locks: GpuLocks, least_milli: int = 0) -> None:
        self.clock = Clock()
        self.registry = SliceRegistry(folder, Policy(), self.clock)
        self.locks = locks
        self.turns = TimeSlicer(self.registry, locks, QuantumPolicy(least_milli=least_milli), self.clock)
        self.escaped, self.high = (
            Slice(
                uid=uid,
                container="c",
                strategy="time_slice",
                parts=(Part(uuid=GPU, memory_mib=1, compute_milli=0),),
                priority=priority,
            )
            for uid, priority in (("escaped", 0), ("high", 9))
        )
        for slice_ in (self.escaped, self.high):
            self.registry.put(slice_)

    async def after(self, ms: int, high_busy: bool) -> None:
        """Takes a step every 5 ms, as in real time."""
        for _ in range(ms // 5):
            self.clock.ns += 5 * MS
            with (self.registry.folder(self.high.key) / "signal").open("r+b") as file:
                file.seek(layout.Signal.gpu.offset + layout.SignalGpu.busy_until_ns.offset)
                file.write((self.clock.ns + 5 * MS if high_busy else 1).to_bytes(8, "little"))
            await self.turns.step()


@pytest.fixture
async def locks(cuda: str, world: str, tmp_path: Path) -> AsyncIterator[GpuLocks]:
    made = GpuLocks(cuda, tmp_path / "run")
    await made.start()
    yield made
    await made.close()


async def test_an_escaped_process_runs_only_in_the_gaps(
    tmp_path: Path, victim: int, locks: GpuLocks, state: Callable[[int], int]
) -> None:
    node = Node(tmp_path / "slices", locks)
    node.turns.set_escaped({GPU: {node.escaped.key: frozenset({victim})}})
    await node.after(10, high_busy=True)
    assert state(victim) == 1
    await node.after(10, high_busy=False)
    assert state(victim) == 1, "a gap between two kernels"
    await node.after(30, high_busy=False)
    assert state(victim) == 0
    await node.after(10, high_busy=True)
    assert state(victim) == 1


async def test_a_process_that_no_longer_escapes_is_unlocked(
    tmp_path: Path, victim: int, locks: GpuLocks, state: Callable[[int], int]
) -> None:
    node = Node(tmp_path / "slices", locks)
    node.turns.set_escaped({GPU: {node.escaped.key: frozenset({victim})}})
    await node.after(10, high_busy=True)
    node.turns.set_escaped({})
    await node.after(5, high_busy=True)
    assert (state(victim), locks.held) == (0, frozenset())


async def test_a_guaranteed_quantum_closes_the_gates_of_the_other_slices(
    tmp_path: Path, victim: int, locks: GpuLocks, state: Callable[[int], int]
) -> None:
    node = Node(tmp_path / "slices", locks, least_milli=200)
    node.turns.set_escaped({GPU: {node.escaped.key: frozenset({victim})}})
    seen = set()
    for _ in range(100):
        await node.after(5, high_busy=True)
        closed = bool(
            layout.Orders.from_buffer_copy((node.registry.folder(node.high.key) / "orders").read_bytes()).gpu[0].gate
        )
        seen.add((closed, victim in locks.held))
    assert seen == {(False, True), (True, False)}, "one or the other, never both and never neither"


async def test_a_process_that_ends_meanwhile_causes_no_error(tmp_path: Path, locks: GpuLocks) -> None:
    node = Node(tmp_path / "slices", locks)
    node.turns.set_escaped({GPU: {node.escaped.key: frozenset({2**22 + 1})}})
    await node.after(20, high_busy=True)
    assert not locks.held


async def test_a_process_with_overuse_runs_for_its_share_of_every_cycle(
    tmp_path: Path, victim: int, locks: GpuLocks, state: Callable[[int], int]
) -> None:
    """With and without other slices on the GPU. It is unlocked when its quota is removed."""
    node = Node(tmp_path / "slices", locks)
    node.turns.set_escaped({}, {("escaped", GPU): ThrottleQuota(share_milli=300, pids=frozenset({victim}))})
    locked = []
    for _ in range(100):
        await node.after(5, high_busy=False)
        locked.append(victim in locks.held)
    assert (locked.count(True), state(victim)) == (70, int(locked[-1]))
    node.turns.set_escaped({}, {})
    await node.after(5, high_busy=False)
    assert (state(victim), locks.held) == (0, frozenset())


@pytest.fixture
def spinning_driver(tmp_path: Path, compiler: str) -> str:
    """On this driver the lock of process 1 waits for work that does not end."""
    source = tmp_path / "spins.c"
    source.write_text(
        "#include <unistd.h>\nint cuInit(unsigned f){return f;}\n"
        "int cuCheckpointProcessLock(int p, void *a){(void)a;while(p==1)pause();return 0;}\n"
        "int cuCheckpointProcessUnlock(int p, void *a){(void)p;(void)a;return 0;}\n"
        "int cuCheckpointProcessGetState(int p, int *s){(void)p;*s=0;return 0;}\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "spins.so"), str(source)], check=True)
    return str(tmp_path / "spins.so")


@pytest.fixture
async def spinning(tmp_path: Path, spinning_driver: str) -> AsyncIterator[GpuLocks]:
    made = GpuLocks(spinning_driver, tmp_path / "run")
    yield made
    await made.close()


async def test_a_process_that_cannot_be_locked_in_time_delays_no_other_gpu(tmp_path: Path, spinning: GpuLocks) -> None:
    other_gpu = "GPU-00000000-0000-0000-0000-000000000002"
    node, other = Node(tmp_path / "slices", spinning), ("other", "c")
    running = {GPU: ThrottleQuota(share_milli=0, pids=frozenset({1}))}
    for share_milli in (0, 1000, 0):
        running[other_gpu] = ThrottleQuota(share_milli=share_milli, pids=frozenset({2}))
        node.turns.set_escaped({}, {(other[0], uuid): quota for uuid, quota in running.items()})

        def other_is_right(locked: bool = share_milli == 0) -> bool:
            node.turns.begin_step()
            return (2 in spinning.held) == locked

        await eventually(other_is_right)
        assert 1 not in spinning.held, "its lock is still under way"


async def test_a_process_on_two_gpus_is_locked_by_one_worker(
    tmp_path: Path, victim: int, locks: GpuLocks, state: Callable[[int], int]
) -> None:
    node = Node(tmp_path / "slices", locks)
    both = {
        ("pod", uuid): ThrottleQuota(share_milli=share, pids=frozenset({victim}))
        for uuid, share in (("GPU-a", 300), ("GPU-b", 600))
    }
    node.turns.set_escaped({}, both)
    locked = []
    for _ in range(100):
        await node.after(5, high_busy=False)
        locked.append(victim in locks.held)
        assert sum(victim in locks.of(uuid).held for uuid in locks.gpus) == locked[-1]
    assert (locked.count(True), state(victim)) == (70, int(locked[-1])), "the smaller share of the two"
