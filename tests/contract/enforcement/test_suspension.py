"""Suspension on a whole agent: what the control blocks hold when the node answers, over real NATS and gRPC."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from services.node_agent.bursts import Bursts
from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from services.node_agent.strategies import layout
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant, NodeSync, NodeSyncAnswer
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.strategies import StrategyName
from shared.model.suspension import Suspension
from tests.support.enforcement import GPU, NVML, VICTIM, become, control_block, count, orders, prove
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.waiting import eventually

PAUSE = Suspension(action="pause", plan_id="p")
THROTTLE = Suspension(action="throttle", plan_id="p", compute_milli=100)


@pytest.fixture(autouse=True)
def proven(host: Path, build: Path) -> None:
    prove(host, build)


def grant(
    name: str,
    suspension: Suspension | None = None,
    *,
    term: int = 1,
    compute_milli: int = 600,
    strategy: StrategyName = "interposer",
) -> NodeGrant:
    share = GpuShare(node="n1", uuid=GPU, memory_mib=64, compute_milli=compute_milli)
    made = Grant(grant_id=f"g-{name}", term=1, containers={"main": ContainerGrant(strategy=strategy, gpus=(share,))})
    return NodeGrant(term=term, uid=uid(name), namespace="team", name=name, grant=made, suspension=suspension)


ANSWER_S = 30.0


async def say(bus: NatsBus, sent: NodeGrant) -> Accepted:
    """A checkpoint begins a process that loads the driver, and may take six attempts of some seconds."""
    return decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent), timeout_s=ANSWER_S), Accepted)


async def started(bus: NatsBus, kubelet: FakeKubelet, sent: NodeGrant) -> None:
    await kubelet.sees_slots()
    assert (await say(bus, sent)).ok
    one = pod(sent.name)
    await kubelet.admit(one)
    await kubelet.start_container(one)


async def test_a_pod_is_paused_when_the_node_answers_and_the_new_pod_starts(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        with pytest.raises(grpc.aio.AioRpcError, match="gpu-compute-full"):
            await started(bus, kubelet, grant("high", compute_milli=1000))
        assert (await say(bus, grant("low", PAUSE))).suspension == PAUSE
        assert orders(host, "low").paused == 1
        await kubelet.start_container(kubelet.pods[uid("high")])
        assert (orders(host, "low").tier, orders(host, "high").tier, orders(host, "high").gpu[0].window_ns) == (
            layout.LOW,
            layout.NORMAL,
            0,
        )
        refused = await say(bus, grant("low"))
        assert (refused.ok, refused.suspension, orders(host, "low").paused) == (False, PAUSE, 1)


async def test_a_throttled_pod_keeps_a_window_and_gets_its_full_share_back(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        assert (await say(bus, grant("low", THROTTLE))).suspension == THROTTLE
        assert (orders(host, "low").gpu[0].compute_milli, orders(host, "low").paused) == (100, 0)
        answer = await say(bus, grant("low"))
        assert (answer.ok, answer.suspension, answer.reason) == (True, None, "")
        assert orders(host, "low").gpu[0].compute_milli == 600


async def test_a_restarted_agent_keeps_pods_suspended_and_reports_it_to_a_new_leader(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        await say(bus, grant("low", PAUSE))
        before = orders(host, "low").heartbeat_ns
    pretend_resumed(host, "low")
    async with agent(nats, host, **settings):
        await eventually(lambda: orders(host, "low").heartbeat_ns > before)
        assert orders(host, "low").paused == 1
        sync = NodeSync(term=2, node="n1", grants=(grant("low", PAUSE, term=2),))
        answer = decode(await bus.request(subjects.node_command("n1", "sync"), encode(sync)), NodeSyncAnswer)
        assert (answer.accepted, answer.suspension) == (True, {"g-low": PAUSE})


async def test_a_pause_holds_while_the_agent_starts(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To ask the driver for each bursting pod takes longer than a pause lasts without a heartbeat."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", PAUSE))
    beats: list[int] = []

    async def slow(_: Bursts) -> None:
        adopted = orders(host, "low").heartbeat_ns
        await eventually(lambda: orders(host, "low").heartbeat_ns > adopted, within_s=20)
        beats.append(orders(host, "low").paused)

    monkeypatch.setattr(Bursts, "start", slow)
    async with agent(nats, host, **settings):
        assert beats == [1]


def pretend_resumed(host: Path, name: str) -> None:
    """Clears the orders, so that later content was written by the restarted agent."""
    with (control_block(host, name) / "orders").open("r+b") as file:
        file.seek(layout.Orders.paused.offset)
        file.write(bytes(4))


async def test_a_container_of_a_suspended_pod_starts_suspended(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", PAUSE))
        assert orders(host, "low").paused == 1


async def test_a_slice_whose_control_block_cannot_be_written_is_not_suspended_and_the_answer_says_why(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    """The folder for the links to its new peers cannot be written."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=300))
        await started(bus, kubelet, grant("other", compute_milli=300))
        for path in (control_block(host, "low") / "peers").iterdir():
            path.unlink()
        (control_block(host, "low") / "peers").rmdir()
        os.close(os.open(control_block(host, "low") / "peers", os.O_CREAT))
        answer = await say(bus, grant("low", PAUSE, compute_milli=300))
        assert (answer.ok, answer.suspension) == (True, None)
        assert "peers" in answer.reason
        assert orders(host, "low").paused == 0


