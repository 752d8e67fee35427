"""An agent that shares its GPUs by MPS, on the fake driver: proof, daemons by need, faults, an agent that restarts.

The programs of containers are stood in for by processes of the host with the environment and the folders that the CDI
spec gives the container. They have no interposer: what holds here is MPS.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import msgspec
import pytest

from services.node_agent.canary.proofs import LIBRARY, _digest
from services.node_agent.mps import plan, supervisor
from services.node_agent.mps.daemon import Daemon, find, guards
from services.node_agent.mps.proof import MpsProof
from services.node_agent.strategies import layout
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceEnforced, SliceImpaired
from shared.contracts.node_commands import NodeRelease
from tests.support.enforcement import GPU, NVML, become, mounts, offered, orders, started
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, environment, uid
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT, so the MPS daemons' mounts are NOT TESTED")
NOT_READY, ILLEGAL_ADDRESS, RPC_FAILURE, OUT_OF_MEMORY = 807, 700, 806, 2


class Client:
    """A program that is started with the variables of a container, and uses the GPU when it is told to."""

    def __init__(self, build: Path, host: Path, cdi_name: str, mib: int = 8) -> None:
        pipe = mounts(host, cdi_name)["/tmp/nvidia-mps"]["hostPath"]
        self._process = subprocess.Popen(
            [str(build / "probe"), str(build / "libcuda.so.1"), "use", str(mib)],
            env=os.environ | environment(host, cdi_name) | {"CUDA_MPS_PIPE_DIRECTORY": pipe},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.began = int(json.loads(line)["result"]) if line else self._refused()

    def use(self, how: str = "") -> int:
        """The driver's result of a kernel; of one that faults for `fault`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{how}\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline())["result"])

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _refused(self) -> int:
        _, said = self._process.communicate()
        return int(said.rsplit(":", 1)[1])


