"""Programs with collectives across processes are checkpointed and restored: no process waits for one that is stopped.

With NCCL, a process whose peer is locked is not locked either until that goes on (NVIDIA/cuda-checkpoint, issue 30).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.node_agent.messages import SuspendTask
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.base import NodeTools, Offer
from services.node_agent.strategies.checkpointing import Checkpointer
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.holds import Holds
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, RUNNING
from services.node_agent.strategies.locks import LockError, Locks
from services.node_agent.strategies.rules import NO_OVERRIDE, Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from services.node_agent.strategies.stopping import NotQuiet
from services.node_agent.strategies.suspension import Suspender
from shared.contracts.node_commands import LiveSlice
from shared.model.suspension import Suspension
from tests.interposer.node import Node
from tests.support.waiting import eventually
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup

pytestmark = pytest.mark.skipif(
    not os.environ.get("KERF_STOPPING"),
    reason="KERF_STOPPING is not set: on two busy cores the worker answers late, so this is NOT TESTED",
)

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


@asynccontextmanager
async def agent(node: Node, registry: SliceRegistry) -> AsyncIterator[tuple[Suspender, Locks]]:
    """The agent's parts that suspend pods."""
    locks = Locks(str(node.driver), node.folder / "parked.json")
    tools = NodeTools(
        registry=registry, library=node.driver, offer=lambda: Offer(ok=True), clock=lambda: ALWAYS_FRESH_NS
    )

    async def nothing(uid: str) -> dict[str, tuple[int, int]]:
        return {}

    checkpointer = Checkpointer(locks, PodCgroups(node.folder / "cgroup"))
    yield Suspender(registry, make_drivers(tools), lambda: (LIVE,), checkpointer, nothing), locks
    await locks.close()


async def one_after_the_other(locks: Locks, pids: list[int]) -> None:
    for pid in pids:
        await locks.lock(pid)


def task(suspension: Suspension | None, previous: Suspension | None) -> SuspendTask:
    return SuspendTask("g", UID, ("main",), suspension, previous, previous)


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
            await one_after_the_other(locks, job.pids)
        for pid in job.pids:
            await locks.unlock(pid)
    assert job.results() == alone()


async def test_all_processes_are_stopped_together_moved_to_the_host_and_back_again_and_again(
    node: Node, registry: SliceRegistry
) -> None:
    job = Job(node, registry)
    async with agent(node, registry) as (suspender, locks):
        for _ in range(5):
            done = await suspender.suspend(task(CHECKPOINT, None))
            assert done.reason == ""
            assert [await locks.state(pid) for pid in job.pids] == [CHECKPOINTED] * RANKS
            assert (await suspender.suspend(task(None, CHECKPOINT))).reason == ""
            assert [await locks.state(pid) for pid in job.pids] == [RUNNING] * RANKS
            assert locks.held == set()
    assert job.results() == alone()


async def test_a_process_that_does_not_get_quiet_lets_all_others_run_again(node: Node, registry: SliceRegistry) -> None:
    """The fourth rank is on another node, and does not come to the collective."""
    job = Job(node, registry, away=RANKS - 1)
    folder = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "main" / "cgroup.procs"
    folder.write_text("".join(f"{pid}\n" for pid in job.pids[:-1]))
    for process in job.processes[:-1]:
        assert process.stdout is not None
        assert process.stdout.readline() == "ahead\n"
    async with agent(node, registry) as (suspender, locks):
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

    async with agent(node, registry) as (suspender, locks):
        trying = asyncio.create_task(tried(suspender))
        await eventually(lambda: registry.override_of((UID, "main")).paused)
        for process in job.processes:
            process.kill()
            process.communicate()
        folder.write_text("")
        registry.keep_only(())
        assert await trying is not None
        assert (locks.held, suspender.alone.locked()) == (set(), False)


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
        assert await suspender.move_out(UID) == ""
        assert await suspender.rehearse(UID, lambda: True) is None
        assert await states(locks, job) == [CHECKPOINTED] * RANKS, "it waits for room on the GPU"
        assert await suspender.move_back(UID) == ""
        assert await suspender.rehearse(UID, lambda: True) == ""
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
    async with agent(node, registry) as (suspender, locks):
        with pytest.raises(NotQuiet):
            await suspender.rehearse(UID, lambda: True)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
    wake(job.processes[-1])
    assert job.results() == alone()


def virtual_now(node: Node) -> int:
    script = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); d.kerf_virtual_now.restype = ctypes.c_uint64; "
        "print(d.kerf_virtual_now())"
    )
    asked = subprocess.run([sys.executable, "-c", script, str(node.driver)], check=True, capture_output=True, text=True)
    return int(asked.stdout)


async def test_a_program_that_asks_for_memory_while_its_own_is_on_the_host_waits_for_it(
    node: Node, registry: SliceRegistry
) -> None:
    """It would take a refusal for the end of the memory, and end."""
    job = Job(node, registry, away=0, ranks=1)
    async with agent(node, registry) as (suspender, _):
        assert (await suspender.suspend(task(CHECKPOINT, None))).reason == ""
        before = virtual_now(node)
        wake(job.processes[0])
        await eventually(lambda: virtual_now(node) > before or job.processes[0].poll() is not None)
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
            await eventually(lambda: is_held(holds, for_s))
            return await states(locks, job)

        assert await held(60) == [LOCKED] * RANKS
        await holds.hold((UID,), 0)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
        assert await held(60) == [LOCKED] * RANKS
        await holds.look(asyncio.get_running_loop().time() + 61)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
        assert await held(60) == [LOCKED] * RANKS
        assert (await suspender.suspend(task(CHECKPOINT, None))).reason == ""
        holds.suspended(UID)
        await holds.look(asyncio.get_running_loop().time() + 61)
        assert (await states(locks, job), registry.override_of((UID, "main")).paused) == ([CHECKPOINTED] * RANKS, True)
        assert (await suspender.suspend(task(None, CHECKPOINT))).reason == ""
    assert job.results() == alone()


async def is_held(holds: Holds, for_s: float) -> bool:
    return not await holds.hold((UID,), for_s)


async def states(locks: Locks, job: Job) -> list[int | None]:
    return [await locks.state(pid) for pid in job.pids]


async def test_a_hold_that_fails_leaves_all_running(node: Node, registry: SliceRegistry) -> None:
    """The fourth rank, on another node, does not come."""
    job = Job(node, registry, away=RANKS - 1)
    folder = node.folder / "cgroup" / "kubepods" / f"pod{UID}" / "main" / "cgroup.procs"
    folder.write_text("".join(f"{pid}\n" for pid in job.pids[:-1]))
    for process in job.processes[:-1]:
        assert process.stdout is not None
        assert process.stdout.readline() == "ahead\n"
    async with agent(node, registry) as (suspender, locks):
        assert "could not be stopped together" in await Holds(suspender).hold((UID,), 60)
        assert (await states(locks, job), registry.override_of((UID, "main"))) == ([RUNNING] * RANKS, NO_OVERRIDE)
    wake(job.processes[-1])
    assert job.results() == alone()
