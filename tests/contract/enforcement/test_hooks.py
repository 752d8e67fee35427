"""Programs that sleep by themselves, on a whole agent: real servers, real signals, memory counted by the interposer."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.node_agent.strategies import hooks
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts.node_commands import NodeGrant
from shared.model.suspension import Suspension
from shared.model.turn_terms import HttpHook, SignalHook, SuspendHook, TurnTerms
from tests.contract.enforcement.test_suspension import CHECKPOINT, PAUSE, grant, say, started
from tests.support.enforcement import control_block, orders, prove
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, uid

MIB = 48
SLEEPER = Path(__file__).with_name("sleeper.py")


@pytest.fixture(autouse=True)
def proven(host: Path, build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(host, build)
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    monkeypatch.setenv("KERF_FAKE_CUDA_MIB", "100")
    monkeypatch.setattr(hooks, "KEPT_BYTES", 1 << 20)
    (host / "cgroup").mkdir(exist_ok=True)
    (host / "cgroup" / "cgroup.procs").touch()


@pytest.fixture
def sleeper(host: Path, build: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts the program in the container's slice; returns it, and what it printed first."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], str]:
        inside = {
            "LD_PRELOAD": str(build / "test" / "libkerf.so"),
            "KERF_DIRECTORY": str(control_block(host, "low")),
        }
        command = [sys.executable, str(SLEEPER), str(build / "libcuda.so.1"), words[0], words[1], str(MIB), *words[2:]]
        process = subprocess.Popen(command, env=os.environ | inside, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        for folder, pids in ((f"pod{uid('low')}", ""), (f"pod{uid('low')}/main", f"{process.pid}\n")):
            at = host / "cgroup" / "kubepods" / folder
            at.mkdir(parents=True, exist_ok=True)
            (at / "cgroup.procs").write_text(pids)
            (at / "memory.max").write_text("max\n")
            (at / "memory.current").write_text("0\n")
        return process, said

    yield start
    for process in running:
        process.kill()
        process.communicate()


def with_hook(hook: SuspendHook, suspension: Suspension | None = None) -> NodeGrant:
    made = grant("low", suspension, compute_milli=0, strategy="time_slice")
    return msgspec.structs.replace(made, turns=TurnTerms(hook=hook), number=1)


def vllm(port: str) -> HttpHook:
    return HttpHook(sleep_port=int(port), sleep_path="/sleep?level=1", wake_port=int(port), wake_path="/wake_up")


def is_sleeping(port: str) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/is_sleeping") as answer:
        return bool(answer.read() == b'{"is_sleeping":true}')


def counted_mib(host: Path) -> int:
    with (control_block(host, "low") / "counters").open("rb") as file:
        file.seek(4096)
        return (int.from_bytes(file.read(8), "little") & ((1 << 48) - 1)) >> 20


async def test_vllms_endpoints_are_called_before_the_checkpoint_and_after_the_restore(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    sleeper: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=0, strategy="time_slice"))
        _, port = sleeper("http", "0")
        assert (is_sleeping(port), counted_mib(host)) == (False, MIB)
        answer = await say(bus, with_hook(vllm(port), CHECKPOINT))
        assert (answer.reason, answer.suspension) == ("", CHECKPOINT)
        assert (is_sleeping(port), counted_mib(host), orders(host, "low").paused) == (True, 0, 1)
        assert (await say(bus, with_hook(vllm(port)))).suspension is None
        assert (is_sleeping(port), counted_mib(host), orders(host, "low").paused) == (False, MIB, 0)


async def test_a_signal_and_a_file_do_the_same(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    sleeper: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    file = host / "slept"
    hook = SignalHook(signal="SIGUSR1", file=str(file))
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=0, strategy="time_slice"))
        assert sleeper("signal", str(file))[1] == "begun"
        assert (await say(bus, with_hook(hook, CHECKPOINT))).suspension == CHECKPOINT
        assert (file.exists(), counted_mib(host)) == (True, 0)
        assert (await say(bus, with_hook(hook))).suspension is None
        assert (file.exists(), counted_mib(host)) == (False, MIB)


async def test_a_program_that_keeps_its_memory_is_woken_up_and_not_suspended(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    sleeper: Callable[..., tuple[subprocess.Popen[str], str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hooks.Hooks.__init__, "__kwdefaults__", {"slept_s": 0.3})
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=0, strategy="time_slice"))
        _, port = sleeper("http", "0", "stubborn")
        answer = await say(bus, with_hook(vllm(port), CHECKPOINT))
        assert answer.suspension is None
        assert f"{MIB} MiB are still on its GPUs" in answer.reason
        assert (is_sleeping(port), orders(host, "low").paused) == (False, 0)


async def test_a_server_that_does_not_know_the_path_is_named(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    sleeper: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    """vLLM has the endpoints only with VLLM_SERVER_DEV_MODE=1."""
    async with agent(nats, host, **settings):
        await started(bus, kubelet, grant("low", compute_milli=0, strategy="time_slice"))
        _, port = sleeper("http", "0")
        hook = msgspec.structs.replace(vllm(port), sleep_path="/other")
        answer = await say(bus, with_hook(hook, CHECKPOINT))
        assert (answer.suspension, is_sleeping(port)) == (None, False)
        assert f"answered to POST :{port}/other with 404" in answer.reason


async def test_a_server_that_does_not_answer_keeps_no_other_pod_waiting(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    sleeper: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        async with agent(nats, host, **settings):
            await started(bus, kubelet, grant("low", compute_milli=0, strategy="time_slice"))
            other = msgspec.structs.replace(grant("other", compute_milli=300), number=1)
            await started(bus, kubelet, other)
            sleeper("signal", str(host / "slept"))
            hook = vllm(str(silent.getsockname()[1]))
            asked = asyncio.create_task(say(bus, with_hook(hook, CHECKPOINT)))
            first, _ = await asyncio.get_running_loop().sock_accept(silent)
            answer = await say(bus, msgspec.structs.replace(other, suspension=PAUSE, number=2))
            assert (answer.suspension, asked.done()) == (PAUSE, False)
            first.close()
            silent.close()
            refused = await asked
            assert (refused.suspension, orders(host, "low").paused) == (None, 0)
            assert "no answer" in refused.reason
