"""A rehearsal leaves a pod as it was, whatever comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.node_agent.strategies.checkpointing import Checkpointer
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, RUNNING
from services.node_agent.strategies.locks import LockError, NoWorker
from services.node_agent.strategies.rules import NO_OVERRIDE, Override, Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Part, Slice
from services.node_agent.strategies.stopping import Stopper
from services.node_agent.strategies.suspension import Suspender
from shared.contracts.node_commands import LiveSlice
from shared.model.units import MIB
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup

UUID = "GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
PIDS = (101, 102)


class Driver:
    """The driver's locks and copies, and what happens on the host at its calls."""

    def __init__(self) -> None:
        self.states: dict[int, int] = dict.fromkeys(PIDS, RUNNING)
        self.held: set[int] = set()
        self.locked_at: list[int] = []
        self.after_lock: Callable[[], object] = lambda: None
        self.failure: LockError | None = None

    async def state(self, pid: int) -> int | None:
        if self.failure is not None:
            raise self.failure
        return self.states.get(pid)

    async def lock(self, pid: int, within_ms: int | None = None) -> None:
        if pid not in PIDS:
            raise LockError(f"process {pid} does not get quiet")
        self.states[pid] = LOCKED
        self.held.add(pid)
        self.locked_at.append(pid)
        if self.is_stopped:
            self.after_lock()

    async def unlock(self, pid: int) -> None:
        if pid in self.held:
            self.states[pid] = RUNNING
            self.held.discard(pid)

    async def checkpoint(self, pid: int) -> None:
        self.states[pid] = CHECKPOINTED
        self.held.discard(pid)

    async def restore(self, pid: int, step: object = None) -> None:
        self.states[pid] = LOCKED
        self.held.add(pid)

    @property
    def is_stopped(self) -> bool:
        """Whether all are locked for the second time, and stay so: between the two they settle."""
        return len(self.locked_at) == 2 * len(PIDS)


class World:
    def __init__(self, folder: Path) -> None:
        self.driver, self.pod, self._meminfo = Driver(), folder / "pod", folder / "meminfo"
        cgroup(self.pod)
        self.has(*PIDS)
        self.leaves(1024)
        self.registry = SliceRegistry(folder / "slices", Policy(), lambda: 7_000)
        self.registry.put(
            Slice(
                uid="u",
                container="main",
                strategy="interposer",
                parts=(Part(uuid=UUID, memory_mib=64, compute_milli=500),),
            )
        )
        live = LiveSlice(
            uid="u",
            namespace="n",
            name="p",
            container="main",
            grant_id="g",
            strategy="interposer",
            gpus={UUID: (64, 500)},
        )
        self.can_open = True
        locks = cast("Any", self.driver)
        self.checkpointer = Checkpointer(
            locks,
            cast("Any", SimpleNamespace(path=lambda uid: self.pod)),
            lambda: self._meminfo,
            Stopper(locks, self._at_once, lambda: 0.0),
        )
        self.suspender = Suspender(
            self.registry,
            {"interposer": cast("Any", SimpleNamespace(adjust=self._adjust))},
            lambda: (live,),
            self.checkpointer,
            cast("Any", None),
        )
        # A container that destroys its counters counts with its limit.
        (self.registry.folder(("u", "main")) / "counters").write_bytes(b"")

    def has(self, *pids: int) -> None:
        """The pod has these processes."""
        cgroup(self.pod / "main", pids="".join(f"{pid}\n" for pid in pids))

    def leaves(self, mib: int) -> None:
        """The host has so much memory left."""
        self._meminfo.write_text(f"MemAvailable: {mib * 1024} kB\nSwapFree: 0 kB\n")

    def begins(self, pid: int) -> None:
        """A process of the pod uses a GPU from now on."""
        self.driver.states[pid] = RUNNING
        self.has(*PIDS, pid)

    async def rehearse(self) -> str | None:
        return await self.suspender.rehearse("u", lambda: True)

    @property
    def runs(self) -> bool:
        """Whether no process is locked or away, and launches pass."""
        states = set(self.driver.states.values())
        return (states, self.driver.held, self.registry.override_of(("u", "main"))) == ({RUNNING}, set(), NO_OVERRIDE)

    async def _at_once(self, seconds: float) -> None:
        """Time passes without a sleep."""

    def _adjust(self, key: Key, override: Override) -> None:
        if override == NO_OVERRIDE and not self.can_open:
            raise OSError("no space left on device")
        self.registry.set_override(key, override)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.registry.close()


