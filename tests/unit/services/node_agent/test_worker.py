"""A worker that is starved of CPU is slow; a call that blocks hangs. Both by the kernel's own account."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.starvation import Look
from services.node_agent.worker import Hung, Worker
from tests.support.waiting import eventually

CPU = Path("/sys/fs/cgroup/cpu")
ROOT = Path(__file__).resolve().parents[4]
TIMEOUT_S = 0.4
PROGRAM = f"""
import asyncio, sys, time
from services.node_agent.worker import Hung, Worker

def busy():
    end = time.thread_time() + float(sys.argv[2])
    while time.thread_time() < end:
        pass
    return "answered"

async def main():
    sys.stdin.readline()
    print("begins", flush=True)
    try:
        print(await Worker({TIMEOUT_S}).call(busy if sys.argv[1] == "busy" else sys.stdin.read), flush=True)
    except Hung as error:
        print("hung", error, flush=True)

asyncio.run(main())
"""


class Clock:
    """A thread that, by this clock, waits for a CPU for as long as `starved` is set."""

    def __init__(self) -> None:
        self.looks = 0
        self.starved = True

    def look(self, thread_id: int, loop_thread_id: int) -> Look:
        self.looks += 1
        return Look(self.looks * 10**9, "R" if self.starved else "D")


async def test_a_call_whose_thread_gets_no_cpu_does_not_hang_and_one_that_blocks_does() -> None:
    clock, gate = Clock(), threading.Event()
    worker = Worker(1.0, clock)  # type: ignore[arg-type]
    call = asyncio.create_task(worker.call(gate.wait))
    await eventually(lambda: clock.looks > 10)
    assert not call.done()
    clock.starved = False
    with pytest.raises(Hung, match="no answer within 1 s"):
        await call
    gate.set()


async def test_a_call_that_never_gets_a_cpu_is_given_up_with_the_true_reason() -> None:
    gate = threading.Event()
    with pytest.raises(Hung, match="raise the CPU request and limit of the node agent"):
        await Worker(0.05, Clock()).call(gate.wait)  # type: ignore[arg-type]
    gate.set()


async def test_a_call_whose_caller_was_cancelled_is_waited_for() -> None:
    """As where the kubelet gives a start up while NVML is asked for it: NVML does not hang because of that."""
    gate, worker = threading.Event(), Worker(30.0)
    first = asyncio.create_task(worker.call(gate.wait))
    await eventually(lambda: worker._running is not None)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    following = asyncio.create_task(worker.call(lambda: "answered"))
    gate.set()
    assert await following == "answered"


async def test_a_call_that_hung_is_not_waited_for_again() -> None:
    gate, worker = threading.Event(), Worker(0.05)
    for why in ("no answer within", "an earlier call has not returned"):
        with pytest.raises(Hung, match=why):
            await worker.call(gate.wait)
    gate.set()


@pytest.fixture
def little_cpu() -> Iterator[Path]:
    """A cgroup with 5 ms of CPU in 100 ms: 50m."""
    v1 = (CPU / "cpu.cfs_quota_us").exists() or (CPU / "cpu.shares").exists()
    group = (CPU if v1 else Path("/sys/fs/cgroup")) / f"kerf-test-{os.getpid()}"
    try:
        group.mkdir()
        if v1:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("5000")
        else:
            (group / "cpu.max").write_text("5000 100000")
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no cgroup with a CPU limit can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()


class Child:
    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        assert self.line() == "begins"

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.end()


@pytest.mark.parametrize(("kind", "said"), [("busy", "answered"), ("blocked", f"hung no answer within {TIMEOUT_S} s")])
def test_under_a_real_cpu_limit_what_works_answers_and_what_blocks_hangs(
    little_cpu: Path, children: list[Child], kind: str, said: str
) -> None:
    """The busy call needs 0.1 s of CPU, which takes about 2 s here: five time limits."""
    child = Child(kind, "0.1")
    children.append(child)
    (little_cpu / "cgroup.procs").write_text(str(child.popen.pid))
    child.begin()
    line = child.line()
    while "agent_starved" in line:
        line = child.line()
    child.end()
    assert line == said


def test_a_process_that_was_stopped_for_longer_than_the_limit_does_not_call_its_driver_hung(
    children: list[Child],
) -> None:
    child = Child("busy", "0.2")
    children.append(child)
    child.begin()
    os.kill(child.popen.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.popen.pid, os.WSTOPPED | os.WNOWAIT)
    threading.Event().wait(3 * TIMEOUT_S)
    os.kill(child.popen.pid, signal.SIGCONT)
    lines = [child.line(), child.line()]
    assert "answered" in lines
