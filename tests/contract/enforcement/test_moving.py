"""A pod whose memory comes back to another GPU of its node, on a whole agent: fake driver, real interposer, programs.

The driver's rules are in `tests/interposer/test_moving.py`, with their sources.
"""

from __future__ import annotations

import functools
import json
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
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant, NodeSync, NodeSyncAnswer
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension
from shared.model.turn_terms import TurnTerms
from tests.contract.enforcement.test_suspension import CHECKPOINT, say
from tests.support.enforcement import control_block, orders, prove
from tests.support.evictions import evictions
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.native import built
from tests.support.waiting import eventually
from tests.unit.services.node_agent.strategies.test_host_memory import cgroup

GPUS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(1, 4))
A, B, C = GPUS
NVML = "driver 580.65.06\n" + "".join(
    f"gpu {index} {uuid} NVIDIA_H200 4000 00000000:0{index + 1}:00.0 {index} 9 0 0 0\n"
    for index, uuid in enumerate(GPUS)
)
STEPS = 5


@pytest.fixture
def settings(settings: dict[str, Any], host: Path, build: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    prove(host, build, driver_version="580.65.06")
    (host / "nvml").write_text(NVML)
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_DEVICES", "3")
    monkeypatch.setenv("KERF_FAKE_CUDA_MIB", "100")
    return {**settings, "rehearse_after_s": 0.05, "turns_on_any_gpu": True}


class Program:
    """A program in a container's slice: it computes on 64 MiB when it is told to."""

    def __init__(self, host: Path, build: Path, name: str, **environment: str) -> None:
        inside = {
            "KERF_DIRECTORY": str(control_block(host, name)),
            "LD_PRELOAD": str(build / "test" / "libkerf.so"),
            "LD_LIBRARY_PATH": str(build),
            "KERF_TEST_DRIVER": str(build / "libcuda.so.1"),
        }
        self.process = subprocess.Popen(
            [str(built("programs") / "stays"), "0", "64", str(STEPS)],
            env=dict(os.environ) | inside | environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n"
        folder = host / "cgroup"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
        cgroup(folder / "kubepods" / f"pod{uid(name)}" / "main", pids=f"{self.process.pid}\n")
        cgroup(folder / "kubepods" / f"pod{uid(name)}")

    def goes_on(self) -> tuple[str, int]:
        """The GPU that it says it is on, and its result so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        gpu, word, got = map(int, self.process.stdout.readline().split())
        assert got == 0, "it has all that its limit allows"
        return GPUS[gpu - 1], word


@pytest.fixture
def program(host: Path, build: Path, settings: dict[str, Any]) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def start(name: str, **environment: str) -> Program:
        made.append(Program(host, build, name, **environment))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


def beside(settings: dict[str, Any]) -> subprocess.Popen[str]:
    """A process of nobody, with 90 of the second GPU's 100 MiB."""
    found = {"LD_LIBRARY_PATH": settings["interposer_dir"], "KERF_TEST_DRIVER": settings["libcuda"]}
    process = subprocess.Popen(
        [str(built("programs") / "stays"), "1", "90", "1"],
        env=dict(os.environ) | found, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def result(rounds: int) -> int:
    word = 7
    for number in range(rounds * STEPS):
        word = (word * 6364136223846793005 + number) % (1 << 64)
    return word


def grant(
    name: str,
    uuid: str,
    suspension: Suspension | None = None,
    *,
    amendment: int = 0,
    any_gpu: bool = True,
    rehearse: bool = False,
) -> NodeGrant:
    share = GpuShare(node="n1", uuid=uuid, memory_mib=64, compute_milli=600)
    made = Grant(
        grant_id=f"g-{name}",
        term=1,
        containers={"main": ContainerGrant(strategy="interposer", gpus=(share,))},
        amendment=amendment,
        any_gpu=any_gpu,
    )
    turns = TurnTerms(rehearse=rehearse)
    return NodeGrant(term=1, uid=uid(name), namespace="team", name=name, grant=made, suspension=suspension, turns=turns)


async def started(bus: NatsBus, kubelet: FakeKubelet, sent: NodeGrant) -> str:
    await kubelet.sees_slots()
    assert (await say(bus, sent)).ok
    one = pod(sent.name)
    await kubelet.admit(one)
    return await kubelet.start_container(one)


async def back(bus: NatsBus, sent: NodeGrant) -> Accepted:
    """Orders a pod to resume, and returns the answer when all of it is back.

    The first attempt may find something on the other GPU: the agent measures how fast an idle one copies.
    """

    async def whole() -> Accepted | None:
        answer = await say(bus, sent)
        return answer if answer.whole else None

    found: Accepted = await eventually(whole, within_s=30)
    return found


async def test_a_node_says_that_it_can_move_pods_unless_it_is_set_not_to(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any]
) -> None:
    async def told() -> bool | None:
        entry = await bus.kv(subjects.KV_NODES).get("n1")
        return None if entry.value is None else decode(entry.value, Inventory).any_gpu

    async with agent(nats, host, **settings):
        await eventually(told)
    async with agent(nats, host, **settings | {"turns_on_any_gpu": False}):
        await eventually(lambda: _is(told, expected=False))


async def _is(told: Callable[[], Any], *, expected: bool) -> bool:
    return await told() is expected


async def test_a_checkpointed_pod_comes_back_to_another_gpu_with_its_memory_its_limit_and_its_result(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    program: Callable[..., Program],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A))
        low = program("low")
        assert low.goes_on() == (A, result(1))
        assert (await say(bus, grant("low", A, CHECKPOINT))).suspension == CHECKPOINT
        await started(bus, kubelet, grant("high", A, any_gpu=False))
        high = program("high")
        assert high.goes_on() == (A, result(1))
        answer = await back(bus, grant("low", B, amendment=1))
        assert (answer.ok, answer.reason, answer.amendment, answer.whole) == (True, "", 1, True)
        assert low.goes_on() == (B, result(2))
        assert high.goes_on() == (A, result(2))
        found = orders(host, "low")
        assert (found.gpu[0].uuid[15], found.gpu[0].memory_limit_bytes, found.hides_others) == (2, 64 << 20, 1)
        assert (await say(bus, grant("low", B, CHECKPOINT, amendment=1))).suspension == CHECKPOINT
        answer = await back(bus, grant("low", C, amendment=2))
        assert (answer.amendment, answer.whole, low.goes_on()) == (2, True, (C, result(3)))


async def test_a_restore_that_the_driver_refuses_leaves_the_memory_on_the_host_and_is_tried_again_after_a_restart(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    program: Callable[..., Program],
) -> None:
    """Another process has the memory of the other GPU: not one of the node's slices."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A))
        low = program("low")
        low.goes_on()
        await say(bus, grant("low", A, CHECKPOINT))
        foreign = beside(settings)
        answer = await say(bus, grant("low", B, amendment=1))
        assert (answer.ok, answer.amendment, answer.whole) == (False, 0, False)
        assert "answers 1 to the restoring" in answer.reason
        assert orders(host, "low").gpu[0].uuid[15] == 1
    async with agent(nats, host, **settings):
        sync = NodeSync(term=1, number=1, node="n1", grants=(grant("low", B, amendment=1),))
        told = decode(await bus.request(subjects.node_command("n1", "sync"), encode(sync)), NodeSyncAnswer)
        assert (told.amendments, told.on_host) == ({}, ("g-low",))
        foreign.kill()
        foreign.communicate()
        await eventually(lambda: orders(host, "low").gpu[0].uuid[15] == 2)
        assert low.goes_on() == (B, result(2))


async def test_an_agent_that_dies_after_the_driver_has_moved_a_process_goes_on_with_it(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    program: Callable[..., Program],
) -> None:
    """What it leaves: the order on its disk, the pod's slice still on the first GPU, its process on the second one."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A))
        low = program("low")
        low.goes_on()
        await say(bus, grant("low", A, CHECKPOINT))
    before = (host / "state" / "agent.json").read_bytes()
    async with agent(nats, host, **settings):
        assert (await say(bus, grant("low", B, amendment=1))).amendment == 1
    after = json.loads((host / "state" / "agent.json").read_bytes())
    (known,) = json.loads(before)["known"]
    (now,) = after["known"]
    left = now | {"in_force": known["grant"]["grant"], "on_host": True}
    (host / "state" / "agent.json").write_text(json.dumps(after | {"known": [left]}))
    async with agent(nats, host, **settings):
        await eventually(lambda: orders(host, "low").gpu[0].uuid[15] == 2 and not orders(host, "low").paused)
        assert low.goes_on() == (B, result(2))


@pytest.mark.parametrize(("version", "visible"), [("13000", ""), ("12090", ""), ("13000", "0,1,2")])
async def test_a_rehearsal_tells_whether_a_program_could_come_back_to_another_gpu(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    program: Callable[..., Program],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    visible: str,
) -> None:
    monkeypatch.setenv("KERF_FAKE_CUDA_VERSION", version)
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", A, rehearse=True))
        low = program("low", **({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
        await eventually(lambda: b'"rehearsed":true' in (host / "state" / "agent.json").read_bytes())
        answer = await say(bus, grant("low", A, CHECKPOINT, rehearse=True))
        assert (answer.suspension, answer.cannot_checkpoint) == (CHECKPOINT, "")
        assert bool(answer.cannot_move) == (version == "12090" or visible != "")
        if answer.cannot_move:
            assert ("CUDA_VISIBLE_DEVICES" in answer.cannot_move) == (visible != "")
            refused = await say(bus, grant("low", B, amendment=1, rehearse=True))
            assert (refused.ok, refused.amendment, refused.suspension) == (False, 0, CHECKPOINT)
            assert "come back to their own GPUs alone" in refused.not_resized
        assert (await say(bus, grant("low", A, rehearse=True))).whole
        assert low.goes_on() == (A, result(1))


async def test_a_process_on_a_hidden_gpu_is_seen_by_nvml_whatever_it_has_there(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has made its calls without the interposer. All other tolerances are for processes that may be on their GPU."""
    monkeypatch.setattr(
        monitor, "NvmlDevices", functools.partial(NvmlDevices, owner={4711: Owner(uid("low"), "f" * 64)}.get)
    )
    asked = await evictions(bus)
    async with agent(nats, host, **(settings | {"escape_slack_mib": 512, "escapes": "evict"})):
        await started(bus, kubelet, grant("low", A))
        (host / "nvml").write_text(NVML + "process 1 4711 2\n")
        await eventually(lambda: asked)
    assert f"holds 2 MiB on GPU {B}" in asked[0].reason
