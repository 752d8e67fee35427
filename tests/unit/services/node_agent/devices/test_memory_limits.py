"""The driver's memory limits for cgroups, by the fake NVML, which keeps them in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.node_agent.devices.memory_limits import NO_LIMIT, MemoryLimitError, MemoryLimitsUnsupported
from services.node_agent.devices.nvml import NvmlDevices
from tests.unit.services.node_agent.devices.machine import TWO, Machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may set limits")


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERF_FAKE_LIMITS", str(tmp_path / "limits"))
    return tmp_path / "limits"


@pytest.fixture
async def devices(machine: Machine) -> NvmlDevices:
    made = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await made.inventory("n", "b")
    return made


def said(limits: Path) -> str:
    return limits.read_text()


async def test_a_limit_is_set_changed_and_cleared(devices: NvmlDevices, limits: Path, tmp_path: Path) -> None:
    """Its soft limit stays 0: the kernel would pass it on to the cgroup's ancestors."""
    for limit_bytes in (5 << 20, 3 << 20):
        await devices.limit_memory("GPU-a", tmp_path, limit_bytes)
        assert said(limits) == f"GPU-a 0 {limit_bytes} {tmp_path}\n"
    await devices.limit_memory("GPU-a", tmp_path, NO_LIMIT)
    assert said(limits) == ""


async def test_a_limit_that_is_not_read_back_is_an_error(
    devices: NvmlDevices, limits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERF_FAKE_LIMITS_DEAF", "1")
    with pytest.raises(MemoryLimitError, match=rf"was told a limit of {5 << 20} bytes for {tmp_path}"):
        await devices.limit_memory("GPU-a", tmp_path, 5 << 20)


async def test_a_driver_without_limits_and_a_gpu_in_mig_mode_are_told_apart_from_errors(
    devices: NvmlDevices, limits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MemoryLimitsUnsupported):
        await devices.limit_memory("GPU-b", tmp_path, 5 << 20)
    monkeypatch.delenv("KERF_FAKE_LIMITS")
    with pytest.raises(MemoryLimitsUnsupported, match="NVML: Not Supported"):
        await devices.limit_memory("GPU-a", tmp_path, 5 << 20)
    assert devices.loaded == 0, "NVML was not started anew"


async def test_an_unknown_gpu_and_one_that_is_lost_have_no_limit(
    devices: NvmlDevices, limits: Path, tmp_path: Path, machine: Machine
) -> None:
    with pytest.raises(MemoryLimitError, match="GPU GPU-x is not known"):
        await devices.limit_memory("GPU-x", tmp_path, 5 << 20)
    machine.become(TWO.replace("0 9 0 0 0", "0 9 0 0 15"))
    with pytest.raises(MemoryLimitError, match="GPU is lost"):
        await devices.limit_memory("GPU-a", tmp_path, 5 << 20)