async def test_a_rehearsal_asks_for_room_once_and_before_the_pod_stands_still(world: World) -> None:
    """What fills the host while the pod is being stopped says nothing of its program, which would count as one that
    cannot be checkpointed for good."""
    world.driver.after_lock = lambda: world.leaves(0)
    assert await world.rehearse() == ""
    assert world.driver.is_stopped
    assert world.runs


async def test_a_rehearsal_for_which_the_host_has_no_room_is_not_tried(world: World) -> None:
    """Nor does it wait for the copies of others, of which one takes all of the host here."""
    assert await world.checkpointer.take_room("other", (1000 * MIB,)) == ""
    assert await world.rehearse() is None
    assert (world.driver.locked_at, world.runs) == ([], True)
    world.checkpointer.give_room("other")
    assert await world.rehearse() == ""


async def test_a_rehearsal_without_a_driver_is_not_tried_and_one_with_an_old_driver_fails(world: World) -> None:
    world.driver.failure = NoWorker("libcuda.so.1: cannot open shared object file")
    with pytest.raises(NoWorker):
        await world.rehearse()
    world.driver.failure = LockError("undefined symbol: cuCheckpointProcessLock")
    assert await world.rehearse() == "undefined symbol: cuCheckpointProcessLock"
    world.driver.failure = None
    assert await world.rehearse() == ""


async def test_a_driver_that_is_gone_after_the_pod_was_stopped_is_no_missing_try(world: World) -> None:
    """A part of the pod may be on the host: that is looked at, and the pod is not left there until the next try."""

    def gone() -> None:
        world.driver.failure = NoWorker("no driver")

    world.driver.after_lock = gone
    assert await world.rehearse() == "no driver"


@pytest.mark.parametrize("found", ["a process that does not stop", "a cgroup that cannot be read"])
async def test_a_rehearsal_that_fails_after_the_pod_was_stopped_lets_it_go_on(world: World, found: str) -> None:
    """The checkpoint has locked nothing by itself, and so unlocks nothing."""
    if found == "a process that does not stop":
        world.driver.after_lock = lambda: world.begins(103)
    else:
        world.driver.after_lock = lambda: world.has(0)
    why = await world.rehearse()
    assert why is not None
    assert ("could not be stopped together" if "process" in found else "hostPID") in why
    assert world.driver.is_stopped
    assert world.runs
    world.has(*PIDS)
    assert await world.checkpointer.take_room("other", (1000 * MIB,), waits=False) == "", "the room is given back"


async def test_a_rehearsal_of_which_the_launches_cannot_be_let_through_unlocks_all_the_same(world: World) -> None:
    world.driver.after_lock = lambda: world.begins(103)
    world.can_open = False
    with pytest.raises(OSError, match="no space left"):
        await world.rehearse()
    assert (world.driver.is_stopped, world.driver.held) == (True, set())


async def test_a_container_that_ends_while_the_pod_settles_leaves_no_process_locked(world: World) -> None:
    """Its gate is gone then, and the processes of the pod's other containers are locked."""
    gate = world.suspender.gate_of("u")
    gate.hold()
    world.registry.drop(("u", "main"))
    with pytest.raises(KeyError):
        await world.checkpointer.stop(("u",), SimpleNamespace(hold=lambda: None, settle=gate.settle))  # type: ignore[arg-type]
    assert (world.driver.locked_at, world.driver.held) == ([*PIDS], set())
