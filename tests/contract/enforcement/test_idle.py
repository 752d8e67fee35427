"""Idle pods on a whole agent: real programs with the interposer on the fake driver, and what the inventory says."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.model.gpu import Inventory
from tests.contract.enforcement.test_moving import NVML, A, B, back, grant, started
from tests.contract.enforcement.test_suspension import CHECKPOINT, say
from tests.support.enforcement import control_block, prove
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, uid
from tests.support.native import built
from tests.support.waiting import eventually
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup


@pytest.fixture
def settings(settings: dict[str, Any], host: Path, build: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    prove(host, build, driver_version="580.65.06")
    (host / "nvml").write_text(NVML)
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_DEVICES", "3")
    monkeypatch.setenv("KERF_FAKE_CUDA_MIB", "100")
    return {**settings, "idle_after_s": 0.2, "turns_on_any_gpu": True, "usage_s": 0.1}


class Notebook:
    """A program in a slice that makes the calls of the driver that it is told to."""

    def __init__(self, host: Path, build: Path, name: str) -> None:
        inside = {
            "KERF_DIRECTORY": str(control_block(host, name)),
            "LD_PRELOAD": str(build / "test" / "libkerf.so"),
            "LD_LIBRARY_PATH": str(build),
            "KERF_TEST_DRIVER": str(build / "libcuda.so.1"),
        }
        self.process = subprocess.Popen(
            [str(built("programs") / "needs")],
            env=dict(os.environ) | inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.answer() == "begun"
        folder = host / "cgroup"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
        cgroup(folder / "kubepods" / f"pod{uid(name)}" / "main", pids=f"{self.process.pid}\n")
        cgroup(folder / "kubepods" / f"pod{uid(name)}")

    def ask(self, call: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{call}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def notebook(host: Path, build: Path, settings: dict[str, Any]) -> Iterator[Callable[[str], Notebook]]:
    made: list[Notebook] = []

    def start(name: str) -> Notebook:
        made.append(Notebook(host, build, name))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


async def told(bus: NatsBus) -> tuple[set[str], set[str]]:
    """The idle grants and the woken ones, by the inventory that others read."""
    entry = await bus.kv(subjects.KV_NODES).get("n1")
    found = None if entry.value is None else decode(entry.value, Inventory)
    return (set(), set()) if found is None else (set(found.idle_grants), set(found.woken_grants))


def says(bus: NatsBus, idle: set[str], woken: set[str]) -> Callable[[], Any]:
    async def check() -> bool:
        return await told(bus) == (idle, woken)

    return check


@pytest.mark.parametrize("call", ["launch", "to", "async", "allocate", "free", "wait"])
async def test_an_idle_pod_on_the_host_is_named_when_it_wants_its_gpu_and_its_call_succeeds_when_it_has_it(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    notebook: Callable[[str], Notebook],
    call: str,
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A))
        low = notebook("low")
        low.ask("launch")
        assert low.answer() == "0"
        await eventually(says(bus, {"g-low"}, set()))
        assert (await say(bus, grant("low", A, CHECKPOINT))).suspension == CHECKPOINT
        await started(bus, kubelet, grant("high", A, any_gpu=False))
        high = notebook("high")
        high.ask("launch")
        assert high.answer() == "0"
        await eventually(says(bus, {"g-low", "g-high"}, set()))
        low.ask(call)
        await eventually(says(bus, {"g-high"}, {"g-low"}))
        answer = await back(bus, grant("low", B, amendment=1))
        assert (answer.ok, answer.reason, answer.whole) == (True, "", True)
        assert low.answer() == "0"
        await eventually(says(bus, {"g-high", "g-low"}, set()))


async def test_a_pod_is_not_idle_while_nvml_sees_its_kernels(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    notebook: Callable[[str], Notebook],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its slice counts: launches of a slice without a limit of its GPU time are not counted."""
    owners = {4711: Owner(uid("low"), "f" * 64)}
    monkeypatch.setattr(monitor, "NvmlDevices", functools.partial(NvmlDevices, owner=owners.get))
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A))
        notebook("low")
        await eventually(says(bus, {"g-low"}, set()))
        (host / "nvml").write_text(NVML + "process 0 4711 10\nsm 0 4711 40\n")
        await eventually(says(bus, set(), set()))
        (host / "nvml").write_text(NVML + "process 0 4711 10\n")
        await eventually(says(bus, {"g-low"}, set()))


async def test_a_restarted_agent_calls_no_suspended_pod_idle(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    notebook: Callable[[str], Notebook],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A))
        notebook("low")
        await eventually(says(bus, {"g-low"}, set()))
        await say(bus, grant("low", A, CHECKPOINT))
    assert await told(bus) == ({"g-low"}, set())
    async with agent(nats, host, **settings):
        await eventually(says(bus, set(), set()))
