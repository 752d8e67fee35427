"""What was on one GPU comes back to another one: the fake driver's rules, and what programs see in the interposer.

The rules are those of the driver's documentation (cuCheckpointProcessRestore: a map names every checkpointed GPU, and
the new one has the same chip and enough memory) and of what users found: every GPU that a process sees has to be in the
map, and CUDA_VISIBLE_DEVICES makes it impossible (NVIDIA/cuda-checkpoint, issue 35); cuDeviceGetUuid tells the new GPU,
and cuDeviceGetPCIBusId the old one (issue 48).
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.node_agent.moves import Step, identity
from services.node_agent.strategies.control_block import GpuRule, Rules
from services.node_agent.strategies.lock_pool import LockPool
from services.node_agent.strategies.lock_worker import CHECKPOINTED, LOCKED, Places, started
from services.node_agent.strategies.locks import LockError
from tests.interposer.node import MIB, Node

GPUS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(1, 5))
A, B, C, D = GPUS
MODELS = dict.fromkeys(GPUS, "H200")
STEPS = 5
INVALID_DEVICE = 101
FIRST, SECOND = 1, 2
"""The last bytes of the UUIDs of A and B."""


@pytest.fixture
def node(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(built, tmp_path / "node", devices=4, mib=256)
    monkeypatch.setenv("KERF_FAKE_CUDA", made.environment["KERF_FAKE_CUDA"])
    return made


@pytest.fixture
async def locks(node: Node) -> AsyncIterator[LockPool]:
    made = LockPool(str(node.driver), node.folder / "parked.json", answer_s=60, patience_ms=60_000)
    yield made
    await made.close()


def begun(program: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n", program.communicate()[1]
    return program


def went_on(program: subprocess.Popen[str]) -> tuple[int, int, int]:
    """The GPU, the result, and whether it got memory."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    gpu, word, got = map(int, program.stdout.readline().split())
    return gpu, word, got


def result(steps: int) -> int:
    word = 7
    for number in range(steps):
        word = (word * 6364136223846793005 + number) % (1 << 64)
    return word


def swap(one: str, other: str) -> str:
    to = dict(zip(GPUS, GPUS, strict=True)) | {one: other, other: one}
    return ",".join(f"{old}={new}" for old, new in to.items())


async def on_host(locks: LockPool, pid: int) -> None:
    await locks.lock(pid)
    await locks.checkpoint(pid)


async def test_memory_and_results_come_to_the_other_gpu_and_the_device_says_so(node: Node, locks: LockPool) -> None:
    program = begun(node.bare("stays", "0", "100", str(STEPS)))
    assert went_on(program) == (FIRST, result(STEPS), 1)
    await on_host(locks, program.pid)
    await locks.restore(program.pid, Step(swap(A, B), A, B))
    assert await locks.state(program.pid) == LOCKED
    await locks.unlock(program.pid)
    assert went_on(program) == (SECOND, result(2 * STEPS), 1)
    beside = begun(node.bare("stays", "0", "200", "1"))
    assert went_on(beside)[0] == FIRST, "all of the first GPU is free for it"


@pytest.mark.parametrize(
    "mapped",
    [
        f"{A}={B},{B}={A}",
        ",".join(f"{old}={new}" for old, new in zip(GPUS, (B, B, C, D), strict=True)),
        ",".join(f"{old}={new}" for old, new in zip((A, A, C, D), GPUS, strict=True)),
        swap(A, D),
    ],
    ids=["not all GPUs", "one twice", "one twice from", "another model"],
)
async def test_the_driver_takes_no_other_map(
    node: Node, locks: LockPool, monkeypatch: pytest.MonkeyPatch, mapped: str
) -> None:
    node.environment["KERF_FAKE_CUDA_MODELS"] = "AAAB"
    program = begun(node.bare("stays", "0", "100", str(STEPS)))
    await on_host(locks, program.pid)
    with pytest.raises(LockError, match="answers 1 to the restoring"):
        await locks.restore(program.pid, Step(mapped, A, B))
    assert await locks.state(program.pid) == CHECKPOINTED
    await locks.restore(program.pid)
    await locks.unlock(program.pid)
    assert went_on(program)[0] == FIRST


async def test_a_gpu_without_room_takes_nothing(node: Node, locks: LockPool) -> None:
    program, other = begun(node.bare("stays", "0", "100", "1")), begun(node.bare("stays", "1", "200", "1"))
    await on_host(locks, program.pid)
    with pytest.raises(LockError):
        await locks.restore(program.pid, Step(swap(A, B), A, B))
    other.kill()
    other.communicate()
    await locks.restore(program.pid, Step(swap(A, B), A, B))
    await locks.unlock(program.pid)
    assert went_on(program)[0] == SECOND


