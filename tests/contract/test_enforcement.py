"""Slices that hold, from the grant to the page: a whole agent over real gRPC and NATS, the fake NVML and the fake driver."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from services.node_agent.canary.keeper import LIBRARY, _digest
from services.node_agent.canary.verdict import Proof
from services.node_agent.devices import watch
from services.node_agent.devices.cgroups import Owner
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.strategies import layout
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Accepted, Answers, Evict, EvictBatch, NodeGrant, NodeRelease
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceEnforced
from shared.contracts.samples import SliceUse, UsageSample
from shared.model.gpu import Inventory, Strategy
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.native import enforcement_built
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
GPU = "GPU-00000000-0000-0000-0000-000000000001"
NVML = f"driver 580.1\ngpu 0 {GPU} NVIDIA_H200 4000 00000000:01:00.0 0 9 0 0 0\n"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return enforcement_built(tmp_path_factory.mktemp("interposer"))


@pytest.fixture
def settings(host: Path, build: Path) -> dict[str, Any]:
    become(host, NVML)
    return {"interposer_dir": str(build), "libcuda": str(build / "libcuda.so.1"), "poll_s": 0.1, "usage_s": 0.05, "escape_slack_mib": 0}


@pytest.fixture
def proven(host: Path, build: Path) -> None:
    prove(host, build)


def become(host: Path, text: str) -> None:
    (host / "new").write_text(text)
    (host / "new").replace(host / "nvml")


def prove(host: Path, build: Path, **changes: Any) -> None:
    proof = Proof(driver_version="580.1", library=_digest(build / LIBRARY), ok=True)
    (host / "state").mkdir(exist_ok=True)
    (host / "state" / "canary.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(proof, **changes)))


async def give(
    bus: NatsBus, name: str, memory_mib: int = 64, compute_milli: int = 300, strategy: Strategy = "interposer", **more: Any
) -> None:
    share = GpuShare(node="n1", uuid=GPU, memory_mib=memory_mib, compute_milli=compute_milli)
    grant = Grant(grant_id=f"g-{name}", term=1, containers={"main": ContainerGrant(strategy=strategy, gpus=(share,))}, **more)
    sent = NodeGrant(term=1, uid=uid(name), namespace="team", name=name, grant=grant)
    assert decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent)), Accepted).ok


async def started(bus: NatsBus, kubelet: FakeKubelet, name: str, **how: Any) -> str:
    await kubelet.sees_slots()
    await give(bus, name, **how)
    one = pod(name)
    await kubelet.admit(one)
    return await kubelet.start_container(one)


def page(host: Path, name: str) -> Path:
    return host / "run" / "slices" / f"{uid(name)}-main"


def orders(host: Path, name: str) -> layout.Orders:
    return layout.Orders.from_buffer_copy((page(host, name) / "orders").read_bytes())


def mounts(host: Path, cdi_name: str) -> dict[str, dict[str, Any]]:
    specs = [json.loads(path.read_text()) for path in (host / "cdi").glob("*.json")]
    (edits,) = [device["containerEdits"] for spec in specs for device in spec["devices"] if cdi_name.endswith(f"={device['name']}")]
    return {mount["containerPath"]: mount for mount in edits.get("mounts", ())}


def preloads(found: dict[str, dict[str, Any]]) -> str:
    assert all(Path(mount["hostPath"]).exists() for mount in found.values())
    return Path(found["/etc/ld.so.preload"]["hostPath"]).read_text()


async def offered(bus: NatsBus) -> tuple[str, ...]:
    entry = await bus.kv(subjects.KV_NODES).get("n1")
    return () if entry.value is None else decode(entry.value, Inventory).strategies


async def test_a_container_gets_the_library_its_page_and_no_way_to_write_its_limits(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    heard: list[SliceEnforced] = []

    async def ear(incoming: Incoming) -> None:
        event = unwrap(incoming.payload)[1]
        assert isinstance(event, SliceEnforced)
        heard.append(event)

    await bus.subscribe(subjects.event_in_namespace("slice", "enforced", "team"), ear)
    async with agent(nats, host, **settings):
        found = mounts(host, await started(bus, kubelet, "a"))
        assert set(found) == {f"/run/kerf/{name}" for name in ("libkerf.so", "orders", "counters", "signal", "peers")} | {
            "/etc/ld.so.preload"
        }
        assert [path for path, mount in sorted(found.items()) if "ro" not in mount["options"]] == ["/run/kerf/counters", "/run/kerf/signal"]
        assert preloads(found) == "/run/kerf/libkerf.so\n"
        said = orders(host, "a")
        assert (said.gpu_count, said.gpu[0].memory_limit_bytes, said.gpu[0].compute_milli) == (1, 64 << 20, 300)
        await eventually(lambda: heard)
        assert (heard[0].strategy, heard[0].promise, heard[0].gpus) == ("interposer", "firm", {GPU: (64, 300)})


async def test_a_process_in_the_container_gets_the_slice_and_no_byte_more(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None, build: Path
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        environment = os.environ | {"KERF_DIRECTORY": str(page(host, "a")), "LD_PRELOAD": str(build / "test" / LIBRARY)}
        command = [str(build / "probe"), str(build / "libcuda.so.1"), "memory", "2048", "128"]
        lines = [json.loads(line) for line in subprocess.run(command, env=environment, check=True, capture_output=True).stdout.splitlines()]  # noqa: ASYNC221 - ends by itself
        assert lines[0]["shown_total"] == 64 << 20
        assert {line["bytes"] for line in lines[1:]} == {64 << 20}


async def test_slices_of_one_gpu_hear_of_each_other_while_they_run(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "low", compute_milli=0, strategy="time_slice")
        assert (orders(host, "low").tier, orders(host, "low").peer_count) == (layout.NORMAL, 0)
        await started(bus, kubelet, "high", compute_milli=0, strategy="time_slice", priority=100)
        assert (orders(host, "low").tier, orders(host, "low").peer_count, orders(host, "high").tier) == (layout.LOW, 1, layout.NORMAL)


async def test_the_page_goes_with_its_container(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    (host / "cgroup" / "kubepods").mkdir(parents=True)
    (host / "cgroup" / "cgroup.procs").touch()
    cgroup = host / "cgroup" / "kubepods" / f"pod{uid('a')}"
    cgroup.mkdir()
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        await bus.request(subjects.node_command("n1", "release"), encode(NodeRelease(term=1, uid=uid("a"), grant_id="g-a")))
        assert page(host, "a").exists()
        kubelet.forget(kubelet.pods[uid("a")])
        cgroup.rmdir()
        await eventually(lambda: not page(host, "a").exists())


async def test_a_restarted_agent_keeps_the_pages_of_what_runs(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None
) -> None:
    async with agent(nats, host, **settings):
        await started(bus, kubelet, "a")
        before = (page(host, "a") / "orders").stat().st_ino, orders(host, "a").heartbeat_ns
    async with agent(nats, host, **settings):
        await eventually(lambda: orders(host, "a").heartbeat_ns > before[1])
        assert (page(host, "a") / "orders").stat().st_ino == before[0]
        assert orders(host, "a").gpu[0].memory_limit_bytes == 64 << 20


@pytest.mark.parametrize(("said", "charged_mib"), [({}, 311), ({"context_mib": 0}, 0), ({"context_mib": 20}, 20)])
async def test_a_context_is_charged_what_the_canary_measured_or_the_operator_says(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    said: dict[str, Any],
    charged_mib: int,
) -> None:
    prove(host, build, context_bytes=311 << 20, pool_chunk_bytes=32 << 20)
    async with agent(nats, host, **settings, **said):
        await started(bus, kubelet, "a")
        assert (orders(host, "a").gpu[0].context_bytes, orders(host, "a").pool_chunk_bytes) == (charged_mib << 20, 32 << 20)


async def test_a_failed_canary_is_no_offer_and_nothing_that_was_promised_more_starts(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], build: Path
) -> None:
    prove(host, build, ok=False, sentence="cuMemCreate gave too much")
    broken = settings | {"libcuda": "/nowhere/libcuda.so.1"}
    async with agent(nats, host, **broken) as ctx:
        with pytest.raises(grpc.aio.AioRpcError, match="strategy-not-offered"):
            await started(bus, kubelet, "a")
        assert not page(host, "a").exists()
        assert "interposer" not in await eventually(lambda: offered(bus))
        assert "has failed with driver 580.1: cuMemCreate gave too much" in ctx.health.report()["parts"]["enforcement"]["detail"]
        assert ctx.health.ready
        assert "kerf_agent_enforcement_proven 0.0" in ctx.metrics.render().decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="the canary mounts its page where a container has it")
async def test_a_node_offers_firm_isolation_when_its_own_canary_has_passed_and_again_after_a_driver_change(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], place: None
) -> None:
    async with agent(nats, host, **settings) as ctx:
        await eventually(lambda: _offers(bus), within_s=30)
        assert "kerf_agent_enforcement_proven 1.0" in ctx.metrics.render().decode()
        become(host, NVML.replace("580.1", "590.7"))
        await eventually(lambda: _proof(host).driver_version == "590.7", within_s=30)
    assert _proof(host).ok


@pytest.fixture
def place() -> Any:
    inside = Path("/run/kerf")
    stood = inside.exists()
    yield
    if not stood and inside.exists():
        inside.rmdir()


async def _offers(bus: NatsBus) -> bool:
    return {"interposer", "time_slice"} <= set(await offered(bus))


def _proof(host: Path) -> Proof:
    return msgspec.json.decode((host / "state" / "canary.json").read_bytes(), type=Proof)


@pytest.fixture
async def uses(bus: NatsBus) -> list[SliceUse]:
    heard: list[SliceUse] = []

    async def ear(incoming: Incoming) -> None:
        heard.extend(use for gpu in decode(incoming.payload, UsageSample).gpus for use in gpu.slices)

    await bus.subscribe(subjects.USAGE_ALL, ear)
    return heard


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 4711 is the pod's; whose it is would be in /proc of a real one."""
    monkeypatch.setattr(watch, "NvmlDevices", functools.partial(NvmlDevices, owner={4711: Owner(uid("a"), "f" * 64)}.get))