async def test_a_strategy_that_cannot_suspend_answers_why(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", strategy="advisory"))
        answer = await say(bus, grant("low", PAUSE, strategy="advisory"))
        assert (answer.ok, answer.suspension, answer.reason) == (
            True,
            None,
            "slices of strategy advisory do not support pause while they run",
        )
        assert msgspec.structs.replace(answer, reason="") == await say(bus, grant("low", strategy="advisory"))


SHRINK = Suspension(action="shrink", plan_id="p", memory_mib=32)


async def test_a_shrunk_pod_keeps_its_speed_and_the_new_pod_starts(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    """Each pod has a grant of 100 MiB."""
    become(host, NVML.replace(" 4000 ", " 100 "))
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=300))
        count(host, "low", 20)
        with pytest.raises(grpc.aio.AioRpcError, match="gpu-memory-full"):
            await started(bus, kubelet, grant("high", compute_milli=300))
        assert (await say(bus, grant("low", SHRINK, compute_milli=300))).suspension == SHRINK
        written = orders(host, "low")
        assert (written.gpu[0].memory_limit_bytes, written.paused, written.gpu[0].compute_milli) == (
            32 << 20,
            0,
            300,
        )
        await kubelet.start_container(kubelet.pods[uid("high")])
        refused = await say(bus, grant("low", compute_milli=300))
        assert (refused.ok, refused.suspension) == (False, SHRINK), "other pods use it"
        await kubelet.start_container(kubelet.pods[uid("low")])
        assert orders(host, "low").gpu[0].memory_limit_bytes == 32 << 20, (
            "a restarted container starts with what it keeps"
        )


