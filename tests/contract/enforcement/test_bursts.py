"""Slices that use more than they are guaranteed: a whole agent, and real programs with the library on a fake driver."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from services.node_agent.strategies.lock_worker import CHECKPOINTED, RUNNING
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant, NodeRelease
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension
from tests.contract.enforcement.test_suspension import Low
from tests.support.enforcement import GPU, NVML, become, control_block, orders, prove
from tests.support.evictions import evictions
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.native import built
from tests.support.waiting import eventually

GPU_MIB, RESERVE_MIB = 400, 16
OTHER_GPU = f"{GPU[:-1]}2"
CHECKPOINT = Suspension(action="checkpoint", plan_id="p")


class Program:
    """The process of a pod: it takes and frees memory with the library, within the pod's control block."""

    def __init__(self, host: Path, build: Path, name: str) -> None:
        self._host, self._name = host, name
        environment = {
            "PATH": os.environ["PATH"],
            "KERF_FAKE_CUDA": str(host / "world"),
            "KERF_FAKE_CUDA_MIB": str(GPU_MIB),
            "KERF_TEST_DRIVER": str(build / "libcuda.so.1"),
            "LD_LIBRARY_PATH": str(build),
            "LD_PRELOAD": str(build / "test" / "libkerf.so"),
            "KERF_DIRECTORY": str(control_block(host, name)),
        }
        self.process = subprocess.Popen(
            [built("programs") / "lends"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def says(self, line: str) -> tuple[int, int, int]:
        """What it has then, and what it sees as free and as the size of the GPU, in MiB."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        held, free, total = map(int, self.process.stdout.readline().split())
        return held, free, total

    def put_into_cgroup(self, room_mib: int = 1000) -> None:
        """The pod's cgroup, as the kubelet makes it before the first start. Its memory limit has so much room."""
        at = self._host / "cgroup" / "kubepods" / f"pod{uid(self._name)}"
        (at / "main").mkdir(parents=True, exist_ok=True)
        (self._host / "cgroup" / "cgroup.procs").touch()
        for folder, pids in ((at, ""), (at / "main", f"{self.pid}\n")):
            (folder / "cgroup.procs").write_text(pids)
            (folder / "memory.max").write_text(f"{(100 + room_mib) << 20}\n")
            (folder / "memory.current").write_text(f"{100 << 20}\n")


class World:
    """A node with one GPU of 400 MiB, of which 16 are never lent."""

    def __init__(self, host: Path, build: Path, owners: dict[int, Owner], stack: contextlib.ExitStack) -> None:
        self._host, self._build, self._owners, self._stack = host, build, owners, stack

    def program(self, name: str, *, room_mib: int = 1000) -> Program:
        made = Program(self._host, self._build, name)
        self._stack.callback(made.process.communicate)
        self._stack.callback(made.process.kill)
        self._owners[made.pid] = Owner(uid(name), "f" * 64)
        made.put_into_cgroup(room_mib)
        return made

    def state(self, program: Program) -> int:
        """The driver's state of the process. A helper process asks, so that the test is no client."""
        low = Low.__new__(Low)
        low.libcuda, low.process = str(self._build / "libcuda.so.1"), program.process
        return low.state

    def limit_mib(self, name: str) -> int:
        return orders(self._host, name).gpu[0].memory_limit_bytes >> 20


@pytest.fixture
def world(host: Path, build: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    prove(host, build)
    owners: dict[int, Owner] = {}
    monkeypatch.setattr(monitor, "NvmlDevices", functools.partial(NvmlDevices, owner=owners.get))
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_MIB", str(GPU_MIB))
    with contextlib.ExitStack() as stack:
        yield World(host, build, owners, stack)


@pytest.fixture
def bursting(host: Path, settings: dict[str, Any]) -> dict[str, Any]:
    become(host, NVML.replace(" 4000 ", f" {GPU_MIB} "))
    return settings | {"burst_reserve_mib": RESERVE_MIB, "usage_s": 60.0}


def granted(
    name: str, memory_mib: int, limit_mib: int = 0, *, priority: int = 0, restart_cost_s: int = 0, gpu: str = GPU
) -> NodeGrant:
    share = GpuShare(node="n1", uuid=gpu, memory_mib=memory_mib, compute_milli=0, memory_limit_mib=limit_mib)
    made = Grant(
        grant_id=f"g-{name}",
        term=1,
        containers={"main": ContainerGrant(strategy="time_slice", gpus=(share,))},
        priority=priority,
        restart_cost_s=restart_cost_s,
    )
    return NodeGrant(term=1, uid=uid(name), namespace="team", name=name, grant=made)


def ordered(given: NodeGrant, suspension: Suspension | None, number: int) -> NodeGrant:
    return msgspec.structs.replace(given, suspension=suspension, number=number)


async def tell(bus: NatsBus, sent: NodeGrant) -> Accepted:
    return decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent)), Accepted)


