"""Memory that bypasses a slice: NVML compared with the control block, and the policies."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.devices.usage import GpuProcesses
from services.node_agent.processes.owner import Owner
from services.node_agent.slice_observer import SliceObserver
from services.node_agent.strategies import layout
from services.node_agent.strategies.escapes import HiddenMemory
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.surcharges import SAMPLES
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts.samples import SliceUse
from tests.support.enforcement import (
    GPU,
    NVML,
    at_work,
    become,
    control_block,
    count,
    locked,
    orders,
    started,
)
from tests.support.evictions import evictions
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, uid
from tests.support.leases import is_leased, lease
from tests.support.waiting import eventually


async def test_memory_that_bypasses_the_interposer_is_reported(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
) -> None:
    async with agent(nats, host, **settings) as ctx:
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: any(use.hidden_mib == 50 for use in uses))
        shown, labels = ctx.metrics.render().decode(), f'{{gpu="{GPU}",namespace="team",pod="a"}}'
        assert f"kerf_agent_slice_hidden_bytes{labels} 5.24288e+07" in shown
        assert f"kerf_agent_slice_hidden_mib{labels} 50.0" in shown, "the former name, for one version"


async def test_a_container_that_truncates_its_counters_hides_nothing(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        count(host, "a", 50)
        os.truncate(control_block(host, "a") / "counters", 100)
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: any(use.hidden_mib == 50 for use in uses))


@pytest.mark.parametrize("name", ["counters", "signal", "orders"])
async def test_a_pod_whose_counters_cannot_be_read_hides_nothing(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
    name: str,
) -> None:
    """A lease that was taken while no agent ran. What NVML sees proves nothing without the counters."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        count(host, "a", 50)
    with lease(control_block(host, "a") / name) as granted:
        assert granted
        become(host, f"{NVML}process 0 4711 50\n")
        async with agent(nats, host, **settings):
            await eventually(lambda: sum(use.memory_mib == 50 for use in uses) > 10)
            assert is_leased(control_block(host, "a") / name)
            assert {use.hidden_mib for use in uses} == {0}


async def test_memory_that_is_not_counted_lowers_the_limit_while_it_is_there(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with agent(nats, host, **settings) as ctx:
        await started(bus, kubelet, "a")
        count(host, "a", 20)
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: orders(host, "a").gpu[0].surcharge_bytes == 30 << 20)
        series = f'kerf_agent_slice_surcharge_bytes{{gpu="{GPU}",namespace="team",pod="a"}}'
        assert f"{series} 3.145728e+07" in ctx.metrics.render().decode()
        count(host, "a", 50)
        await eventually(lambda: orders(host, "a").gpu[0].surcharge_bytes == 0)
        assert series not in ctx.metrics.render().decode()
        printed = capsys.readouterr().out
        assert ("slice_surcharged" in printed, "slice_surcharge_ended" in printed) == (True, True)