async def test_limit_and_truth_are_said_beside_each_other(
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
        count(host, "a", 40)
        become(host, f"{NVML}process 0 4711 40\n")
        await eventually(lambda: any(use.counted_mib == 40 for use in uses))
        use = next(use for use in uses if use.counted_mib == 40)
        assert (use.strategy, use.memory_mib, use.granted_memory_mib, use.hidden_mib) == ("interposer", 40, 64, 0)
        shown = ctx.metrics.render().decode()
        labels = f'{{container="main",gpu="{GPU}",namespace="team",pod="a",strategy="interposer"}}'
        for series in (
            f"slice_limit_mib{labels} 64.0",
            f"slice_counted_mib{labels} 40.0",
            f"slice_limit_milli{labels} 300.0",
            f"slice_refused_total{labels} 0.0",
        ):
            assert f"kerf_agent_{series}" in shown


def count(host: Path, name: str, mib: int) -> None:
    """As the interposer does."""
    with (page(host, name) / "counters").open("r+b") as file:
        file.seek(layout.Counters.gpu.offset)
        file.write((mib << 20).to_bytes(8, "little"))


async def test_what_gets_past_the_interposer_is_shown(
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
        assert f'kerf_agent_slice_hidden_mib{{gpu="{GPU}",namespace="team",pod="a"}} 50.0' in ctx.metrics.render().decode()


async def test_a_container_that_cuts_its_counters_hides_nothing(
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
        os.truncate(page(host, "a") / "counters", 100)
        become(host, f"{NVML}process 0 4711 50\n")
        await eventually(lambda: any(use.hidden_mib == 50 for use in uses))


@pytest.mark.skipif(os.geteuid() != 0, reason="the canary mounts its page where a container has it")
async def test_the_canary_leaves_alone_what_is_somebodys(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], build: Path, place: None
) -> None:
    """With all of its memory granted the GPU has no room for a canary: nothing new is proven until some of it is given back."""
    async with agent(nats, host, **(settings | {"interposer_dir": str(host / "nothing")})):
        await started(bus, kubelet, "a", memory_mib=3000, strategy="advisory")
    async with agent(nats, host, **settings) as ctx:
        await eventually(lambda: "no healthy GPU has 2048 MiB" in str(ctx.health.report()["parts"].get("enforcement")))
        assert "interposer" not in await offered(bus)


async def test_by_policy_the_pod_that_got_past_is_evicted(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None, owned: None
) -> None:
    asked: list[Evict] = []

    async def watcher(incoming: Incoming) -> None:
        asked.extend(decode(incoming.payload, EvictBatch).evictions)
        await bus.respond(incoming, encode(Answers()))

    await bus.subscribe(subjects.CMD_EVICT, watcher)
    async with agent(nats, host, **settings, escapes="evict"):
        await started(bus, kubelet, "a")
        become(host, f"{NVML}process 0 4711 500\n")
        await eventually(lambda: asked)
    assert (asked[0].name, len(asked)) == ("a", 1)
    assert "holds 500 MiB" in asked[0].reason


@pytest.fixture
def victim(host: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process of the low pod that launches without end, and that nothing stands in front of."""
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    with subprocess.Popen([sys.executable, str(VICTIM), settings["libcuda"]], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        monkeypatch.setattr(watch, "NvmlDevices", functools.partial(NvmlDevices, owner={process.pid: Owner(uid("a"), "f" * 64)}.get))
        yield process.pid
        process.kill()


async def test_by_policy_what_got_past_waits_for_its_turn_and_is_let_go_with_the_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None, build: Path, victim: int
) -> None:
    async with agent(nats, host, **settings, escapes="lock"):
        await started(bus, kubelet, "a", compute_milli=0, strategy="time_slice")
        await started(bus, kubelet, "b", compute_milli=0, strategy="time_slice", priority=100)
        at_work(host, "b")
        become(host, f"{NVML}process 0 {victim} 50\n")
        await eventually(lambda: locked(build, victim), every_s=0.1)
    assert not locked(build, victim)


VICTIM = ROOT / "tests" / "unit" / "services" / "node_agent" / "strategies" / "victim.py"


def at_work(host: Path, name: str) -> None:
    """As its interposer says, and for long."""
    with (page(host, name) / "signal").open("r+b") as file:
        file.seek(layout.Signal.gpu.offset + layout.SignalGpu.busy_until_ns.offset)
        file.write((1 << 62).to_bytes(8, "little"))


def locked(build: Path, pid: int) -> bool:
    """By the driver's word, asked by a process of its own: this one must not become part of that world."""
    script = "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); s = ctypes.c_int(-1); d.cuInit(0); d.cuCheckpointProcessGetState(int(sys.argv[2]), ctypes.byref(s)); print(s.value)"
    asked = subprocess.run(
        [sys.executable, "-c", script, str(build / "libcuda.so.1"), str(pid)], check=True, capture_output=True, text=True
    )
    return asked.stdout.strip() == "1"


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory, build: Path) -> Path:
    """A program that writes over what its page says of its GPU time."""
    folder = tmp_path_factory.mktemp("programs")
    subprocess.run(["make", "-s", "-C", str(ROOT / "tests" / "interposer" / "programs"), f"BUILD={folder}", f"{folder}/forge"], check=True)
    return folder / "forge"


def forged(host: Path, build: Path, program: Path, processes: int) -> list[int]:
    """Runs so many at once in container a, on the fake driver; per cent of the GPU's time that each really had."""
    environment = os.environ | {
        "KERF_DIRECTORY": str(page(host, "a")), "LD_PRELOAD": str(build / "test" / LIBRARY), "KERF_TEST_DRIVER": str(build / "libcuda.so.1"),
        "LD_LIBRARY_PATH": str(build), "KERF_FAKE_CUDA": str(host / "forged"), "KERF_FAKE_CUDA_CLIENTS": str(processes),
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [str(program), "all", "500000", "4"],
            env=environment | {"KERF_FAKE_CUDA_CLIENT": str(place)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in range(processes)
    ]
    return [sum(map(int, process.communicate(timeout=60)[0].split())) // 40_000_000 for process in running]


def as_seen(percents: list[int], first: int = 4711) -> str:
    """The same in NVML's words."""
    seen = [(first + place, percent) for place, percent in enumerate(percents)]
    return NVML + "".join(f"process 0 {pid} 10\nsm 0 {pid} {percent}\n" for pid, percent in seen)


@pytest.fixture
def owned_by_a(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {4711 + place: Owner(uid("a"), "f" * 64) for place in range(4)}
    monkeypatch.setattr(watch, "NvmlDevices", functools.partial(NvmlDevices, owner=mine.get))


BY_TIME = {"escape_slack_mib": 4000, "escape_window_s": 0.3}


async def test_processes_that_forge_together_show_as_gpu_time_beyond_the_share(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned_by_a: None,
    uses: list[SliceUse],
    build: Path,
    forge: Path,
) -> None:
    """One that forges has its share; four that do have it four times, which their page denies and NVML sees."""
    async with agent(nats, host, **settings | BY_TIME) as ctx:
        await started(bus, kubelet, "a", compute_milli=100)
        alone = forged(host, build, forge, 1)
        become(host, as_seen(alone))
        await eventually(lambda: any(use.sm_milli == 10 * alone[0] for use in uses))
        together = forged(host, build, forge, 4)
        assert 8 <= alone[0] <= 12
        assert sum(together) > 30
        become(host, as_seen(together))
        await eventually(lambda: any(use.over_milli for use in uses))
        use = next(use for use in reversed(uses) if use.over_milli)
        assert use.over_milli > 100
        series = f'kerf_agent_slice_over_milli{{gpu="{GPU}",namespace="team",pod="a"}}'
        assert series in ctx.metrics.render().decode()
        become(host, as_seen(alone))
        await eventually(lambda: uses[-1].over_milli == 0)


async def test_a_share_that_is_kept_is_no_escape_of_time(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    proven: None,
    owned_by_a: None,
    uses: list[SliceUse],
) -> None:
    async with agent(nats, host, **settings | BY_TIME):
        await started(bus, kubelet, "a", compute_milli=300)
        become(host, as_seen([20, 18]))
        await eventually(lambda: sum(use.sm_milli == 380 for use in uses) > 20)
        assert {use.over_milli for use in uses} == {0}


async def test_by_policy_the_pod_that_took_more_time_than_its_share_is_evicted(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None, owned_by_a: None
) -> None:
    asked: list[Evict] = []

    async def watcher(incoming: Incoming) -> None:
        asked.extend(decode(incoming.payload, EvictBatch).evictions)
        await bus.respond(incoming, encode(Answers()))

    await bus.subscribe(subjects.CMD_EVICT, watcher)
    async with agent(nats, host, **settings | BY_TIME, escapes="evict"):
        await started(bus, kubelet, "a", compute_milli=300)
        become(host, as_seen([50, 40]))
        await eventually(lambda: asked)
    assert (asked[0].name, len(asked)) == ("a", 1)
    assert "90 % of GPU" in asked[0].reason


async def test_by_policy_what_took_more_time_than_its_share_is_locked_for_the_rest_of_every_cycle(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], proven: None, build: Path, victim: int
) -> None:
    """Alone on the GPU, too; and it stays rationed though NVML now sees no more of it than its share."""
    async with agent(nats, host, **settings | BY_TIME, escapes="lock"):
        await started(bus, kubelet, "a", compute_milli=100)
        become(host, as_seen([90], first=victim))
        await eventually(lambda: locked(build, victim), every_s=0.05)
        become(host, as_seen([10], first=victim))
        await eventually(lambda: not locked(build, victim), every_s=0.01)
        await eventually(lambda: locked(build, victim), every_s=0.05)
    assert not locked(build, victim)