async def test_a_pod_that_has_allocated_more_than_it_would_keep_is_not_shrunk(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        count(host, "low", 40)
        answer = await say(bus, grant("low", SHRINK))
        assert (answer.ok, answer.suspension, answer.reason) == (
            True,
            None,
            "container main has allocated 40 MiB on a GPU, more than the 32 MiB that it would keep",
        )
        assert orders(host, "low").gpu[0].memory_limit_bytes == 64 << 20
        count(host, "low", 32)
        assert (await say(bus, grant("low", SHRINK))).suspension == SHRINK
        assert (await say(bus, grant("low"))).suspension is None
        assert orders(host, "low").gpu[0].memory_limit_bytes == 64 << 20


async def test_a_pod_that_forges_a_low_account_is_not_shrunk(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML sees 40 MiB. Other pods would be given what it has not freed."""
    monkeypatch.setattr(monitor, "NvmlDevices", functools.partial(NvmlDevices, owner={4711: Owner(uid("low"))}.get))
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        become(host, f"{NVML}process 0 4711 40\n")
        count(host, "low", 1)
        answer = await say(bus, grant("low", SHRINK))
        assert (answer.ok, answer.suspension, orders(host, "low").gpu[0].memory_limit_bytes) == (True, None, 64 << 20)
        assert "holds 40 MiB on GPU" in answer.reason
        become(host, f"{NVML}process 0 4711 30\n")
        await eventually(lambda: says_shrunk(bus))


async def says_shrunk(bus: NatsBus) -> bool:
    return (await say(bus, grant("low", SHRINK))).suspension == SHRINK


CHECKPOINT = Suspension(action="checkpoint", plan_id="p")


class Low:
    """The low-priority pod's only process, on the fake driver with a context of 64 MiB, and its cgroup."""

    def __init__(self, host: Path, libcuda: str, *, room_mib: int = 1000, script: str = "") -> None:
        """`script`: what it runs instead of launching without end; it prints a line when it has begun."""
        self.libcuda = libcuda
        program = ["-c", script] if script else [str(VICTIM)]
        self.process = subprocess.Popen(
            [sys.executable, *program, libcuda], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n"
        (host / "cgroup" / "kubepods" / f"pod{uid('low')}" / "main").mkdir(parents=True)
        (host / "cgroup" / "cgroup.procs").touch()
        for folder, pids in ((f"pod{uid('low')}", ""), (f"pod{uid('low')}/main", f"{self.process.pid}\n")):
            at = host / "cgroup" / "kubepods" / folder
            (at / "cgroup.procs").write_text(pids)
            (at / "memory.max").write_text(f"{(100 + room_mib) << 20}\n")
            (at / "memory.current").write_text(f"{100 << 20}\n")

    def ask(self, what: str) -> int:
        """Uses a helper process, because the test must not become a client of the fake driver."""
        script = (
            "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); s = ctypes.c_int(-1); d.cuInit(0); "
            f"d.kerf_fake_used_bytes.restype = ctypes.c_uint64; {what}"
        )
        command = [sys.executable, "-c", script, self.libcuda, str(self.process.pid)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    @property
    def state(self) -> int:
        return self.ask("d.cuCheckpointProcessGetState(int(sys.argv[2]), ctypes.byref(s)); print(s.value)")

    @property
    def mib_on_gpu(self) -> int:
        return self.ask("print(d.kerf_fake_used_bytes(0) >> 20)")


@pytest.fixture
def world(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_MIB", "100")
    monkeypatch.setenv("KERF_FAKE_CUDA_CONTEXT_MIB", "64")


@pytest.fixture
def low(host: Path, world: None, build: Path) -> Iterator[Low]:
    made = Low(host, str(build / "libcuda.so.1"))
    yield made
    made.process.kill()
    made.process.communicate()


async def test_a_pod_has_left_the_gpu_when_its_checkpoint_is_answered_and_is_restored_completely(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    low: Low,
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=0, strategy="time_slice"))
        count(host, "low", 64)
        assert low.mib_on_gpu == 64
        suspension = grant("low", CHECKPOINT, compute_milli=0, strategy="time_slice")
        assert (await say(bus, suspension)).suspension == CHECKPOINT
        assert (low.state, low.mib_on_gpu, orders(host, "low").gpu[0].memory_limit_bytes) == (2, 0, 0)
        with pytest.raises(grpc.aio.AioRpcError, match="suspended"):
            await kubelet.start_container(kubelet.pods[uid("low")])
    async with agent(nats, host, **settings):
        assert (low.state, (await say(bus, suspension)).suspension) == (2, CHECKPOINT), (
            "other pods use its memory: the end of an agent does not restore it"
        )
        answer = await say(bus, grant("low", compute_milli=0, strategy="time_slice"))
        assert (answer.ok, answer.suspension) == (True, None)
        assert (low.state, low.mib_on_gpu, orders(host, "low").gpu[0].memory_limit_bytes) == (0, 64, 64 << 20)


async def speeds(bus: NatsBus) -> tuple[int, int]:
    """How fast the node says that it copies, to the host and back, in MiB/s."""
    entry = await bus.kv(subjects.KV_NODES).get("n1")
    found = Inventory(node="n1", boot_id="") if entry.value is None else decode(entry.value, Inventory)
    return found.host_memory.out_mib_per_s, found.host_memory.back_mib_per_s


async def test_a_node_tells_how_fast_it_has_copied_and_its_next_agent_too(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    low: Low,
) -> None:
    share = {"compute_milli": 0, "strategy": "time_slice"}
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", **share))
        assert await speeds(bus) == (0, 0)
        count(host, "low", 64)
        await say(bus, grant("low", CHECKPOINT, **share))
        await say(bus, grant("low", **share))
        count(host, "low", 4096)  # as a large pod would have
        assert (await say(bus, grant("low", CHECKPOINT, **share))).suspension == CHECKPOINT
        await eventually(lambda: told_out_alone(bus), what="the speed to the host")
        assert (await say(bus, grant("low", **share))).suspension is None
        await eventually(lambda: told_both(bus), what="the speed back")
        before = await speeds(bus)
    async with agent(nats, host, **settings):
        await kubelet.sees_slots()
        assert await speeds(bus) == before


async def told_out_alone(bus: NatsBus) -> bool:
    """Of 64 MiB, which were copied before, nothing is learned."""
    out, back = await speeds(bus)
    return out > 0 and not back


async def told_both(bus: NatsBus) -> bool:
    return all(await speeds(bus))


async def test_without_room_in_its_memory_limit_a_pod_is_not_checkpointed_and_continues(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    world: None,
    build: Path,
) -> None:
    """Otherwise the kernel would kill the pod for the memory that comes from the GPU."""
    low = Low(host, str(build / "libcuda.so.1"), room_mib=63)
    try:
        async with agent(nats, host, **settings):
            await started(bus, kubelet, grant("low"))
            count(host, "low", 64)
            answer = await say(bus, grant("low", CHECKPOINT))
            assert (answer.ok, answer.suspension) == (True, None)
            assert "its memory limit has room for 63 MiB, but it has 64 MiB on GPUs" in answer.reason
            assert (
                low.state,
                low.mib_on_gpu,
                orders(host, "low").paused,
                orders(host, "low").gpu[0].memory_limit_bytes,
            ) == (
                0,
                64,
                0,
                64 << 20,
            )
    finally:
        low.process.kill()
        low.process.communicate()


async def test_a_pod_whose_gpu_memory_is_in_use_stays_on_the_host_until_it_is_free(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    low: Low,
) -> None:
    """A process unknown to the gate uses 64 of its 100 MiB; the agent retries by itself."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low"))
        await say(bus, grant("low", CHECKPOINT))
        with subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, str(VICTIM), low.libcuda], stdout=subprocess.PIPE, text=True
        ) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "begun\n"
            refused = await say(bus, grant("low"))
            assert (refused.ok, refused.suspension) == (False, None)
            assert "the driver answers 2 to the restoring" in refused.reason
            assert (low.state, orders(host, "low").paused) == (2, 1)
            stranger.kill()
        await eventually(lambda: low.state == 0 and orders(host, "low").paused == 0, within_s=10)