async def arrive(bus: NatsBus, kubelet: FakeKubelet, sent: NodeGrant) -> None:
    """The pod is bound to the node. Its container has not started."""
    await kubelet.sees_slots()
    assert (await tell(bus, sent)).ok
    await kubelet.admit(pod(sent.name))


async def start(bus: NatsBus, kubelet: FakeKubelet, sent: NodeGrant) -> None:
    await arrive(bus, kubelet, sent)
    await kubelet.start_container(kubelet.pods[uid(sent.name)])


async def leave(bus: NatsBus, host: Path, kubelet: FakeKubelet, program: Program, name: str) -> None:
    """The pod ends, and is released."""
    program.process.kill()
    program.process.wait()
    for path in sorted((host / "cgroup" / "kubepods" / f"pod{uid(name)}").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (host / "cgroup" / "kubepods" / f"pod{uid(name)}").rmdir()
    del kubelet.pods[uid(name)]
    release = NodeRelease(term=1, uid=uid(name), grant_id=f"g-{name}")
    assert decode(await bus.request(subjects.node_command("n1", "release"), encode(release)), Accepted).ok


async def test_a_slice_uses_what_no_slice_is_guaranteed_and_gives_it_back_before_another_starts(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    a = world.program("a")
    async with agent(nats, host, **bursting | {"burst_return_s": 60.0}):
        await start(bus, kubelet, granted("a", 64, 300))
        assert world.limit_mib("a") == 300
        assert a.says("take 300") == (300, 0, 300)
        # Of what is left when 256 are guaranteed to another pod, 64 may be lent.
        await arrive(bus, kubelet, granted("b", 256))
        starting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("b")]))
        await eventually(lambda: world.limit_mib("a") == 128)
        assert a.says("take 4") == (300, 0, 300), "nothing is allocated beyond the new limit"
        assert a.says("free 168") == (132, 0, 300)
        assert not starting.done()
        assert a.says("free 4") == (128, 0, 300)
        await starting
        b = world.program("b")
        assert b.says("take 256")[0] == 256


