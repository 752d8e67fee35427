"""A node without a GPU: the fake driver, the interposer, and containers, each with a control block and its programs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from services.node_agent.strategies import layout
from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Reading, Rules, folder_name

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
HIGH, LOW = ("high", "main"), ("low", "main")
START_NS = 1_000_000_000
"""Initial time of the fake driver's clock."""
UUID = "GPU-00000000-0000-0000-0000-000000000001"
WITHIN_S = 60
STARTED: list[subprocess.Popen[str]] = []
"""Processes that still run when their test has ended; they are killed."""


class Node:
    """One world of the fake driver. Its containers share its devices and its clock."""

    def __init__(self, built: Path, folder: Path, *, clients: int = 0, **settings: int) -> None:
        """`settings`: KERF_FAKE_CUDA_... in lower case."""
        self.built, self.folder = built, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.driver = built / "enforcement" / "libcuda.so.1"
        self.environment = {
            "PATH": os.environ["PATH"],
            "KERF_FAKE_CUDA": str(folder / "world"),
            "KERF_FAKE_CUDA_CLIENTS": str(clients),
            "KERF_TEST_DRIVER": str(self.driver),
            "KERF_TEST_PROGRAMS": str(built / "programs"),
        } | {f"KERF_FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}

    def bare(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a program without the interposer."""
        path = {"LD_LIBRARY_PATH": str(self.built / "enforcement")}
        return _start(self.built, command, self.environment | path | variables)

    def container(
        self, name: str, rules: Rules, *, context_bytes: int = 0, pool_chunk_bytes: int = 0, now_ns: int = START_NS
    ) -> Container:
        control_block = ControlBlock(self.folder / name, lambda: now_ns)
        control_block.write(
            rules, context_bytes=context_bytes, pool_chunk_bytes=pool_chunk_bytes, driver_path=str(self.driver)
        )
        return Container(self, control_block)


class Container:
    def __init__(self, node: Node, control_block: ControlBlock) -> None:
        self.node, self.control_block = node, control_block

    def start(self, *command: str, shadow: bool = False, **variables: str) -> subprocess.Popen[str]:
        form = "test/shadow/libcuda.so.1" if shadow else "test/libkerf.so"
        inside = {
            "LD_PRELOAD": str(self.node.built / "enforcement" / form),
            "KERF_DIRECTORY": str(self.control_block.folder),
            "LD_LIBRARY_PATH": str(self.node.built / "enforcement"),
        }
        return _start(self.node.built, command, self.node.environment | inside | variables)

    def run(self, *command: str, shadow: bool = False, **variables: str) -> list[int]:
        """Returns the numbers that the program prints."""
        return numbers(self.start(*command, shadow=shadow, **variables))

    def read(self) -> Reading:
        return self.control_block.read()

    def raw(self) -> layout.Counters:
        return layout.Counters.from_buffer_copy((self.control_block.folder / "counters").read_bytes())


def high_and_low(node: Node, *, in_flight_us: int = 1000, floor_milli: int = 0) -> tuple[Container, Container]:
    """A slice of the high tier, and one of the low tier that yields to it."""
    for key in (HIGH, LOW):
        ControlBlock(node.folder / folder_name(key), lambda: 0)  # each must exist before another reads its signal
    high = Rules(gpus=(GpuRule(uuid=UUID),), peers=(LOW,))
    low = Rules(
        gpus=(GpuRule(uuid=UUID, in_flight_us=in_flight_us),),
        low=True,
        floor_milli=floor_milli,
        idle_for_ns=200_000,
        peers=(HIGH,),
    )
    return node.container(folder_name(HIGH), high), node.container(folder_name(LOW), low)


def numbers(program: subprocess.Popen[str]) -> list[int]:
    """Returns what the program printed. Raises AssertionError with its error output if it failed."""
    try:
        out, err = program.communicate(timeout=WITHIN_S)
    finally:
        program.kill()
    assert program.returncode == 0, f"{program.args} ended with {program.returncode}: {err}"
    return [int(word) for word in out.split() if word != "-"]


def until(what: Callable[[], bool], within_s: float = 20) -> None:
    """Waits for a condition of other processes."""
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)


def end_all() -> None:
    while STARTED:
        program = STARTED.pop()
        program.kill()
        program.communicate()


def _start(built: Path, command: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [str(built / "programs" / command[0]), *command[1:]], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    STARTED.append(program)
    return program
