"""The pods with processes on the GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.release.processes import PodsOnGpus
from services.node_agent.worker import Hung
from tests.unit.services.node_agent.devices.machine import Machine

UID = "3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d11"


async def test_processes_are_attributed_by_their_cgroups(machine: Machine, tmp_path: Path) -> None:
    """Processes of a pod, of the host, and one that has just ended; a GPU that does not answer is skipped."""
    for pid, path in ((11, f"/kubepods/burstable/pod{UID}/0a"), (12, "/system.slice/x.service")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::{path}\n")
    machine.also("process 0 11 100\nprocess 0 12 100\nprocess 0 13 100\n")
    assert await PodsOnGpus(5.0, tmp_path).now() == {UID}
    machine.become(machine.text.replace("00000000:02:00.0 1 9 0 1 0", "00000000:02:00.0 1 9 0 1 15"))
    assert await PodsOnGpus(5.0, tmp_path).now() == {UID}


async def test_a_hung_nvml_raises(machine: Machine, tmp_path: Path) -> None:
    machine.also("hang\n")
    with pytest.raises(Hung):
        await PodsOnGpus(0.05, tmp_path).now()