async def test_a_slice_that_does_not_give_back_goes_to_the_host_and_continues_when_there_is_room(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    a, settings = world.program("a"), bursting | {"burst_return_s": 0.2}
    async with agent(nats, host, **settings):
        await start(bus, kubelet, granted("a", 64, 300))
        assert a.says("take 300")[0] == 300
        await start(bus, kubelet, granted("b", 256))
        assert (world.state(a), orders(host, "a").paused, world.limit_mib("a")) == (CHECKPOINTED, 1, 0)
        b = world.program("b")
        assert b.says("take 256")[0] == 256
    async with agent(nats, host, **settings) as ctx:
        await eventually(lambda: orders(host, "a").paused == 1)
        assert world.state(a) == CHECKPOINTED, "another agent finds it there"
        await leave(bus, host, kubelet, b, "b")
        await eventually(lambda: world.state(a) == RUNNING and orders(host, "a").paused == 0)
        await eventually(lambda: world.limit_mib("a") == 300)
        assert a.says("look") == (300, 0, 300)
        assert "kerf_agent_burst_return_seconds_count" in ctx.metrics.render().decode()


async def test_a_slice_that_cannot_go_to_the_host_is_ended_and_evicted_and_the_dearer_one_keeps_its_memory(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """Both have 100 MiB that were lent to them; the new pod needs what one of them has."""
    asked = await evictions(bus)
    dear, cheap = world.program("dear", room_mib=1), world.program("cheap", room_mib=1)
    async with agent(nats, host, **bursting | {"burst_return_s": 0.2}) as ctx:
        await start(bus, kubelet, granted("dear", 50, 150, restart_cost_s=3600))
        await start(bus, kubelet, granted("cheap", 50, 150, restart_cost_s=60))
        assert dear.says("take 148")[0] == cheap.says("take 148")[0] == 148
        await start(bus, kubelet, granted("new", 160))
        assert (cheap.process.wait(), dear.process.poll()) == (-signal.SIGKILL, None)
        assert dear.says("look")[0] == 148
        new = world.program("new")
        assert new.says("take 160")[0] == 160
        await eventually(lambda: asked)
        assert 'kerf_agent_burst_pods_total{action="ended"} 1.0' in ctx.metrics.render().decode()
    assert {eviction.name for eviction in asked} == {"cheap"}
    assert f"it had 98 MiB of GPU {GPU} beyond what it is guaranteed" in asked[0].reason
    assert "did not free them within 0.2 s when another pod needed" in asked[0].reason
    assert uid("new") not in asked[0].reason, "another team's pod is not named"


async def test_a_slice_that_came_first_keeps_what_it_borrowed_until_it_frees_it_or_a_guarantee_needs_it(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """Of 256 MiB that may be lent each of two may have half. The start waits for the guarantee alone."""
    a = world.program("a")
    async with agent(nats, host, **bursting | {"burst_return_s": 60.0}):
        await start(bus, kubelet, granted("a", 64, 400))
        assert a.says("take 400")[0] == 384
        await arrive(bus, kubelet, granted("b", 64, 400))
        starting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("b")]))
        await eventually(lambda: world.limit_mib("a") == 320)
        assert not starting.done()
        assert a.says("free 64")[0] == 320
        await starting
        assert (world.limit_mib("a"), world.limit_mib("b")) == (192, 64)
        b = world.program("b")
        assert b.says("take 100")[0] == 64
        assert a.says("free 128")[0] == 192
        await eventually(lambda: world.limit_mib("b") == 192)
        assert b.says("take 200")[0] == 192
        assert a.says("take 4")[0] == 192


async def test_a_pod_that_exceeds_what_it_may_use_is_ended_before_a_cheaper_one_that_does_not(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    within, beyond = world.program("within", room_mib=1), world.program("beyond", room_mib=1)
    async with agent(nats, host, **bursting | {"burst_return_s": 0.2}):
        await start(bus, kubelet, granted("within", 50, 80, restart_cost_s=60))
        await start(bus, kubelet, granted("beyond", 50, 300, restart_cost_s=3600))
        assert within.says("take 80")[0] == 80
        assert beyond.says("take 300")[0] == 300
        await start(bus, kubelet, granted("new", 100))
        assert (beyond.process.wait(), within.process.poll()) == (-signal.SIGKILL, None)
        assert within.says("look")[0] == 80


async def test_a_pod_that_has_memory_in_spite_of_its_checkpoint_is_ended(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """NVML goes on to show its memory, as if a process had it of which the driver says nothing."""
    a = world.program("a")
    async with agent(nats, host, **bursting | {"burst_return_s": 0.2}) as ctx:
        await start(bus, kubelet, granted("a", 64, 300))
        become(host, f"{NVML.replace(' 4000 ', f' {GPU_MIB} ')}process 0 {a.pid} 300\n")
        await arrive(bus, kubelet, granted("b", 256))
        starting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("b")]))
        await eventually(lambda: a.process.poll() is not None)
        become(host, NVML.replace(" 4000 ", f" {GPU_MIB} "))
        await starting
        rendered = ctx.metrics.render().decode()
    assert 'kerf_agent_burst_pods_total{action="checkpointed"} 1.0' in rendered
    assert 'kerf_agent_burst_pods_total{action="ended"} 1.0' in rendered


