"""Which program of a pod is told to sleep and to wake up: real processes and signals, in containers of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.strategies.hooks import Hooks, Slept
from shared.model.turn_terms import SignalHook
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup

UID = "5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
PROGRAM = """
import os, signal, sys
def told(*_):
    os.remove(sys.argv[1]) if os.path.exists(sys.argv[1]) else open(sys.argv[1], "w").close()
signal.signal(signal.SIGUSR1, told)
print("up", flush=True)
while True:
    signal.pause()
"""
PAUSE = """
import os, signal, sys
os.chroot(sys.argv[1])
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


class SleepingPod:
    """A sandbox that began first, with a root of its own, and a program that sleeps by a signal."""

    def __init__(self, folder: Path) -> None:
        self.file, self.root = folder / "slept", folder / "root"
        self.root.mkdir()
        self.hook = SignalHook(signal="SIGUSR1", file=str(self.file))
        self.sandbox, self.program = self._start(PAUSE, self.root), self._start(PROGRAM, self.file)
        self.running: tuple[int, ...] = (self.program.pid,)
        self.on_gpus = self.running
        self.held = 10 << 30
        cgroups = folder / "cgroup"
        cgroups.mkdir()
        (cgroups / "cgroup.procs").touch()
        pod = cgroups / "kubepods" / f"pod{UID}"
        for name, process in (("sandbox", self.sandbox), ("main", self.program)):
            cgroup(pod / name, pids=f"{process.pid}\n")
        cgroup(pod)
        self.cgroups = PodCgroups(cgroups)

    @staticmethod
    def _start(program: str, argument: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", program, str(argument)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def hooks(self) -> Hooks:
        """Of an agent that has just begun."""

        class Processes:
            async def running(_, uid: str) -> tuple[int, ...]:
                return self.running if uid == UID else ()

            async def on_gpus(_, uid: str) -> tuple[int, ...]:
                return self.on_gpus if uid == UID else ()

        return Hooks(self.cgroups, Processes(), lambda _: self.held, slept_s=2.0)

    def checkpointed(self) -> None:
        self.running, self.held = (), 0


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[SleepingPod]:
    made = SleepingPod(tmp_path)
    made.held = 0
    yield made
    for process in (made.sandbox, made.program):
        process.kill()
        process.communicate()


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


async def test_an_order_that_comes_again_tells_nothing_to_a_pod_that_is_on_the_host(pod: SleepingPod) -> None:
    hooks = pod.hooks()
    assert await hooks.sleep(UID, pod.hook) == Slept(True, "")
    pod.checkpointed()
    assert await hooks.sleep(UID, pod.hook) == Slept(False, "")
    assert pod.file.exists()
    assert await hooks.wake(UID, pod.hook) == ""
    assert not pod.file.exists()


async def test_a_pod_that_has_nothing_on_gpus_yet_is_told_nothing(pod: SleepingPod) -> None:
    pod.running = pod.on_gpus = ()
    assert await pod.hooks().sleep(UID, pod.hook) == Slept(False, "")
    assert not pod.file.exists()


@pytest.mark.parametrize("left", [False, True], ids=["its memory is on the host", "it left the GPU"])
async def test_an_agent_that_began_anew_wakes_the_program_that_sleeps(pod: SleepingPod, left: bool) -> None:
    """The sandbox is the pod's oldest process, and in its root there is no file that says "slept"."""
    assert (await pod.hooks().sleep(UID, pod.hook)).why == ""
    pod.checkpointed()
    if left:
        pod.on_gpus = ()
    assert await pod.hooks().wake(UID, pod.hook) == ""
    assert not pod.file.exists()
