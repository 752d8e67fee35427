"""Programs with collectives across processes are checkpointed and restored: no process waits for one that is stopped.

With NCCL, a process whose peer is locked is not locked either until that goes on (NVIDIA/cuda-checkpoint, issue 30).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.node_agent.messages import SuspendTask
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.base import NodeTools, Offer
from services.node_agent.strategies.checkpointing import Checkpointer
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.holds import Holds
from services.node_agent.strategies.lock_pool import LockPool
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, RUNNING
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.rules import NO_OVERRIDE, Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from services.node_agent.strategies.stopping import NotQuiet, Stopper
from services.node_agent.strategies.suspension import Suspender
from shared.contracts.node_commands import LiveSlice
from shared.model.suspension import Suspension
from tests.interposer.node import Node
from tests.support.waiting import eventually, within
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup

UID = "5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
RANKS, ROUNDS, MIB = 4, 3000, 64
GPUS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(1, RANKS + 1))
LIVE = LiveSlice(
    uid=UID, namespace="team", name="p", container="main", grant_id="g", strategy="interposer",
    gpus=dict.fromkeys(GPUS, (256, 1000)),
)  # fmt: skip
ALWAYS_FRESH_NS = 1 << 60
"""The agent's heartbeat, later than any time of the virtual clock."""
CHECKPOINT = Suspension(action="checkpoint", plan_id="p")
PATIENT_S = 60.0
"""For what other processes do: however busy the machine is."""
IN_STEP_S = 0.1
"""By then what was launched ahead is done, and the program is far from its end."""
TRIES = 10
"""A stop between two launches of the same collective fails, and placement orders it again."""