async def test_a_driver_before_r580_takes_no_map(node: Node, locks: LockPool) -> None:
    node.environment["KERF_FAKE_CUDA_VERSION"] = "12090"
    program = begun(node.bare("stays", "0", "100", "1"))
    await on_host(locks, program.pid)
    with pytest.raises(LockError):
        await locks.restore(program.pid, Step(identity(MODELS), A, A))
    await locks.restore(program.pid)
    await locks.unlock(program.pid)
    assert went_on(program)[0] == FIRST


async def test_a_process_that_sees_some_gpus_alone_cannot_be_moved(node: Node, locks: LockPool) -> None:
    program = begun(node.bare("stays", "0", "100", "1", CUDA_VISIBLE_DEVICES="0,1"))
    await on_host(locks, program.pid)
    with pytest.raises(LockError):
        await locks.restore(program.pid, Step(swap(A, B), A, B))
    assert await locks.place(program.pid, "pod", A) == A


async def test_where_a_process_is_stays_known_whenever_the_worker_is_killed(node: Node, locks: LockPool) -> None:
    """A restore that was begun has happened unless the process is still checkpointed."""
    program = begun(node.bare("stays", "0", "100", "1"))
    await on_host(locks, program.pid)
    places = Places(node.folder / "moved.json")
    places.write(str(program.pid), started(program.pid), A, B)  # killed before the driver's call
    assert await locks.place(program.pid, "pod", C) == A
    await locks.restore(program.pid, Step(swap(A, B), A, B))
    places.write(str(program.pid), started(program.pid), A, B)  # killed after it
    assert await locks.place(program.pid, "pod", C) == B
    await locks.checkpoint(program.pid)
    await locks.restore(program.pid, Step(swap(B, C), B, C))
    await locks.unlock(program.pid)
    assert (await locks.place(program.pid, "pod", A), went_on(program)[0]) == (C, 3)


# --- in the interposer ----------------------------------------------------------------------------------------------


def rules(*uuids: str, mib: int = 110, paused: bool = False) -> Rules:
    return Rules(
        gpus=tuple(GpuRule(uuid=uuid, memory_limit_bytes=mib * MIB) for uuid in uuids), hides_others=True, paused=paused
    )


def test_a_container_that_could_open_all_gpus_sees_its_own_alone_in_its_grants_order(node: Node) -> None:
    """The last number of each pair is its UUID's; a context on another number is refused, and so is its bus id."""
    container = node.container("c", rules(C, A))
    seen = container.run("sees")
    assert seen[:5] == [2, 2, 3, 0, 1]
    assert seen[5] == INVALID_DEVICE
    assert seen[6:10] == [0, INVALID_DEVICE, 0, INVALID_DEVICE]
    assert seen[10:] == [0, INVALID_DEVICE, 0, INVALID_DEVICE]
    assert container.run("sees", shadow=True) == seen


def test_a_container_with_its_own_device_nodes_sees_what_the_driver_says(node: Node) -> None:
    own = Rules(gpus=(GpuRule(uuid=A, memory_limit_bytes=64 * MIB),))
    assert node.container("c", own).run("sees") == [4, 0, 1, 1, 2, 2, 3, 3, 4, INVALID_DEVICE, *[0] * 8]


async def test_a_program_that_was_moved_has_its_limit_and_its_account_on_the_other_gpu(
    node: Node, locks: LockPool
) -> None:
    """Another program has the first GPU meanwhile, and one that starts later sees the second GPU as its first."""
    container = node.container("c", rules(A))
    program = begun(container.start("stays", "0", "100", str(STEPS)))
    assert went_on(program) == (FIRST, result(STEPS), 1)
    container.control_block.write(rules(A, paused=True), context_bytes=0, driver_path=str(node.driver))
    await on_host(locks, program.pid)
    other = begun(node.bare("stays", "0", "200", "1"))
    await locks.restore(program.pid, Step(swap(A, B), A, B))
    container.control_block.write(rules(B), context_bytes=0, driver_path=str(node.driver))
    await locks.unlock(program.pid)
    assert went_on(program) == (SECOND, result(2 * STEPS), 1)
    assert went_on(other) == (FIRST, 7 * 6364136223846793005 % (1 << 64), 1)
    (gpu,) = container.read().gpus
    assert (gpu.uuid, gpu.account_bytes) == (B, 102 * MIB)
    while went_on(program)[2]:
        pass
    assert container.read().gpus[0].account_bytes <= 110 * MIB
    container.control_block.write(rules(B, mib=256), context_bytes=0, driver_path=str(node.driver))
    assert container.run("sees")[:3] == [1, 1, SECOND]


async def test_a_program_that_was_not_moved_with_its_container_has_no_gpu_any_more(node: Node) -> None:
    container = node.container("c", rules(A))
    program = begun(container.start("stays", "0", "10", "1"))
    assert went_on(program)[2] == 1
    container.control_block.write(rules(B), context_bytes=0, driver_path=str(node.driver))
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.wait(timeout=60) != 0
