"""Ending a pod's processes: only those that are the pod's when their descriptor is open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.processes.killing import PodKiller, kill, started
from services.node_agent.processes.owner import Owner

POD, OTHER = Owner("pod", "c"), Owner("other", "c")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_a_process_of_the_pod_is_killed(process: subprocess.Popen[bytes]) -> None:
    assert kill(process.pid, started(process.pid), "pod", {process.pid: POD}.get)
    assert process.wait() == -9


@pytest.mark.parametrize("owner", [OTHER, Owner(), None])
def test_a_process_of_another_pod_is_not(process: subprocess.Popen[bytes], owner: Owner | None) -> None:
    assert not kill(process.pid, started(process.pid), "pod", lambda _: owner)
    assert process.poll() is None


def test_a_reused_pid_is_not_killed(process: subprocess.Popen[bytes]) -> None:
    """The PID was listed for a process that has ended since; another one has it now, even in the same pod."""
    assert not kill(process.pid, started(process.pid) - 1, "pod", {process.pid: POD}.get)
    assert not kill(process.pid, 0, "pod", {process.pid: POD}.get), "it was gone when it was listed"
    assert process.poll() is None


def test_the_pod_of_a_process_is_asked_for_when_its_descriptor_is_open(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for earlier, the answer could be about a process that had the PID before."""
    calls = []
    pidfd_open = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda pid: calls.append("descriptor") or pidfd_open(pid))

    def owner(_: int) -> Owner:
        calls.append("owner")
        return OTHER

    assert not kill(process.pid, started(process.pid), "pod", owner)
    assert calls == ["descriptor", "owner"]


def test_a_process_that_has_ended_is_not_counted(process: subprocess.Popen[bytes]) -> None:
    begun = started(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not kill(process.pid, begun, "pod", {process.pid: POD}.get), "it waits for its parent"
    process.wait()
    assert not kill(process.pid, begun, "pod", {process.pid: POD}.get)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child that starts another one as soon as its parent is gone."""
    script = (
        "import os, subprocess, sys, time\n"
        "if os.fork() == 0:\n"
        "    parent = os.getppid()\n"
        "    while os.getppid() == parent: time.sleep(0.01)\n"
        "    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    os._exit(0)\n"
        "print('begun', flush=True)\n"
        "time.sleep(1000)\n"
    )
    environment = os.environ | {"KERF_TEST_POD": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"begun\n"
        yield first
        first.kill()


async def test_processes_that_start_meanwhile_are_killed_too(family: subprocess.Popen[bytes], tmp_path: Path) -> None:
    def listed(_: str) -> list[int]:
        return [pid for pid in _pids() if f"KERF_TEST_POD={tmp_path}".encode() in _environment(pid)]

    killed, none_left = await PodKiller(listed, lambda _: POD).kill("pod")
    assert none_left
    assert (family.pid in killed, len(killed) >= 2) == (True, True)
    assert listed("pod") == []


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
