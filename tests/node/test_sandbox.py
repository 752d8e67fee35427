"""The sandbox that runs a kubelet leaves nothing behind, however it ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.node.cluster import WITHIN_S
from tests.support.waiting import eventually
from tools.sandbox import Sandbox, cgroups

ROOT = Path(__file__).resolve().parents[2]


def _groups(state: Path) -> list[Path]:
    return [group for hierarchy in cgroups.hierarchies() if (group := hierarchy.here / state.name).exists()]


def _processes(words: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # the process has just ended
        if words in line:
            found.append(line)
    return found


def _files(state: Path) -> list[Path]:
    return list(state.parent.glob(state.name))


def _mounts() -> str:
    return Path("/proc/mounts").read_text()


async def test_a_sandbox_ends_when_its_owner_is_killed(sandbox: Sandbox, tmp_path: Path) -> None:
    """Processes, mounts, cgroups and files are removed, and another sandbox is not disturbed."""
    mounts = _mounts()
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.node.abandoned", str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    state = Path((await asyncio.wait_for(owner.stdout.readline(), WITHIN_S)).decode().strip())
    assert _groups(state) != []
    assert any("kubelet" in line for line in _processes(str(state)))
    owner.kill()
    await owner.wait()
    # The guard is the last process to end.
    await eventually(
        lambda: not _processes(str(state)), within_s=WITHIN_S, every_s=0.05, what="all its processes have ended"
    )
    assert (_groups(state), _files(state), _mounts()) == ([], [], mounts)
    assert sandbox.status("kubelet") is None
