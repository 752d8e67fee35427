"""Running slices are resized: all of Kerf on a simulated cluster, a whole agent, and real programs on a fake driver.

Everything runs in one event loop, so what is read between two of its steps is one state: of the control block that was
just written, of the pods' annotations, and of the book.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.up import node_object
from services.admission.service import Admission
from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from services.node_agent.strategies.control_block import ControlBlock, Rules
from services.placement.config import Config as PlacementConfig
from services.placement.service import Placement
from services.simulator.cluster import SimulatedCluster
from services.watcher.config import Config as WatcherConfig
from services.watcher.service import Watcher
from shared.book.book import Book
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Answers, ResizePod, SimAnswer, SimApply
from shared.contracts.queries import ExplainAnswer, WhyQuery
from shared.model import names
from shared.model.grant import Grant, decode_grant
from shared.service import running
from tests.support.enforcement import become, prove
from tests.support.fake_kubelet import FakeKubelet, FakePod
from tests.support.kubelet_agent import agent
from tests.support.native import built
from tests.support.waiting import eventually

GPUS, GPU_MIB, ON_EACH = 8, 2000, 25
PODS = GPUS * ON_EACH
"""200 slices."""
START_MIB, SMALL_MIB, LARGE_MIB = 80, 48, 108
START_MILLI, SMALL_MILLI, LARGE_MILLI = 40, 20, 58


class Program:
    """The process of a pod: it takes and frees memory with the library, within the pod's control block."""

    def __init__(self, world: World, pod: FakePod, gpu: int) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "KERF_FAKE_CUDA": str(world.host / f"world-{gpu}"),
            "KERF_FAKE_CUDA_MIB": str(GPU_MIB),
            "KERF_FAKE_CUDA_DEVICES": str(GPUS),
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "KERF_TEST_DRIVER": str(world.build / "libcuda.so.1"),
            "LD_LIBRARY_PATH": str(world.build),
            "LD_PRELOAD": str(world.build / "test" / "libkerf.so"),
            "KERF_DIRECTORY": str(world.host / "run" / "slices" / f"{pod.uid}-main"),
        }
        self.process = subprocess.Popen(
            [built("programs") / "lends"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, line: str) -> tuple[int, int, int]:
        """What it has then, and what it sees as free and as the size of the GPU, in MiB."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        held, free, total = map(int, self.process.stdout.readline().split())
        return held, free, total


class World:
    """A cluster of one node, its pods and their programs; and the auditor."""

    def __init__(self, host: Path, build: Path, kubelet: FakeKubelet, bus: NatsBus) -> None:
        self.host, self.build, self.kubelet, self.bus = host, build, kubelet, bus
        self.cluster: SimulatedCluster
        self.placement: Placement
        self.programs: dict[str, Program] = {}
        self.owners: dict[int, Owner] = {}
        self.limits: dict[str, tuple[str, int, int]] = {}
        """By pod uid: the GPU, and the MiB and milli that its control block has."""
        self.kubelet_pods: dict[str, FakePod] = {}
        self.writes = self.amendments = 0
        self.violations: list[str] = []

    # --- the user ---------------------------------------------------------------------------------------------

    async def apply(self, *objects: dict[str, Any]) -> None:
        order = SimApply(objects=tuple(msgspec.Raw(msgspec.json.encode(one)) for one in objects))
        answer = decode(await self.bus.request(subjects.SIM_APPLY, encode(order), timeout_s=30.0), SimAnswer)
        assert not answer.refusals

    async def resize(self, name: str, text: str) -> None:
        order = ResizePod(namespace="default", name=name, resize=text)
        answers = decode(await self.bus.request(subjects.CMD_RESIZE, encode(order), timeout_s=30.0), Answers)
        assert [answer.outcome for answer in answers.answers] == ["done"]

    async def explained(self, name: str) -> Any:
        query = encode(WhyQuery(namespace="default", name=name))
        answer = decode(await self.bus.request(queries.WHY.subject, query, timeout_s=30.0), ExplainAnswer)
        assert answer.explanation is not None
        return answer.explanation.resize

    def pod(self, name: str) -> dict[str, Any]:
        found = self.cluster.get("Pod", name, "default")
        assert found is not None
        return found

    def grant(self, name: str) -> Grant:
        return decode_grant(self.pod(name)["metadata"]["annotations"][names.ANNOTATION_GRANT])

    def bound(self, name: str) -> bool:
        return bool(self.pod(name)["spec"].get("nodeName"))

    # --- the kubelet ------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        meta = self.pod(name)["metadata"]
        ((share,),) = (part.gpus for part in self.grant(name).containers.values())
        gpu = int(share.uuid[-2:], 16) - 1
        one = self.kubelet_pods[name] = FakePod(uid=meta["uid"], namespace="default", name=name)
        await self.kubelet.admit(one)
        at = self.host / "cgroup" / "kubepods" / f"pod{one.uid}"
        (at / "main").mkdir(parents=True)
        await self.kubelet.starts(one)
        program = self.programs[name] = Program(self, one, gpu)
        self.owners[program.process.pid] = Owner(one.uid, "f" * 64)
        for folder, pids in ((at, ""), (at / "main", f"{program.process.pid}\n")):
            (folder / "cgroup.procs").write_text(pids)

    # --- the auditor ------------------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        session = self.placement._session_now
        assert session is not None
        return session.core.book

    def wrote(self, block: ControlBlock) -> None:
        """A control block was written: no device has been given more than it has, and no slice more than its grant."""
        uid = block.folder.name.removesuffix("-main")
        (gpu,) = block.rules.gpus if block.rules is not None else ()
        self.writes += 1
        limit_mib = block.limit_bytes(gpu.uuid) >> 20
        self.limits[uid] = gpu.uuid, limit_mib, gpu.compute_milli
        of_gpu = [(mib, milli) for uuid, mib, milli in self.limits.values() if uuid == gpu.uuid]
        self._must(sum(mib for mib, _ in of_gpu) <= GPU_MIB, f"the memory of {gpu.uuid} is given twice")
        self._must(sum(milli for _, milli in of_gpu) <= 1000, f"the time of {gpu.uuid} is given twice")
        name = next(name for name, pod in self.kubelet_pods.items() if pod.uid == uid)
        granted = self.grant(name).containers["main"].gpus[0]
        self._must(limit_mib <= granted.memory_mib, f"{name} may use {limit_mib} of {granted.memory_mib} MiB")
        self._must(gpu.compute_milli <= granted.compute_milli, f"{name} may use more time than it has")

    def amended(self, name: str) -> None:
        """A grant was amended: the book counts at least as much."""
        granted = self.grant(name).containers["main"].gpus[0]
        held = self.book.grants[self.grant(name).grant_id].grant.containers["main"].gpus[0]
        self.amendments += 1
        self._must(held.memory_mib >= granted.memory_mib, f"{name} has more memory than is booked")
        self._must(held.compute_milli >= granted.compute_milli, f"{name} has more time than is booked")

    def _must(self, holds: bool, otherwise: str) -> None:
        """What is found in a service's task would end that service alone: the test looks at it in the end."""
        if not holds:
            self.violations.append(otherwise)

    def exact(self, name: str, memory_mib: int, compute_milli: int) -> bool:
        """By the book, the annotation, the control block and the program."""
        share = self.grant(name).containers["main"].gpus[0]
        held = self.book.grants[self.grant(name).grant_id].grant.containers["main"].gpus[0]
        return (
            (share.memory_mib, share.compute_milli)
            == (held.memory_mib, held.compute_milli)
            == self.limits[self.pod(name)["metadata"]["uid"]][1:]
            == (memory_mib, compute_milli)
        )


@pytest.fixture
async def world(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[World]:
    made = World(host, build, kubelet, bus)
    become(
        host,
        "driver 580.1\n"
        + "".join(
            f"gpu {i} GPU-00000000-0000-0000-0000-0000000000{i + 1:02x} NVIDIA_H200 {GPU_MIB} "
            f"00000000:{i + 1:02x}:00.0 0 9 0 0 0\n"
            for i in range(GPUS)
        ),
    )
    prove(host, build)
    monkeypatch.setattr(monitor, "NvmlDevices", functools.partial(NvmlDevices, owner=made.owners.get))
    write, patch = ControlBlock.write, SimulatedCluster.patch

    def audited(block: ControlBlock, rules: Rules, **costs: Any) -> None:
        before = block.rules
        write(block, rules, **costs)
        if block.rules is not before:  # rules that are as they were are not written
            made.wrote(block)

    def noted(cluster: SimulatedCluster, kind: str, namespace: str, name: str, body: dict[str, Any], **how: Any) -> Any:
        reply = patch(cluster, kind, namespace, name, body, **how)
        if reply[0] == 200 and names.ANNOTATION_GRANT in (body.get("metadata", {}).get("annotations") or {}):
            made.amended(name)
        return reply

    monkeypatch.setattr(ControlBlock, "write", audited)
    monkeypatch.setattr(SimulatedCluster, "patch", noted)

    class KnownPlacement(Placement):
        async def start(self, ctx: Any) -> None:
            made.placement = self
            await super().start(ctx)

    class KnownWatcher(Watcher):
        async def start(self, ctx: Any) -> None:
            await super().start(ctx)
            made.cluster = self.source.cluster  # type: ignore[attr-defined]

    (host / "cgroup" / "kubepods").mkdir(parents=True)
    (host / "cgroup" / "cgroup.procs").touch()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(
            running(KnownPlacement, PlacementConfig(resize_beyond_request=True), bus_url=nats.url)
        )
        admission = await stack.enter_async_context(
            running(Admission, Admission.config_type(host="127.0.0.1", port=0), bus_url=nats.url)
        )
        port = admission.health.report()["parts"]["webhook"]["detail"].removeprefix("port ")
        url = f"http://127.0.0.1:{port}/mutate"
        await stack.enter_async_context(
            running(KnownWatcher, WatcherConfig(source="simulated", admission_url=url), bus_url=nats.url)
        )
        await stack.enter_async_context(agent(nats, host, **settings | {"slots": PODS, "usage_s": 60.0}))
        await eventually(lambda: made.placement._session_now is not None)
        await made.apply(node_object({"name": "n1"}))
        await kubelet.sees_slots()
        yield made
        assert made.violations == []
        for program in made.programs.values():
            program.process.kill()
            program.process.communicate()


def manifest(name: str) -> dict[str, Any]:
    limits = {names.RESOURCE_GPU_MEMORY: f"{START_MIB}Mi", names.RESOURCE_GPU_COMPUTE: str(START_MILLI // 10)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {names.ANNOTATION_ISOLATION: "firm"},
        },
        "spec": {
            "schedulerName": "kerf",
            "containers": [{"name": "main", "image": "example", "resources": {"limits": limits}}],
        },
    }


async def run(world: World, *pods: dict[str, Any]) -> None:
    await world.apply(*pods)
    started = [pod["metadata"]["name"] for pod in pods]
    await eventually(lambda: all(map(world.bound, started)), within_s=60, what="all are bound")
    for name in started:
        await world.start(name)


async def test_200_running_slices_are_resized_up_and_down_without_a_restart_and_never_beyond_the_device(
    world: World,
) -> None:
    """Each device is full at first: 25 slices of 80 MiB and 4 % on 2000 MiB. Half of them shrink so that the others can
    grow, and then the other way round, while their programs run. With -s it prints what was audited."""
    pods = [f"p{number}" for number in range(PODS)]
    await run(world, *map(manifest, pods))
    begun = {name: program.process.pid for name, program in world.programs.items()}
    on: dict[str, list[str]] = {}
    for name in pods:
        on.setdefault(world.grant(name).containers["main"].gpus[0].uuid, []).append(name)
    assert {len(of) for of in on.values()} == {ON_EACH}
    for program in world.programs.values():
        assert program.says("take 24") == (24, START_MIB - 24, START_MIB)
    ones = {name for of in on.values() for name in of[::2]}
    others = set(pods) - ones
    for small, large in ((ones, others), (others, ones)):
        changes = [(name, LARGE_MIB, LARGE_MILLI) for name in large]
        changes += [(name, SMALL_MIB, SMALL_MILLI) for name in small]
        for name, memory_mib, milli in changes:
            await world.resize(name, f"memory={memory_mib}Mi,compute={milli / 10:g}")
        for name, memory_mib, milli in changes:
            await eventually(
                functools.partial(world.exact, name, memory_mib, milli), within_s=180, what=f"{name} has {memory_mib}"
            )
        for name, memory_mib, _ in changes:
            assert world.programs[name].says("look") == (24, memory_mib - 24, memory_mib)
    for name in others:
        assert world.programs[name].says("take 200")[0] == SMALL_MIB, "no byte more than the smaller limit"
    for name in ones:
        assert world.programs[name].says("take 200")[0] == LARGE_MIB
    assert {name: program.process.pid for name, program in world.programs.items()} == begun
    assert all(program.process.poll() is None for program in world.programs.values())
    assert world.violations == []
    print(  # noqa: T201 - the figures of the decision record
        f"{PODS} slices on {GPUS} GPUs of {GPU_MIB} MiB: {world.amendments} amendments and {world.writes} writes of "
        "control blocks audited"
    )


async def test_memory_that_a_program_uses_is_not_taken_until_it_frees_it(world: World) -> None:
    await run(world, manifest("p"))
    assert world.programs["p"].says("take 60")[0] == 60
    await world.resize("p", "memory=32Mi")

    async def refused() -> bool:
        found = await world.explained("p")
        return found is not None and "has allocated 60 MiB" in found.sentence

    await eventually(refused)
    assert world.exact("p", START_MIB, START_MILLI)
    assert world.programs["p"].says("take 40")[0] == START_MIB, "all of its slice is still there"
    assert world.programs["p"].says("free 56")[0] == 24
    await eventually(lambda: world.exact("p", 32, START_MILLI), within_s=30)
    assert world.programs["p"].says("look") == (24, 8, 32)
