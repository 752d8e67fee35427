"""Programs whose memory is on the host: their calls wait where the agent can see it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from services.node_agent.strategies.rules import GpuRule, Rules
from tests.interposer.node import MIB, UUID, Container, Node, until

NOT_READY = 600
ALWAYS_FRESH_NS = 1 << 60
"""The agent's heartbeat, later than any time of the virtual clock."""
RULES = Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=64 * MIB, compute_milli=1000),))
AWAY = msgspec.structs.replace(RULES, paused=True, gpus=(msgspec.structs.replace(RULES.gpus[0], memory_limit_bytes=0),))
PAUSED = msgspec.structs.replace(RULES, paused=True)
CALLS = (
    "launch", "to", "from", "async", "allocate", "free", "wait", "record", "event", "stream", "end-stream",
    "capturing", "module", "function", "pinned", "info", "context", "from-pool", "free-async", "reserve-stack",
)  # fmt: skip
"""The driver lets calls wait that "launch work, manage resources, or otherwise impact GPU state"
(NVIDIA/cuda-checkpoint, README.md)."""


@pytest.fixture
def container(built: Path, tmp_path: Path) -> Container:
    return Node(built, tmp_path / "node").container("c", RULES, now_ns=ALWAYS_FRESH_NS)


def begun(container: Container) -> subprocess.Popen[str]:
    program = container.start("needs")
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    return program


def ask(program: subprocess.Popen[str], call: str) -> None:
    assert program.stdin is not None
    program.stdin.write(f"{call}\n")
    program.stdin.flush()


def answer(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_needs_memory_on_the_host_waits_and_says_so(container: Container, call: str) -> None:
    program = begun(container)
    container.control_block.write(AWAY, context_bytes=0, driver_path=str(container.node.driver))
    assert not container.control_block.wants()
    ask(program, call)
    until(container.control_block.wants)
    container.control_block.write(RULES, context_bytes=0, driver_path=str(container.node.driver))
    assert answer(program) == "0\n"
    assert not container.control_block.wants()


def test_a_program_that_asks_whether_work_is_complete_hears_not_yet_and_wants_its_memory(container: Container) -> None:
    """The watchdog thread of NCCL in PyTorch asks each 100 ms; a thread that stood still would end the process."""
    program = begun(container)
    container.control_block.write(AWAY, context_bytes=0, driver_path=str(container.node.driver))
    seen = []

    def asked() -> bool:
        ask(program, "ask")
        seen.append(container.control_block.wants())
        assert answer(program) == f"{NOT_READY}\n"
        return any(seen)

    until(asked)
    container.control_block.write(RULES, context_bytes=0, driver_path=str(container.node.driver))
    ask(program, "ask")
    assert answer(program) == "0\n"
    assert not container.control_block.wants()


@pytest.mark.parametrize("call", ["to", "allocate", "free", "wait"])
def test_while_the_memory_is_on_the_gpu_only_launches_wait(container: Container, call: str) -> None:
    program = begun(container)
    container.control_block.write(PAUSED, context_bytes=0, driver_path=str(container.node.driver))
    ask(program, call)
    assert answer(program) == "0\n"
    ask(program, "launch")
    until(container.control_block.wants)


@pytest.mark.parametrize("call", ["to", "allocate", "from-pool", "context", "reserve-stack"])
def test_a_program_can_fork_while_another_thread_waits(container: Container, call: str) -> None:
    """A cell of a notebook runs a command of the shell. A fork takes all locks of the interposer."""
    program = begun(container)
    container.control_block.write(AWAY, context_bytes=0, driver_path=str(container.node.driver))
    ask(program, f"beside {call}")
    until(container.control_block.wants)
    ask(program, "fork")
    assert answer(program) == "0\n"
    container.control_block.write(RULES, context_bytes=0, driver_path=str(container.node.driver))
    assert answer(program) == "beside 0\n"


def test_a_program_that_was_killed_while_it_waited_wants_nothing(container: Container) -> None:
    program = begun(container)
    container.control_block.write(AWAY, context_bytes=0, driver_path=str(container.node.driver))
    ask(program, "to")
    until(container.control_block.wants)
    program.kill()
    program.communicate()
    assert not container.control_block.wants()


def test_without_an_agent_nobody_waits_for_it(built: Path, tmp_path: Path) -> None:
    container = Node(built, tmp_path / "node").container("c", RULES)
    program = begun(container)
    container.control_block.write(AWAY, context_bytes=0, driver_path=str(container.node.driver))
    ask(program, "to")
    assert answer(program) == "0\n", "the heartbeat is of the beginning, and the virtual clock goes on"