@pytest.fixture
def node(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(built, tmp_path / "node", devices=RANKS, mib=1024, copy_mib=10_240, checkpoint_us=20_000)
    monkeypatch.setenv("KERF_FAKE_CUDA", made.environment["KERF_FAKE_CUDA"])
    return made


@pytest.fixture
def registry(node: Node) -> Iterator[SliceRegistry]:
    made = SliceRegistry(node.folder / "slices", Policy(), lambda: ALWAYS_FRESH_NS)
    parts = tuple(Part(uuid=uuid, memory_mib=256, compute_milli=1000) for uuid in GPUS)
    made.put(Slice(uid=UID, container="main", strategy="interposer", parts=parts))
    yield made
    made.close()


class Job:
    """The processes of one pod, as its agent sees them."""

    def __init__(self, node: Node, registry: SliceRegistry, *, away: int | None = None, ranks: int = RANKS) -> None:
        """`away`: the rank that does nothing after its first round, until it gets a line."""
        inside = {
            "KERF_DIRECTORY": str(registry.folder((UID, "main"))),
            "LD_PRELOAD": str(node.built / "enforcement" / "test" / "libkerf.so"),
        }
        self.processes = [
            node.bare(
                "ranks", str(index), str(ranks), str(ROUNDS), str(MIB), *(["away"] if index == away else []), **inside
            )
            for index in range(ranks)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        self.pids = [process.pid for process in self.processes]
        for pid in self.pids:  # they never rest; the agent and its workers would hardly come to run beside them
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
        folder = node.folder / "cgroup"
        folder.mkdir()
        (folder / "cgroup.procs").touch()
        cgroup(folder / "kubepods" / f"pod{UID}" / "main", pids="".join(f"{pid}\n" for pid in self.pids))
        cgroup(folder / "kubepods" / f"pod{UID}")

    def results(self) -> list[int]:
        return [result(process) for process in self.processes]


def wake(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def result(process: subprocess.Popen[str]) -> int:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return int(out.split()[-1])


def clock_of(node: Node) -> Callable[[], float]:
    """The node's virtual clock, in seconds. A copy of the driver, because one that is loaded keeps its first world."""
    copied = Path(tempfile.mkdtemp(dir=node.folder)) / "clock.so"
    shutil.copy(node.driver, copied)
    driver = ctypes.CDLL(str(copied))
    driver.kerf_virtual_now.restype = ctypes.c_uint64
    return lambda: driver.kerf_virtual_now() / 1e9


def worker_of(node: Node) -> LockPool:
    return LockPool(
        str(node.driver), node.folder / "parked.json", answer_s=PATIENT_S, patience_ms=round(PATIENT_S * 1000)
    )


@asynccontextmanager
async def agent(
    node: Node, registry: SliceRegistry, *, stuck: bool = False, locks: LockPool | None = None
) -> AsyncIterator[tuple[Suspender, LockPool]]:
    """The agent's parts that suspend pods, by the virtual clock; `stuck`: that stands still, so it is not waited for.

    A pod runs in step for a time of the virtual clock: in the real time it may not get to run at all.
    """
    clock = clock_of(node)

    async def pass_time(duration_s: float) -> None:
        until_s = clock() + min(duration_s, IN_STEP_S)
        await within(lambda: clock() >= until_s, duration_s if stuck else PATIENT_S)

    locks = locks or worker_of(node)
    tools = NodeTools(
        registry=registry, library=node.driver, offer=lambda: Offer(ok=True), clock=lambda: ALWAYS_FRESH_NS
    )

    async def nothing(uid: str) -> dict[str, tuple[int, int]]:
        return {}

    stopper = Stopper(locks, pass_time, clock)
    checkpointer = Checkpointer(locks, PodCgroups(node.folder / "cgroup"), stopper=stopper)
    yield Suspender(registry, make_drivers(tools), lambda: (LIVE,), checkpointer, nothing), locks
    await locks.close()


async def quiet(order: Callable[[], Awaitable[str | None]]) -> str | None:
    """Repeats what could not be stopped at this time, as placement does."""
    why: str | None = "never tried"
    for _ in range(TRIES):
        try:
            why = await order()
        except NotQuiet as error:
            why = str(error)
        if not why or "could not be stopped together" not in why:
            break
    return why


class Waiting(LockPool):
    """Its first lock waits, when the pod's launches are held already."""

    def __init__(self, library: str, journal: Path, *, answer_s: float) -> None:
        super().__init__(library, journal, answer_s=answer_s)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def lock(self, pid: int, within_ms: int | None = None) -> None:
        self.asked.set()
        await self.go.wait()
        await super().lock(pid, within_ms)


class Recording(LockPool):
    """Says which processes were locked and unlocked, in order."""

    def __init__(self, library: str, journal: Path, *, answer_s: float, patience_ms: int) -> None:
        super().__init__(library, journal, answer_s=answer_s, patience_ms=patience_ms)
        self.asked: list[tuple[str, int]] = []
        self.limits: list[object] = []
        self.registry: SliceRegistry | None = None

    async def lock(self, pid: int, within_ms: int | None = None) -> None:
        await super().lock(pid, within_ms)
        self.asked.append(("lock", pid))

    async def unlock(self, pid: int) -> None:
        await super().unlock(pid)
        self.asked.append(("unlock", pid))
        assert self.registry is not None
        held = self.registry.override_of((UID, "main"))
        self.limits.append((held.paused, dict(held.memory_mib)))


async def one_after_the_other(locks: LockPool, pids: list[int]) -> None:
    for pid in pids:
        await locks.lock(pid)


async def again_and_again(locks: LockPool, pids: list[int]) -> None:
    """The others may not get to run before they are locked."""
    for _ in range(TRIES):
        await one_after_the_other(locks, pids)
        await unlock_all(locks, pids)


async def unlock_all(locks: LockPool, pids: list[int]) -> None:
    for pid in pids:
        await locks.unlock(pid)


def task(suspension: Suspension | None, previous: Suspension | None) -> SuspendTask:
    return SuspendTask("g", UID, ("main",), suspension, previous, previous)


async def suspended(suspender: Suspender) -> str:
    return (await suspender.suspend(task(CHECKPOINT, None))).reason


def alone() -> list[int]:
    """The results of the computation without any suspension, by the definition of the fake driver's kernel `mix`."""
    found = []
    for index in range(RANKS):
        word = index
        for step in range(ROUNDS * 3):
            word = (word * 6364136223846793005 + step + index) % (1 << 64)
        found.append(word)
    return found


async def test_processes_that_are_stopped_one_after_the_other_never_get_quiet(
    node: Node, registry: SliceRegistry
) -> None:
    """The second one waits in a collective for the first, which is locked."""
    job = Job(node, registry)
    async with agent(node, registry) as (_, locks):
        with pytest.raises(LockError, match="to the lock"):
            await again_and_again(locks, job.pids)
        await unlock_all(locks, job.pids)
    assert job.results() == alone()


async def test_all_processes_are_stopped_together_moved_to_the_host_and_back_again_and_again(
    node: Node, registry: SliceRegistry
) -> None:
    job = Job(node, registry)
    async with agent(node, registry) as (suspender, locks):
        for _ in range(5):
            assert await quiet(lambda: suspended(suspender)) == ""
            assert [await locks.state(pid) for pid in job.pids] == [CHECKPOINTED] * RANKS
            assert (await suspender.suspend(task(None, CHECKPOINT))).reason == ""
            assert [await locks.state(pid) for pid in job.pids] == [RUNNING] * RANKS
            assert locks.held == set()
    assert job.results() == alone()


async def test_before_they_stay_stopped_all_may_call_the_driver_once_more(node: Node, registry: SliceRegistry) -> None:
    """A watchdog that asks whether work is complete has then seen that it is, and stands in no lock."""
    job = Job(node, registry)
    recording = Recording(
        str(node.driver), node.folder / "parked.json", answer_s=PATIENT_S, patience_ms=round(PATIENT_S * 1000)
    )
    recording.registry = registry
    async with agent(node, registry, locks=recording) as (suspender, locks):
        assert await quiet(lambda: suspended(suspender)) == ""
        assert recording.limits[-RANKS:] == [(True, {})] * RANKS, "with a limit of 0 the driver would not be asked"
        assert not any(registry.override_of((UID, "main")).memory_mib.values())
        done = recording.asked[-3 * RANKS :]
        assert [what for what, _ in done] == ["lock"] * RANKS + ["unlock"] * RANKS + ["lock"] * RANKS
        assert {pid for _, pid in done[-RANKS:]} == set(job.pids)
        assert [await locks.state(pid) for pid in job.pids] == [CHECKPOINTED] * RANKS
        assert (await suspender.suspend(task(None, CHECKPOINT))).reason == ""
    assert job.results() == alone()


async def test_a_process_that_does_not_get_quiet_lets_all_others_run_again(node: Node, registry: SliceRegistry) -> None:
    """The fourth rank is on another node, and does not come to the collective."""
    job = Job(node, registry, away=RANKS - 1)
    folder = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "main" / "cgroup.procs"
    folder.write_text("".join(f"{pid}\n" for pid in job.pids[:-1]))
    for process in job.processes[:-1]:
        assert process.stdout is not None
        assert process.stdout.readline() == "ahead\n"
    async with agent(node, registry, stuck=True) as (suspender, locks):
        done = await suspender.suspend(task(CHECKPOINT, None))
        assert "could not be stopped together in 6 attempts" in done.reason
        assert [await locks.state(pid) for pid in job.pids] == [RUNNING] * RANKS
        assert (locks.held, registry.override_of((UID, "main"))) == (set(), NO_OVERRIDE)
    wake(job.processes[-1])
    assert job.results() == alone()


@pytest.mark.parametrize("how", ["suspended", "rehearsed", "held"])
async def test_a_pod_that_ends_while_it_is_stopped_is_nobodys_failure(
    node: Node, registry: SliceRegistry, how: str
) -> None:
    job = Job(node, registry, away=RANKS - 1)
    folder = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "main" / "cgroup.procs"
    folder.write_text("".join(f"{pid}\n" for pid in job.pids[:-1]))
    for process in job.processes[:-1]:
        assert process.stdout is not None
        assert process.stdout.readline() == "ahead\n"

    async def tried(suspender: Suspender) -> str | None:
        if how == "suspended":
            return (await suspender.suspend(task(CHECKPOINT, None))).reason
        if how == "held":
            return await Holds(suspender).hold((UID,), 60)
        return await suspender.rehearse(UID, lambda: True) or "not tried"

    waiting = Waiting(str(node.driver), node.folder / "parked.json", answer_s=PATIENT_S)
    async with agent(node, registry, stuck=True, locks=waiting) as (suspender, locks):
        trying = asyncio.create_task(tried(suspender))
        await asyncio.wait_for(waiting.asked.wait(), PATIENT_S)
        assert registry.override_of((UID, "main")).paused
        for process in job.processes:
            process.kill()
            process.communicate()
        folder.write_text("")
        registry.keep_only(())
        waiting.go.set()
        assert await trying is not None
        assert locks.held == set()
        async with asyncio.timeout(PATIENT_S), suspender.alone_with((UID,)):
            pass  # it is not held any more


async def test_a_rehearsal_says_nothing_of_a_program_while_the_host_has_no_room_or_it_waits_there(
    node: Node, registry: SliceRegistry
) -> None:
    job = Job(node, registry)
    limit = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "memory.max"
    async with agent(node, registry) as (suspender, locks):
        before = limit.read_text()
        limit.write_text("1\n")
        assert await suspender.rehearse(UID, lambda: True) is None
        assert await states(locks, job) == [RUNNING] * RANKS
        limit.write_text(before)
        assert await quiet(lambda: suspender.move_out(UID)) == ""
        assert await suspender.rehearse(UID, lambda: True) is None
        assert await states(locks, job) == [CHECKPOINTED] * RANKS, "it waits for room on the GPU"
        assert await suspender.move_back(UID) == ""
        assert await quiet(lambda: suspender.rehearse(UID, lambda: True)) == ""
    assert job.results() == alone()


async def test_a_rehearsal_of_a_program_that_is_not_quiet_says_so_and_lets_it_run(
    node: Node, registry: SliceRegistry
) -> None:
    job = Job(node, registry, away=RANKS - 1)
    folder = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "main" / "cgroup.procs"
    folder.write_text("".join(f"{pid}\n" for pid in job.pids[:-1]))
    for process in job.processes[:-1]:
        assert process.stdout is not None
        assert process.stdout.readline() == "ahead\n"
    async with agent(node, registry, stuck=True) as (suspender, locks):
        with pytest.raises(NotQuiet):
            await suspender.rehearse(UID, lambda: True)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
    wake(job.processes[-1])
    assert job.results() == alone()


async def test_a_program_that_asks_for_memory_while_its_own_is_on_the_host_waits_for_it(
    node: Node, registry: SliceRegistry
) -> None:
    """It would take a refusal for the end of the memory, and end."""
    job = Job(node, registry, away=0, ranks=1)
    async with agent(node, registry, stuck=True) as (suspender, _):
        assert await suspended(suspender) == ""
        clock = clock_of(node)
        before = clock()
        wake(job.processes[0])
        await eventually(lambda: clock() > before or job.processes[0].poll() is not None, within_s=PATIENT_S)
        assert (await suspender.suspend(task(None, CHECKPOINT))).reason == ""
    assert job.results() == alone()[:1]


async def test_members_of_a_gang_are_held_until_they_are_checkpointed_withdrawn_or_their_time_is_over(
    node: Node, registry: SliceRegistry
) -> None:
    job = Job(node, registry)
    async with agent(node, registry) as (suspender, locks):
        holds = Holds(suspender)

        async def held(for_s: float) -> list[int | None]:
            """Placement asks again until all are quiet."""
            await eventually(lambda: is_held(holds, for_s), within_s=PATIENT_S)
            return await states(locks, job)

        assert await held(60) == [LOCKED] * RANKS
        await holds.hold((UID,), 0)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
        assert await held(60) == [LOCKED] * RANKS
        await holds.look(asyncio.get_running_loop().time() + 61)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
        assert await held(60) == [LOCKED] * RANKS
        assert await suspended(suspender) == ""
        await holds.ordered(UID, CHECKPOINT)
        await holds.look(asyncio.get_running_loop().time() + 61)
        assert (await states(locks, job), registry.override_of((UID, "main")).paused) == ([CHECKPOINTED] * RANKS, True)
        assert (await suspender.suspend(task(None, CHECKPOINT))).reason == ""
    assert job.results() == alone()


async def is_held(holds: Holds, for_s: float) -> bool:
    return not await holds.hold((UID,), for_s)


async def states(locks: LockPool, job: Job) -> list[int | None]:
    return [await locks.state(pid) for pid in job.pids]


async def test_a_hold_that_fails_leaves_all_running(node: Node, registry: SliceRegistry) -> None:
    """The fourth rank, on another node, does not come."""
    job = Job(node, registry, away=RANKS - 1)
    folder = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "main" / "cgroup.procs"
    folder.write_text("".join(f"{pid}\n" for pid in job.pids[:-1]))
    for process in job.processes[:-1]:
        assert process.stdout is not None
        assert process.stdout.readline() == "ahead\n"
    async with agent(node, registry, stuck=True) as (suspender, locks):
        assert "could not be stopped together" in await Holds(suspender).hold((UID,), 60)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
    wake(job.processes[-1])
    assert job.results() == alone()