async def test_the_learned_slack_lowers_no_limit(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A framework that hides more than the small pods of the node is reported, and keeps its memory."""
    monkeypatch.setattr(HiddenMemory, "per_process_mib", 10)
    async with agent(nats, host, **settings | {"escape_slack_mib": 100}):
        await started(bus, kubelet, "a")
        count(host, "a", 20)
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: sum(use.hidden_mib == 20 for use in uses) > SAMPLES)
        assert orders(host, "a").gpu[0].surcharge_bytes == 0


async def test_a_pod_with_a_container_that_was_not_taken_over_hides_nothing(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
    uses: list[SliceUse],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SliceRegistry, "not_adopted", frozenset({(uid("a"), "beside")}))
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: sum(use.memory_mib == 50 for use in uses) > 10)
        assert {use.hidden_mib for use in uses} == {0}


async def test_damage_that_is_repaired_while_nvml_answers_is_logged(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reading before NVML's finds it, and has it repaired before the one after."""
    counters, look = control_block(host, "a") / "counters", SliceObserver.before_sample

    class Waits(NvmlDevices):
        async def processes(self, now_us: int | None = None) -> tuple[GpuProcesses, ...]:
            size = ctypes.sizeof(layout.Counters)
            await eventually(lambda: not counters.exists() or counters.stat().st_size == size)
            return await super().processes(now_us)

    def damage(observer: SliceObserver) -> None:
        if counters.exists():
            os.truncate(counters, counters.stat().st_size + 4096)
        look(observer)

    monkeypatch.setattr(monitor, "NvmlDevices", Waits)
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        monkeypatch.setattr(SliceObserver, "before_sample", damage)
        await eventually(lambda: "its counters were extended" in capsys.readouterr().out)
        monkeypatch.setattr(SliceObserver, "before_sample", look)


async def test_memory_that_is_freed_while_nvml_answers_is_not_hidden(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    uses: list[SliceUse],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that allocates and frees all the time must not lose what it has freed in between."""

    class Frees(NvmlDevices):
        async def processes(self, now_us: int | None = None) -> tuple[GpuProcesses, ...]:
            found = await super().processes(now_us)
            if control_block(host, "a").exists():
                count(host, "a", 0)
                asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_later, 0, count, host, "a", 50)
            return found

    monkeypatch.setattr(monitor, "NvmlDevices", functools.partial(Frees, owner={4711: Owner(uid("a"))}.get))
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        count(host, "a", 50)
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: sum(use.memory_mib == 50 for use in uses) > 10)
        assert {use.hidden_mib for use in uses} == {0}
        assert orders(host, "a").gpu[0].surcharge_bytes == 0


async def test_with_policy_evict_a_pod_that_bypasses_its_slice_is_evicted(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned: None,
) -> None:
    asked = await evictions(bus)
    async with agent(nats, host, **settings, escapes="evict"):
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 4711 500\n")
        await eventually(lambda: asked)
    assert (asked[0].name, len(asked)) == ("a", 1)
    assert "holds 500 MiB" in asked[0].reason


async def test_with_policy_lock_an_escaped_process_is_time_sliced_and_unlocked_when_the_agent_ends(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    build: Path,
    victim: int,
) -> None:
    async with agent(nats, host, **settings, escapes="lock"):
        await started(bus, kubelet, "a", compute_milli=0, strategy="time_slice")
        await started(bus, kubelet, "b", compute_milli=0, strategy="time_slice", priority=100)
        at_work(host, "b")
        become(host, f"{NVML}process 0 {victim} 50\n")
        await eventually(lambda: locked(build, victim), every_s=0.1)
    assert not locked(build, victim)


async def test_with_policy_kill_all_processes_of_a_pod_that_bypasses_its_slice_end_and_it_is_evicted(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    victim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML sees one of its processes; the other is found in its cgroup. A process of another pod stays."""
    asked = await evictions(bus)
    with sleeper() as beside, sleeper() as foreign:
        owners = {victim: "a", beside.pid: "a", foreign.pid: "b"}
        monkeypatch.setattr(
            monitor,
            "NvmlDevices",
            functools.partial(NvmlDevices, owner=lambda pid: Owner(uid(owners[pid])) if pid in owners else None),
        )
        cgroup = host / "cgroup" / "kubepods" / f"pod{uid('a')}" / "main"
        cgroup.mkdir(parents=True)
        (cgroup / "cgroup.procs").write_text(f"{beside.pid}\n{foreign.pid}\n")
        async with agent(nats, host, **settings, escapes="kill"):
            await started(bus, kubelet, "a")
            become(host, f"{NVML}process 0 {victim} 500\n")
            await eventually(lambda: beside.poll() == -signal.SIGKILL and ended(victim))
            await eventually(lambda: asked)
        assert foreign.poll() is None
    assert (asked[0].name, "were ended with SIGKILL" in asked[0].reason) == ("a", True)


async def test_a_process_on_the_gpu_is_killed_although_the_pods_cgroup_cannot_be_read(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    victim: int,
) -> None:
    """0 stands for a process that the agent does not see."""
    cgroup = host / "cgroup" / "kubepods" / f"pod{uid('a')}" / "main"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text("0\n")
    async with agent(nats, host, **settings, escapes="kill"):
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 {victim} 500\n")
        await eventually(lambda: ended(victim))


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