@pytest.mark.parametrize("way", ["frees", "to the host", "ended"])
async def test_a_start_waits_for_no_longer_than_its_memory_takes_to_come_back(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    world: World,
    bursting: dict[str, Any],
    way: str,
) -> None:
    """With the default of 2 s. A program that frees is not waited for any longer; the others have had their time.

    With -s it prints how long.
    """
    a = world.program("a", room_mib=1 if way == "ended" else 1000)
    async with agent(nats, host, **bursting) as ctx:
        await start(bus, kubelet, granted("a", 64, 300))
        assert a.says("take 300")[0] == 300
        await arrive(bus, kubelet, granted("b", 256))
        starting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("b")]))
        if way == "frees":
            await eventually(lambda: world.limit_mib("a") == 128)
            a.says("free 172")
        await starting
        assert world.program("b").says("take 256")[0] == 256
        rendered = ctx.metrics.render().decode()
    (waited_s,) = (float(line.split()[1]) for line in rendered.splitlines() if "burst_return_seconds_sum " in line)
    print(f"{way}: waited {waited_s:.3f} s")  # noqa: T201 - the figure of the decision record
    assert way == "frees" or waited_s >= 2.0
    assert ('action="checkpointed"' in rendered, 'action="ended"' in rendered) == (way == "to the host", way == "ended")


async def test_memory_that_a_slice_hides_is_waited_for(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """The counters say nothing, and NVML that the process has 300 MiB."""
    a = world.program("a", room_mib=1)
    nvml = NVML.replace(" 4000 ", f" {GPU_MIB} ")
    async with agent(nats, host, **bursting | {"burst_return_s": 60.0}):
        await start(bus, kubelet, granted("a", 64, 300))
        become(host, f"{nvml}process 0 {a.pid} 300\n")
        await arrive(bus, kubelet, granted("b", 256))
        starting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("b")]))
        await eventually(lambda: world.limit_mib("a") == 128)
        become(host, f"{nvml}process 0 {a.pid} 132\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(starting), 0.5)
        become(host, f"{nvml}process 0 {a.pid} 128\n")
        await starting


async def test_a_start_does_not_wait_for_memory_that_is_taken_back_on_another_gpu(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    one = NVML.replace(" 4000 ", f" {GPU_MIB} ")
    line = next(line for line in one.splitlines() if line.startswith("gpu 0 "))
    two = f"{one}{line.replace('gpu 0', 'gpu 1').replace(GPU, OTHER_GPU).replace('01:00', '02:00')}\n"
    x, y = world.program("x"), world.program("y")
    become(host, two)
    async with agent(nats, host, **bursting | {"burst_return_s": 60.0}):
        await start(bus, kubelet, granted("x", 64, 300))
        await start(bus, kubelet, granted("y", 64, 300, gpu=OTHER_GPU))
        become(host, f"{two}process 0 {x.pid} 300\nprocess 1 {y.pid} 300\n")
        await arrive(bus, kubelet, granted("on-x", 256))
        waiting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("on-x")]))
        await eventually(lambda: world.limit_mib("x") == 128)
        await arrive(bus, kubelet, granted("on-y", 256, gpu=OTHER_GPU))
        starting = asyncio.create_task(kubelet.start_container(kubelet.pods[uid("on-y")]))
        await eventually(lambda: world.limit_mib("y") == 128)
        become(host, f"{two}process 0 {x.pid} 300\nprocess 1 {y.pid} 100\n")
        await starting
        assert not waiting.done()
        become(host, two)
        await waiting