@pytest.fixture
def clients(build: Path, host: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(cdi_name: str, mib: int = 8) -> Client:
            made = Client(build, host, cdi_name, mib)
            stack.callback(made.end)
            return made

        yield make


@pytest.fixture
def mps(
    host: Path, build: Path, settings: dict[str, Any], proven: None, place: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_SMS", "100")
    yield settings | {"mps_nodes": ("n*",), "mps_control": str(build / "nvidia-cuda-mps-control")}
    for pid in daemons(host):
        os.kill(pid, signal.SIGKILL)
    for folder in (path for name in ("shm", "pipe") for path in (host / "run" / "mps").glob(f"*/{name}")):
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


@pytest.fixture
def tried(host: Path, build: Path) -> None:
    """MPS was proven by an earlier agent."""
    proof = MpsProof(driver_version="580.1", library=_digest(build / LIBRARY), ok=True)
    (host / "state" / "mps.json").write_bytes(msgspec.json.encode(proof))


@pytest.fixture
async def told(bus: NatsBus) -> list[Any]:
    heard: list[Any] = []

    async def ear(incoming: Incoming) -> None:
        heard.append(unwrap(incoming.payload)[1])

    await bus.subscribe(subjects.EVENTS_ALL, ear)
    return heard


def daemons(host: Path) -> list[int]:
    """The control daemons of the GPU."""
    return [one.pid for one in find(host / "run" / "mps" / GPU / "pipe") if one.is_control]


def impaired(told: list[Any]) -> list[tuple[str, str]]:
    return sorted((event.name, event.reason) for event in told if isinstance(event, SliceImpaired))


async def _offers(bus: NatsBus, *wanted: str) -> bool:
    return await offered(bus) == wanted


async def test_mps_is_offered_alone_once_the_agent_has_tried_it(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, mps: dict[str, Any]
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"), within_s=30)
    proof = msgspec.json.decode((host / "state" / "mps.json").read_bytes(), type=MpsProof)
    assert (proof.ok, proof.processors, proof.client_processors) == (True, 100, 50)
    assert not (host / "run" / "mps" / "canary").exists()


async def test_without_nvidias_program_no_part_is_offered_and_the_reason_is_told(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, mps: dict[str, Any]
) -> None:
    async with agent(nats, host, **(mps | {"mps_control": str(host / "nothing")})) as ctx:
        said = "no part of a GPU is offered: MPS has not been tried with driver"
        await eventually(
            lambda: (part := str(ctx.health.report()["parts"].get("mps"))).find(said) >= 0 and "/nothing" in part,
            within_s=30,
        )
        assert await _offers(bus, "exclusive")
    assert not (host / "state" / "mps.json").exists(), "nothing is disproven"


async def test_an_attempt_that_could_not_be_made_leaves_the_last_proof(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, mps: dict[str, Any], tried: None
) -> None:
    """After an upgrade of the library containers must be able to restart on a full node."""
    file = host / "state" / "mps.json"
    before = msgspec.json.decode(file.read_bytes(), type=MpsProof)
    earlier = msgspec.structs.replace(before, library="another")
    file.write_bytes(msgspec.json.encode(earlier))
    async with agent(nats, host, **(mps | {"mps_control": str(host / "nothing")})) as ctx:
        said = await eventually(
            lambda: part if "/nothing" in (part := str(ctx.health.report()["parts"].get("mps"))) else "", within_s=30
        )
        assert "MPS was proven by another version of the agent" in said
        assert await _offers(bus, "exclusive", "mps")
    assert msgspec.json.decode(file.read_bytes(), type=MpsProof) == earlier


async def test_containers_are_clients_of_one_daemon_with_limits_of_their_own(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    told: list[Any],
    clients: Any,
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        names = {
            "a": await started(bus, kubelet, "a", strategy="mps", memory_mib=64, compute_milli=300),
            "b": await started(bus, kubelet, "b", strategy="mps", memory_mib=128, compute_milli=695),
            "c": await started(bus, kubelet, "c", strategy="mps", memory_mib=128, compute_milli=0),
        }
        assert len(daemons(host)) == 1
        variables = {name: environment(host, cdi) for name, cdi in names.items()}
        assert {name: of["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for name, of in variables.items()} == {
            "a": "0=64M",
            "b": "0=128M",
            "c": "0=128M",
        }
        assert {name: of.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for name, of in variables.items()} == {
            "a": "30",
            "b": "69",
            "c": None,
        }
        found = mounts(host, names["a"])
        assert {"/tmp/nvidia-mps", "/dev/shm", "/run/kerf/orders", "/etc/ld.so.preload"} <= found.keys()
        assert not any("/log" in mount["hostPath"] for mount in found.values())
        assert (clients(names["a"], 60).began, clients(names["a"], 70).began) == (0, OUT_OF_MEMORY)
        assert clients(names["b"], 100).began == 0
        said = orders(host, "a").gpu[0]
        assert (said.memory_limit_bytes, said.compute_milli, said.period_ns) == (64 << 20, 0, 0)
        assert orders(host, "a").tier == orders(host, "c").tier == layout.NORMAL
        enforced = [event for event in told if isinstance(event, SliceEnforced)]
        assert {(event.strategy, event.promise, event.shares_faults) for event in enforced} == {("mps", "soft", True)}


async def test_a_fault_is_told_of_all_containers_and_the_gpu_takes_new_programs_again(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    told: list[Any],
    clients: Any,
) -> None:
    """One of the clients does not end after the fault. It would keep the GPU from all others."""
    async with agent(nats, host, **mps) as ctx:
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        names = {name: await started(bus, kubelet, name, strategy="mps") for name in ("a", "b")}
        bad, good = clients(names["a"]), clients(names["b"])
        assert (bad.use(), good.use()) == (0, 0)
        assert bad.use("fault") == ILLEGAL_ADDRESS
        assert good.use() == ILLEGAL_ADDRESS
        assert clients(names["b"]).began == NOT_READY
        await eventually(lambda: impaired(told) == [("a", "mps-fault"), ("b", "mps-fault")])
        bad.end()
        await eventually(lambda: clients(names["b"]).began == 0, within_s=40, every_s=0.5)
        assert impaired(told) == [("a", "mps-fault"), ("b", "mps-fault")], "told once"
        shown = ctx.metrics.render().decode()
        assert f'kerf_agent_mps_troubles_total{{gpu="{GPU}",kind="fault"}} 1.0' in shown
        running = f'kerf_agent_mps_running{{gpu="{GPU}"}} 1.0'
        await eventually(lambda: running in ctx.metrics.render().decode())


async def test_a_daemon_that_is_killed_is_started_again_and_told(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    told: list[Any],
    clients: Any,
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        name = await started(bus, kubelet, "a", strategy="mps")
        client, (first,) = clients(name), daemons(host)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: impaired(told) == [("a", "mps-daemon")])
        await eventually(lambda: daemons(host) not in ([], [first]))
        assert client.use() == RPC_FAILURE
        assert clients(name).began == 0, "by the same folder, which its container still has"
        assert (host / "run" / "mps" / GPU / "shm").stat().st_mode & 0o7777 == 0o1777, "its /dev/shm is for any user"


async def test_an_agent_that_restarts_takes_over_the_daemon_and_ends_it_with_the_last_slice(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    told: list[Any],
    clients: Any,
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        cgroup(host, "a")
        name = await started(bus, kubelet, "a", strategy="mps")
        client, first = clients(name), daemons(host)
    assert (daemons(host), client.use()) == (first, 0), "without an agent"
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        assert (daemons(host), client.use(), impaired(told)) == (first, 0, [])
        await release(bus, kubelet, host, "a")
        await eventually(lambda: not daemons(host))
        await eventually(lambda: not (host / "run" / "mps" / GPU).exists())
        assert client.use() == RPC_FAILURE


async def test_a_daemon_that_ends_while_no_agent_runs_is_told(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    told: list[Any],
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await started(bus, kubelet, "a", strategy="mps")
        (first,) = daemons(host)
    os.kill(first, signal.SIGKILL)
    async with agent(nats, host, **mps):
        await eventually(lambda: impaired(told) == [("a", "mps-daemon")])
        await eventually(lambda: daemons(host) not in ([], [first]))


async def test_slices_of_other_strategies_share_no_gpu_with_mps(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
) -> None:
    """The operator names the node while a slice runs: that one goes on, and no MPS comes to its GPU before it ends."""
    cgroup(host, "old")
    async with agent(nats, host, **(mps | {"mps_nodes": ("m*",)})):
        await started(bus, kubelet, "old", strategy="interposer")
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        with pytest.raises(grpc.aio.AioRpcError, match=r"slices of other strategies have ended: team/old"):
            await started(bus, kubelet, "a", strategy="mps")
        with pytest.raises(grpc.aio.AioRpcError, match="the grant uses strategy advisory, which this node does not"):
            await started(bus, kubelet, "b", strategy="advisory")
        assert daemons(host) == []
        await release(bus, kubelet, host, "old")
        again = kubelet.pods[uid("a")]
        await eventually(lambda: _starts(kubelet, again))
        assert len(daemons(host)) == 1


async def test_mps_is_tried_on_a_gpu_that_is_still_free_when_the_canary_is_done(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy: list[Busy] = []
    begin = supervisor.MpsSupervisor.__init__

    def begun(self: Any, *given: Any, keeper: Any, **more: Any) -> None:
        keeper.busy = Busy(lambda: self._free_gpu() is not None)
        busy.append(keeper.busy)
        begin(self, *given, keeper=keeper, **more)

    rounds = [0]
    report = supervisor.MpsSupervisor._report

    def reported(self: Any) -> None:
        report(self)
        rounds[0] += 1

    monkeypatch.setattr(supervisor.MpsSupervisor, "__init__", begun)
    monkeypatch.setattr(supervisor.MpsSupervisor, "_report", reported)
    async with agent(nats, host, **mps) as ctx:
        await eventually(lambda: busy[0].asked >= 2, what="the measurement of the canary, and the proof of MPS")
        await started(bus, kubelet, "whole", strategy="exclusive", memory_mib=4000, compute_milli=1000)
        before = rounds[0]
        busy[0].free.set()
        await eventually(lambda: rounds[0] > before)
        assert "no healthy GPU without slices" in str(ctx.health.report()["parts"]["mps"])
    assert not (host / "state" / "mps.json").exists()


class Busy(asyncio.Lock):
    """Is given to nobody who comes while a GPU is free, before it is set free."""

    def __init__(self, gpu_is_free: Callable[[], bool]) -> None:
        super().__init__()
        self._gpu_is_free = gpu_is_free
        self.asked, self.free = 0, asyncio.Event()

    async def acquire(self) -> Literal[True]:
        if self._gpu_is_free():
            self.asked += 1
            await self.free.wait()
        return await super().acquire()


class SlowServers:
    """Servers of some GPUs that do not start before they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
        self.asked, self.start = asyncio.Event(), asyncio.Event()
        ask = Daemon.ask

        async def slowly(daemon: Daemon, command: str, timeout_s: float = 5.0) -> str:
            if command.startswith("start_server") and daemon.uuid in uuids:
                self.asked.set()
                await self.start.wait()
            return await ask(daemon, command, timeout_s)

        monkeypatch.setattr(Daemon, "ask", slowly)


async def test_a_proof_that_the_end_of_the_agent_interrupts_leaves_no_daemon(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowServers(monkeypatch, GPU)
    folder = host / "run" / "mps" / "canary"
    async with agent(nats, host, **mps):
        await eventually(slow.asked.is_set)
        assert find(folder / "pipe") != ()
    assert (find(folder / "pipe"), folder.exists()) == ((), False)


async def test_a_start_that_the_kubelet_gives_up_goes_on_and_its_daemon_has_a_guard(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowServers(monkeypatch, GPU)
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        call = asyncio.create_task(started(bus, kubelet, "a", strategy="mps"))
        await eventually(slow.asked.is_set)
        call.cancel()
        await asyncio.wait([call])
        (pid,) = daemons(host)
        slow.start.set()
        await eventually(lambda: len(guards(pid, _pipe(host))) == 1)
        await kubelet.start_container(kubelet.pods[uid("a")])
        assert (daemons(host), len(guards(pid, _pipe(host)))) == ([pid], 1)


async def test_a_start_that_the_end_of_the_agent_interrupts_leaves_no_daemon(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowServers(monkeypatch, GPU)
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        call = asyncio.create_task(started(bus, kubelet, "a", strategy="mps"))
        await eventually(slow.asked.is_set)
        assert len(daemons(host)) == 1
    assert find(_pipe(host)) == ()
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def test_a_daemon_without_a_guard_gets_one_from_the_next_agent(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
) -> None:
    """As an agent leaves it that was killed while it started the daemon."""
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await started(bus, kubelet, "a", strategy="mps")
    (pid,) = daemons(host)
    (guard,) = guards(pid, _pipe(host))
    os.kill(guard, signal.SIGKILL)
    await eventually(lambda: guards(pid, _pipe(host)) == ())
    for _ in range(2):
        async with agent(nats, host, **mps):
            await eventually(lambda: len(guards(pid, _pipe(host))) == 1)
            assert daemons(host) == [pid]


def _pipe(host: Path) -> Path:
    return host / "run" / "mps" / GPU / "pipe"


@pytest.mark.parametrize("strategy", ["interposer", "advisory"])
async def test_a_node_that_is_named_no_more_keeps_other_slices_from_those_of_mps_and_then_ends_the_daemon(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    strategy: str,
) -> None:
    cgroup(host, "old")
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await started(bus, kubelet, "old", strategy="mps")
    first = daemons(host)
    async with agent(nats, host, **(mps | {"mps_nodes": ("m*",)})) as ctx:
        await eventually(lambda: _offers_instead(bus, "interposer"))
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"given without MPS only when slices of MPS .* team/old \(mps\)"
        ):
            await started(bus, kubelet, "new", strategy=strategy)
        assert daemons(host) == first
        assert not ctx.health.report()["parts"]["mps"]["detail"]
        await release(bus, kubelet, host, "old")
        await eventually(lambda: _starts(kubelet, kubelet.pods[uid("new")]))
        await eventually(lambda: not (host / "run" / "mps" / GPU).exists())
        assert daemons(host) == []


async def _offers_instead(bus: NatsBus, other: str) -> bool:
    found = await offered(bus)
    return other in found and "mps" not in found


async def test_a_slice_that_was_refused_beside_others_brings_no_daemon_to_their_gpu(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts as handed over, because the kubelet may try again. Those that were there may start again meanwhile."""
    monkeypatch.setattr(supervisor, "ROUND_S", 0.05)
    async with agent(nats, host, **(mps | {"mps_nodes": ("m*",)})):
        await started(bus, kubelet, "old", strategy="interposer")
    async with agent(nats, host, **mps) as ctx:
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        with pytest.raises(grpc.aio.AioRpcError, match="slices of other strategies have ended"):
            await started(bus, kubelet, "a", strategy="mps")
        rounds = [0]
        look = supervisor.MpsSupervisor._look

        async def count(self: Any, **how: Any) -> None:
            await look(self, **how)
            rounds[0] += 1

        monkeypatch.setattr(supervisor.MpsSupervisor, "_look", count)
        await eventually(lambda: rounds[0] >= 2)
        assert (daemons(host), ctx.health.report()["parts"]["mps"]["detail"]) == ([], "")


async def test_no_slice_starts_while_the_daemon_does_not_answer(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await started(bus, kubelet, "a", strategy="mps")
        (first,) = daemons(host)
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError, match=f"the MPS daemon of GPU {GPU} does not answer"):
            await started(bus, kubelet, "b", strategy="mps")
        os.kill(first, signal.SIGCONT)
        await eventually(lambda: _starts(kubelet, kubelet.pods[uid("b")]))


async def test_no_slice_starts_on_a_server_that_takes_no_programs_after_a_fault(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    clients: Any,
) -> None:
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        bad = clients(await started(bus, kubelet, "a", strategy="mps"))
        assert bad.use("fault") == ILLEGAL_ADDRESS
        with pytest.raises(grpc.aio.AioRpcError, match="takes no new programs after a fault"):
            await started(bus, kubelet, "b", strategy="mps")
        bad.end()
        await eventually(lambda: _starts(kubelet, kubelet.pods[uid("b")]))


async def test_an_agent_that_ends_starts_no_daemon(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "ROUND_S", 3600.0)
    monkeypatch.setattr(plan, "FIRST_RETRY_S", 0.0)
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await started(bus, kubelet, "a", strategy="mps")
        (first,) = daemons(host)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: not daemons(host))
    assert daemons(host) == []


async def test_a_gpu_whose_server_hangs_keeps_no_slice_from_another_gpu(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = GPU[:-1] + "2"
    line = NVML.splitlines()[1].replace("gpu 0", "gpu 1").replace(GPU, other).replace("01:00.0", "02:00.0")
    become(host, f"{NVML}{line}\n")
    slow = SlowServers(monkeypatch, GPU)
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        call = asyncio.create_task(started(bus, kubelet, "a", strategy="mps"))
        await eventually(slow.asked.is_set)
        await started(bus, kubelet, "b", strategy="mps", gpu=other)
        assert not call.done()
        slow.start.set()
        await call
    for one in find(host / "run" / "mps" / other / "pipe"):
        os.kill(one.pid, signal.SIGKILL)


async def test_containers_restart_after_an_upgrade_and_mps_is_tried_anew_when_a_gpu_is_free(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    build: Path,
    kubelet: FakeKubelet,
    mps: dict[str, Any],
    tried: None,
) -> None:
    """The next agent comes with another library."""
    cgroup(host, "a")
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await started(bus, kubelet, "a", strategy="mps")
    file, ours = host / "state" / "mps.json", _digest(build / LIBRARY)
    file.write_bytes(msgspec.json.encode(MpsProof(driver_version="580.1", library="older", ok=True)))
    async with agent(nats, host, **mps):
        await eventually(lambda: _offers(bus, "exclusive", "mps"))
        await kubelet.sees_slots()
        await kubelet.start_container(kubelet.pods[uid("a")])
        assert _proof(file).library == "older"
        await release(bus, kubelet, host, "a")
        await eventually(lambda: _proof(file).library == ours, within_s=40)
        assert (_proof(file).ok, await offered(bus)) == (True, ("exclusive", "mps"))


def _proof(file: Path) -> MpsProof:
    return msgspec.json.decode(file.read_bytes(), type=MpsProof)


async def _starts(kubelet: FakeKubelet, pod: Any) -> bool:
    try:
        await kubelet.start_container(pod)
    except grpc.aio.AioRpcError:
        return False
    return True


def cgroup(host: Path, name: str) -> Path:
    """The cgroup of a pod that runs."""
    (host / "cgroup" / "kubepods").mkdir(parents=True, exist_ok=True)
    (host / "cgroup" / "cgroup.procs").touch()
    made = host / "cgroup" / "kubepods" / f"pod{uid(name)}"
    made.mkdir(exist_ok=True)
    return made


async def release(bus: NatsBus, kubelet: FakeKubelet, host: Path, name: str) -> None:
    order = NodeRelease(term=1, uid=uid(name), grant_id=f"g-{name}")
    await bus.request(subjects.node_command("n1", "release"), encode(order))
    kubelet.forget(kubelet.pods[uid(name)])
    cgroup(host, name).rmdir()
