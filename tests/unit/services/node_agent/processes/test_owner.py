"""The pod of a process, by the kernel's own cgroups."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.processes.killing import PodKiller, started
from services.node_agent.processes.owner import owner_of
from services.node_agent.strategies import lock_worker
from tests.support.kubelet_agent import uid
from tests.support.pod_cgroups import VERSIONS, PodTree, pod_tree
from tests.support.waiting import eventually

LEADERLESS = """
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
input()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture(params=VERSIONS)
def tree(request: pytest.FixtureRequest) -> Iterator[PodTree]:
    with pod_tree(request.param) as made:
        yield made


@pytest.fixture
def leaderless(tree: PodTree) -> Iterator[subprocess.Popen[str]]:
    """A process of pod a whose first thread ends when it gets a line, while another one goes on."""
    with subprocess.Popen([sys.executable, "-c", LEADERLESS], stdin=subprocess.PIPE, text=True) as made:
        tree.add("a", made.pid)
        yield made
        made.kill()


def is_leaderless(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def test_a_process_whose_first_thread_has_ended_is_still_its_pods_and_is_killed(
    leaderless: subprocess.Popen[str],
) -> None:
    """With cgroup v1 the kernel shows the first thread in the root cgroup then, as if it were the host's."""
    assert leaderless.stdin is not None
    leaderless.stdin.write("\n")
    leaderless.stdin.flush()
    await eventually(lambda: is_leaderless(leaderless.pid))
    found = owner_of(leaderless.pid)
    assert found is not None
    assert found.pod_uid == uid("a")
    killed, all_ended = await PodKiller(lambda _: [leaderless.pid]).kill(uid("a"))
    assert (killed, all_ended) == ({leaderless.pid}, True)
    assert leaderless.wait() == -9


@pytest.fixture
def oddly_named(tree: PodTree) -> Iterator[subprocess.Popen[bytes]]:
    """A process of pod a that has named itself and a cgroup of its own in bytes that are no text."""
    script = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff) Z\\xfe'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        tree.add("a", made.pid)
        folder = tree.root / "kubepods" / f"pod{uid('a')}" / "main" / "\udcff"
        folder.mkdir()
        (folder / "cgroup.procs").write_text(str(made.pid))
        assert made.stdout is not None
        made.stdout.readline()
        yield made
        made.kill()


async def test_a_process_is_found_and_killed_whatever_bytes_it_and_its_cgroups_have_as_names(
    oddly_named: subprocess.Popen[bytes],
) -> None:
    """Its name is in /proc/PID/stat, where its start time is read."""
    found = owner_of(oddly_named.pid)
    assert found is not None
    assert found.pod_uid == uid("a")
    assert started(oddly_named.pid) == lock_worker.started(oddly_named.pid) > 0
    killed, all_ended = await PodKiller(lambda _: [oddly_named.pid]).kill(uid("a"))
    assert (killed, all_ended) == ({oddly_named.pid}, True)