async def test_the_memory_of_a_dead_process_has_come_back(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """Its account stays until another process of the container needs it, and none comes."""
    a = world.program("a")
    async with agent(nats, host, **bursting | {"burst_return_s": 60.0}):
        await start(bus, kubelet, granted("a", 64, 300))
        assert a.says("take 300")[0] == 300
        a.process.kill()
        a.process.wait()
        await start(bus, kubelet, granted("b", 256))
        assert world.limit_mib("a") == 128


async def test_a_resumed_pod_gets_its_guarantee_back_before_it_is_told_to_run(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """While it is shrunk, another slice uses what it gave up."""
    shrunk = Suspension(action="shrink", plan_id="p", memory_mib=8)
    a, given = world.program("a"), granted("b", 256)
    async with agent(nats, host, **bursting | {"burst_return_s": 60.0}):
        await start(bus, kubelet, given)
        await start(bus, kubelet, granted("a", 64, 320))
        assert world.limit_mib("a") == 128
        assert (await tell(bus, ordered(given, shrunk, 1))).suspension == shrunk
        await eventually(lambda: world.limit_mib("a") == 320)
        assert a.says("take 320")[0] == 320
        answer = asyncio.create_task(tell(bus, ordered(given, None, 2)))
        await eventually(lambda: world.limit_mib("a") == 128)
        assert (answer.done(), world.limit_mib("b")) == (False, 8)
        assert a.says("free 192")[0] == 128
        assert (await answer).suspension is None
        assert world.limit_mib("b") == 256


async def test_a_pod_that_placement_checkpointed_holds_nothing_and_resumes_when_all_that_it_had_fits(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """Its resumption is answered as soon as its guarantee is there: the host has its memory until the rest is, too."""
    a, given, settings = world.program("a"), granted("a", 64, 300), bursting | {"burst_return_s": 60.0}
    async with agent(nats, host, **settings):
        await start(bus, kubelet, given)
        assert a.says("take 300")[0] == 300
        assert (await tell(bus, ordered(given, CHECKPOINT, 1))).suspension == CHECKPOINT
    async with agent(nats, host, **settings):
        await start(bus, kubelet, granted("c", 128))
        assert (await tell(bus, ordered(given, None, 2))).suspension is None
        assert (world.state(a), orders(host, "a").paused, world.limit_mib("a")) == (CHECKPOINTED, 1, 0)
        c = world.program("c")
        assert c.says("take 128")[0] == 128
        await leave(bus, host, kubelet, c, "c")
        await eventually(lambda: world.state(a) == RUNNING and orders(host, "a").paused == 0)
        assert a.says("look")[0] == 300


async def test_a_pod_that_resumes_is_not_ended_for_memory_that_is_on_the_host(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    a, given = world.program("a"), granted("a", 64, 300)
    async with agent(nats, host, **bursting | {"burst_return_s": 0.2, "burst_return": "evict"}) as ctx:
        await start(bus, kubelet, given)
        assert a.says("take 300")[0] == 300
        assert (await tell(bus, ordered(given, CHECKPOINT, 1))).suspension == CHECKPOINT
        await arrive(bus, kubelet, granted("c", 128))
        assert (await tell(bus, ordered(given, None, 2))).suspension is None
        assert 'action="ended"' not in ctx.metrics.render().decode()
        assert (a.process.poll(), world.state(a)) == (None, CHECKPOINTED)


async def test_no_pod_is_ended_for_its_own_guarantee(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    """Its container starts again, and a process of the pod still has what was lent to it."""
    a = world.program("a")
    async with agent(nats, host, **bursting | {"burst_return_s": 0.2, "burst_return": "evict"}) as ctx:
        await start(bus, kubelet, granted("a", 64, 300))
        assert a.says("take 300")[0] == 300
        await arrive(bus, kubelet, granted("b", 256))
        with pytest.raises(grpc.aio.AioRpcError, match="have not come back yet"):
            await kubelet.start_container(kubelet.pods[uid("a")])
        assert 'action="ended"' not in ctx.metrics.render().decode()
        assert a.says("look")[0] == 300


async def test_no_memory_is_taken_back_for_a_container_that_cannot_start(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    a, given = world.program("a"), granted("b", 256)
    with_card = msgspec.structs.replace(given, grant=msgspec.structs.replace(given.grant, nics=("mlx5_0",)))
    async with agent(nats, host, **bursting | {"burst_return_s": 0.2, "burst_return": "evict"}) as ctx:
        await start(bus, kubelet, granted("a", 64, 300))
        assert a.says("take 300")[0] == 300
        await arrive(bus, kubelet, with_card)
        with pytest.raises(grpc.aio.AioRpcError, match="network card mlx5_0 of the grant is not there"):
            await kubelet.start_container(kubelet.pods[uid("b")])
        assert 'action="ended"' not in ctx.metrics.render().decode()
        assert a.says("look")[0] == 300


async def test_a_start_is_refused_while_nvml_does_not_answer_for_a_gpu_with_lent_memory(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, world: World, bursting: dict[str, Any]
) -> None:
    async with agent(nats, host, **bursting | {"poll_s": 60.0, "health_s": 60.0, "nvml_timeout_s": 0.2}):
        await start(bus, kubelet, granted("a", 64, 300))
        await arrive(bus, kubelet, granted("b", 256))
        become(host, f"{NVML.replace(' 4000 ', f' {GPU_MIB} ')}hang\n")
        with pytest.raises(grpc.aio.AioRpcError, match="does not answer, so the memory that other pods have there"):
            await kubelet.start_container(kubelet.pods[uid("b")])
