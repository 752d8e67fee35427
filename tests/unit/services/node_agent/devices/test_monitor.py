"""The device monitor over the fake NVML, with the agent's core and a clock that is a number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from services.node_agent import messages as m
from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from shared.service.base import Health
from shared.telemetry.metrics import Metrics
from tests.support.waiting import eventually
from tests.unit.services.node_agent.devices.machine import TWO, Machine


class Monitored:
    """A core with its device monitor. `told`: the commands that followed from each input."""

    def __init__(self, folder: Path, agent: Agent | None = None, **settings: Any) -> None:
        self.agent = agent or Agent("n1")
        self.told: list[list[m.Command]] = []
        ctx: Any = SimpleNamespace(health=Health(), metrics=Metrics(), on_drain=lambda _: None)
        config = Config(
            node="n1", kubelet_dir=str(folder / "none"), host_root=str(folder), nvml_timeout_s=0.1, **settings
        )
        self.monitor = DeviceMonitor(
            ctx, config, self.agent, boot_id="boot-1", tell=self._tell, instances=lambda gpu, _: gpu
        )

    async def _tell(self, event: m.Input) -> None:
        self.told.append(self.agent.handle(event, 0.0))

    def states(self) -> list[str]:
        return [gpu.state for gpu in self.agent.gpus.by_uuid.values()]

    def reasons(self) -> set[str]:
        return {gpu.reason for gpu in self.agent.gpus.by_uuid.values()}


async def test_gpus_open_after_a_silence_only_when_the_memory_in_use_was_read(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML tells the health, and not the inventory. When it does, the next check finds it."""
    seen = Monitored(tmp_path, recover_s=0)
    await seen.monitor.refresh()
    assert seen.states() == ["healthy", "healthy"]
    with monkeypatch.context() as patch:
        patch.setattr(pynvml, "nvmlDeviceGetCount", _fails)
        await seen.monitor.refresh()
        await seen.monitor.check()
        assert seen.states() == ["suspect", "suspect"]
        assert seen.reasons() == {"NVML was silent, and has not told yet what processes hold of its memory"}
    await seen.monitor.check()
    assert seen.states() == ["healthy", "healthy"]


async def test_a_fault_is_saved_when_it_begins_and_when_it_ends_and_not_at_each_poll(
    machine: Machine, tmp_path: Path
) -> None:
    seen = Monitored(tmp_path)
    await seen.monitor.refresh()
    for text, state, saves in ((TWO, "healthy", 0), (f"{TWO}rows 0 1 0\n", "suspect", 1), (TWO, "suspect", 1)):
        machine.become(text)
        seen.told.clear()
        for _ in range(10):
            await seen.monitor.check()
        assert seen.states() == [state, "healthy"]
        assert sum(isinstance(order, m.Save) for orders in seen.told for order in orders) == saves


async def test_an_ecc_error_in_recovery_is_saved_although_the_state_stays(machine: Machine, tmp_path: Path) -> None:
    seen = Monitored(tmp_path)
    for errors in (0, 1, 2):
        machine.become(f"{TWO}rows 0 0 0\necc 0 {errors} {errors}\n")
        await seen.monitor.check() if errors else await seen.monitor.refresh()
    assert seen.agent.checkpoint().gpu_histories[0].ecc_volatile == 2
    new = Monitored(tmp_path, Agent("n1", seen.agent.checkpoint()))
    await new.monitor.refresh()
    assert new.states() == ["suspect", "healthy"]


async def test_a_gpu_is_closed_while_nvml_is_silent_and_the_core_knows_it(machine: Machine, tmp_path: Path) -> None:
    seen = Monitored(tmp_path, recover_s=0)
    await seen.monitor.refresh()
    assert seen.monitor.closed_gpus() == frozenset()
    machine.also("hang\n")
    await seen.monitor.check()
    assert seen.monitor.closed_gpus() == {"GPU-a", "GPU-b"}
    machine.become(TWO)
    await eventually(lambda: _answers(seen))
    assert seen.monitor.closed_gpus() == frozenset()


async def test_a_suspect_gpu_of_which_nvml_tells_is_not_closed(machine: Machine, tmp_path: Path) -> None:
    """It may be healthy at the next look, without any reading of what processes hold."""
    seen = Monitored(tmp_path, recover_s=0)
    machine.also("rows 0 1 0\n")
    await seen.monitor.refresh()
    assert seen.states() == ["suspect", "healthy"]
    assert seen.monitor.closed_gpus() == frozenset()


def _fails(*_: object) -> int:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


async def _answers(seen: Monitored) -> bool:
    await seen.monitor.check()
    return seen.states() == ["healthy", "healthy"]
