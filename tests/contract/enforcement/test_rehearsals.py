"""Rehearsals on a whole agent, with a real process on the fake driver: is a pod known to be checkpointable in time?

NVIDIA names what cannot be checkpointed: memory shared with other processes and managed memory, up to driver r570
(NVIDIA/cuda-checkpoint, README.md, "Functionality").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceImpaired
from shared.contracts.node_commands import NodeGrant, NodeSync, NodeSyncAnswer
from shared.model.turn_terms import TurnTerms
from tests.contract.enforcement.test_suspension import CHECKPOINT, Low, grant, say, started
from tests.support.enforcement import count, orders, prove
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent
from tests.support.waiting import eventually
from tests.unit.services.node_agent.cdi.hosts import VERSION, FakeHost

SHARES = (
    "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); p = ctypes.c_uint64(); c = ctypes.c_void_p(); "
    "h = ctypes.create_string_buffer(64); d.cuInit(0); d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); "
    "d.cuCtxSetCurrent(c); d.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20)); "
    "d.cuIpcGetMemHandle(h, p); print('begun', flush=True); input()"
)
"""A program that shares memory with other processes."""


@pytest.fixture(autouse=True)
def proven(host: Path, build: Path) -> None:
    prove(host, build)


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "rehearse_after_s": 0.05}


@pytest.fixture
def world(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_MIB", "100")
    monkeypatch.setenv("KERF_FAKE_CUDA_CONTEXT_MIB", "64")


@pytest.fixture
def low(host: Path, world: None, build: Path) -> Iterator[Callable[[str], Low]]:
    made: list[Low] = []

    def start(script: str) -> Low:
        made.append(Low(host, str(build / "libcuda.so.1"), script=script))
        return made[0]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
async def impaired(bus: NatsBus) -> list[SliceImpaired]:
    heard: list[SliceImpaired] = []

    async def ear(incoming: Incoming) -> None:
        _, event = unwrap(incoming.payload)
        assert isinstance(event, SliceImpaired)
        heard.append(event)

    await bus.subscribe(subjects.event_in_namespace("slice", "impaired", "team"), ear)
    return heard


def takes_turns(name: str, *more: Any, term: int = 1) -> NodeGrant:
    made = grant(name, *more, term=term, compute_milli=0, strategy="time_slice")
    return msgspec.structs.replace(made, turns=TurnTerms(rehearse=True))


async def told(bus: NatsBus, term: int) -> NodeSyncAnswer:
    sync = NodeSync(term=term, node="n1", grants=(takes_turns("low", term=term),))
    return decode(await bus.request(subjects.node_command("n1", "sync"), encode(sync)), NodeSyncAnswer)


async def test_a_program_that_shares_memory_is_excluded_from_turns_and_goes_on(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    low: Callable[[str], Low],
    impaired: list[SliceImpaired],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, takes_turns("low"))
        program = low(SHARES)
        count(host, "low", 1)
        await eventually(lambda: impaired)
        assert (impaired[0].reason, impaired[0].name) == ("cannot-checkpoint", "low")
        assert "the driver answers 801 to the checkpoint" in impaired[0].sentence
        assert (program.state, orders(host, "low").paused) == (0, 0)
        assert "801" in (await told(bus, 2)).cannot_checkpoint["g-low"]
        answer = await say(bus, takes_turns("low", CHECKPOINT, term=2))
        assert (answer.suspension, program.state) == (None, 0)
        assert answer.reason.startswith("its programs cannot be checkpointed: the driver answers 801")
    assert len(impaired) == 1


async def test_a_program_that_can_be_checkpointed_has_been_on_the_host_once_and_has_all_its_memory(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    low: Callable[[str], Low],
    impaired: list[SliceImpaired],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERF_FAKE_CUDA_CHECKPOINT_US", "1000")
    async with agent(nats, host, **settings):
        await started(bus, kubelet, takes_turns("low"))
        program = low("")
        count(host, "low", 64)
        # noted on disk when it is over
        await eventually(lambda: b'"rehearsed":true' in (host / "state" / "agent.json").read_bytes())
        assert (program.state, program.mib_on_gpu, orders(host, "low").paused) == (0, 64, 0)
        assert orders(host, "low").gpu[0].memory_limit_bytes == 64 << 20
        assert (await say(bus, takes_turns("low", CHECKPOINT))).suspension == CHECKPOINT
        assert (await told(bus, 2)).cannot_checkpoint == {}
    assert impaired == []


async def test_a_driver_that_is_loaded_after_the_agent_has_begun_checkpoints(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    build: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    low: Callable[[str], Low],
    impaired: list[SliceImpaired],
) -> None:
    (host / "proc/driver/nvidia/version").unlink()
    async with agent(nats, host, **settings | {"libcuda": ""}):
        FakeHost(host).module()
        (host / "usr/lib64").mkdir(parents=True)
        (host / f"usr/lib64/libcuda.so.{VERSION}").symlink_to(build / "libcuda.so.1")
        await started(bus, kubelet, takes_turns("low"))
        program = low("")
        count(host, "low", 64)
        await eventually(lambda: b'"rehearsed":true' in (host / "state" / "agent.json").read_bytes())
        assert (program.state, program.mib_on_gpu) == (0, 64)
    assert impaired == []
