"""A real node's agent over real NATS: the tests' NVML, a checkpoint on disk, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from services.node_agent import gone_gpus, grant_wait, releases
from services.node_agent import messages as m
from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.config import Config
from services.node_agent.devices import monitor
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from services.node_agent.service import NodeAgent
from services.node_agent.state import Checkpoint, CheckpointError
from shared.bus.embedded import EmbeddedServer, User
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming, NotTaken
from shared.contracts import permissions, queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.events import SliceReleased
from shared.contracts.node_commands import (
    Accepted,
    NodeCordon,
    NodeCordonAnswer,
    NodeGrant,
    NodeHold,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
    Released,
)
from shared.contracts.queries import GrantAnswer, GrantQuery
from shared.contracts.samples import GpuUse, UsageSample
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.service import Context, Lifecycle, running
from tests.support.evictions import evictions
from tests.support.first_sync import first_sync, is_new
from tests.support.native import built
from tests.support.waiting import eventually
from tests.unit.services.node_agent.cdi.hosts import DEBIAN, VERSION, FakeHost
from tests.unit.services.node_agent.devices.machine import load

ONE = "driver 580.1\ngpu 0 GPU-a NVIDIA_H200 1000 00000000:01:00.0 0 9 0 0 0\n"


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the built library."""
    load()
    return built("nvml")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nvml").write_text(ONE)
    (tmp_path / "boot_id").write_text("boot-1\n")
    monkeypatch.setenv("KERF_FAKE_NVML_STATE", str(tmp_path / "nvml"))
    return tmp_path


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedServer]:
    """The agent comes as its node's own user, with the permissions that a token gives it; the tests as anyone."""
    granted = permissions.granted(permissions.agent_of("n1"))
    subjects_of = {"publish": tuple(granted["pub"]["allow"]), "subscribe": tuple(granted["sub"]["allow"])}
    users = (User(name="test", password="t"), User(name="agent", password="a", **subjects_of))
    async with EmbeddedServer(users=users, extra_config="no_auth_user: test") as server:
        yield server


class Known(NodeAgent):
    """An agent that tests can query."""

    started: ClassVar[list[Known]] = []

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        await super().start(ctx)
        self.started.append(self)


@contextlib.asynccontextmanager
async def agent(nats: EmbeddedServer, host: Path, **settings: Any) -> AsyncIterator[Known]:
    """Where it has no checkpoint it has had its first sync."""
    usual = {
        "poll_s": 0.05,
        "health_s": 0.05,
        "recover_s": 0.2,
        "kubelet_dir": str(host / "kubelet"),
        "sysfs": str(host / "sys"),
    }
    files = {"checkpoint_file": str(host / "state" / "agent.json"), "boot_id_file": str(host / "boot_id")}
    config = Config(**({"node": "n1"} | files | usual | settings))
    lifecycle = Lifecycle(nats_inbox_prefix=permissions.agent_inbox("n1"))
    begins = is_new(config.checkpoint_file)
    async with running(Known, config, bus_url=nats.url_as("agent"), lifecycle=lifecycle) as ctx:
        if begins:
            await first_sync(nats.url, "n1")
        yield Known.started.pop()
        assert isinstance(ctx.bus, NatsBus)
        assert ctx.bus.stats.denied == 0


def grant(name: str, memory: int = 600, term: int = 1) -> NodeGrant:
    share = GpuShare(node="n1", uuid="GPU-a", memory_mib=memory, compute_milli=0)
    made = Grant(grant_id=f"g-{name}", term=term, containers={"c": ContainerGrant(strategy="advisory", gpus=(share,))})
    return NodeGrant(term=term, uid=f"u-{name}", namespace="team", name=name, grant=made)


async def ask(bus: NatsBus, verb: str, body: Any, kind: Any) -> Any:
    return decode(await bus.request(subjects.node_command("n1", verb), encode(body)), kind)


async def stored(bus: NatsBus) -> Inventory | None:
    entry = await bus.kv(subjects.KV_NODES).get("n1")
    return None if entry.value is None else decode(entry.value, Inventory)


async def test_a_lost_gpu_and_its_return_are_published(nats: EmbeddedServer, bus: NatsBus, host: Path) -> None:
    async with agent(nats, host):
        first = await eventually(lambda: stored(bus))
        assert (first.gpus[0].model, first.boot_id, first.simulated) == ("NVIDIA-H200", "boot-1", False)
        for text, state in ((ONE.replace("0 9 0 0 0", "0 9 0 0 15"), "unhealthy"), (ONE, "healthy")):
            become(host, text)
            await eventually(lambda state=state: _has_state(bus, state))


async def test_a_driver_loaded_after_the_agent_started_is_found(
    nats: EmbeddedServer, bus: NatsBus, host: Path, library: Path
) -> None:
    """As at boot, when a driver container builds its module.

    In a separate process, because this one has loaded NVML already.
    """
    there = FakeHost(host)
    settings = {
        "node": "n1",
        "checkpoint_file": host / "agent.json",
        "boot_id_file": host / "boot_id",
        "host_root": host,
        "poll_s": 0.05,
        "kubelet_dir": host / "none",
    }
    environment = {f"KERF_NODE_AGENT_{name.upper()}": str(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.node_agent",
        env=os.environ | environment | {"KERF_NATS_URL": nats.url, "KERF_HTTP_PORT": "-1"},
    )

    async def gpus() -> tuple[str, ...] | None:
        inventory = await stored(bus)
        return None if inventory is None else tuple(gpu.uuid for gpu in inventory.gpus)

    async def sees(*wanted: str) -> bool:
        return await gpus() == wanted

    try:
        await eventually(sees)
        there.libraries()
        shutil.copy(library / "libnvidia-ml.so.1", host / DEBIAN / f"libnvidia-ml.so.{VERSION}")
        there.module()
        await eventually(lambda: sees("GPU-a"))
    finally:
        process.kill()
        await process.wait()


async def test_a_gpu_with_a_fatal_xid_stays_unhealthy_after_a_restart_of_the_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """Received between two polls, which are far apart here.

    A reboot clears it; a driver that reports no recovery action does not.
    """
    become(host, f"{ONE}recovery 0 -1\n")
    async with agent(nats, host, health_s=3600, poll_s=3600):
        await eventually(lambda: _xid_came_through(bus, host))
    for boot, state in (("boot-1", "unhealthy"), ("boot-2", "healthy")):
        (host / "boot_id").write_text(f"{boot}\n")
        async with agent(nats, host):
            await eventually(lambda state=state: _has_state(bus, state))


async def test_a_gpu_in_recovery_stays_in_recovery_after_a_restart_of_the_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """As at each upgrade. A reboot ends it: the clock by which it is measured has begun anew."""
    async with agent(nats, host, recover_s=3600):
        await eventually(lambda: _has_state(bus, "healthy"))
        become(host, ONE.replace("0 9 0 0 0", "0 9 0 0 15"))
        await eventually(lambda: _has_state(bus, "unhealthy"))
        become(host, ONE)
        await eventually(lambda: _has_state(bus, "suspect"))
    for boot, state in (("boot-1", "suspect"), ("boot-2", "healthy")):
        (host / "boot_id").write_text(f"{boot}\n")
        async with agent(nats, host, recover_s=3600) as new:
            gpu = new.node.agent.gpus.by_uuid["GPU-a"]
            assert gpu.state == state
            assert ("no fault for less than 3600 s after: NVML: GPU is lost" in gpu.reason) == (state == "suspect")


async def _xid_came_through(bus: NatsBus, host: Path) -> bool:
    """Repeated until the agent listens, because nothing shows when it has started."""
    text = (host / "nvml").read_text()
    become(host, f"{text}event {text.count('event') + 1} 0 8 74\n")
    return await _has_state(bus, "unhealthy")


def become(host: Path, text: str) -> None:
    (host / "new").write_text(text)
    (host / "new").replace(host / "nvml")


async def _has_state(bus: NatsBus, state: str) -> bool:
    inventory = await stored(bus)
    return inventory is not None and inventory.gpus[0].state == state


async def test_leases_releases_and_the_term_survive_a_restart_of_the_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """Running slices stay handed over and counted, a release stays final, the term stays."""
    async with agent(nats, host) as first:
        for name in ("runs", "gone"):
            assert (await ask(bus, "grant", grant(name, term=3), Accepted)).ok
        assert isinstance(await first.node.start_container("u-runs", "c"), m.HandOver)
        assert (await ask(bus, "release", NodeRelease(term=3, uid="u-gone", grant_id="g-gone"), Accepted)).ok
    async with agent(nats, host) as second:
        assert not (await ask(bus, "grant", grant("old", term=2), Accepted)).ok
        reply = await ask(
            bus,
            "sync",
            NodeSync(term=4, node="n1", grants=(grant("runs", term=4), grant("gone", term=4), grant("next", term=4))),
            NodeSyncAnswer,
        )
        assert ([s.grant_id for s in reply.live], reply.tombstones) == (["g-runs"], ("g-gone",))
        refused = await second.node.start_container("u-next", "c")
        assert isinstance(refused, m.RefuseStart)
        assert refused.code == "gpu-memory-full"


async def test_a_release_waits_for_the_container_and_is_repeated_after_a_restart(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    heard: list[str] = []

    async def ear(incoming: Incoming) -> None:
        event = unwrap(incoming.payload)[1]
        assert isinstance(event, SliceReleased)
        heard.append(event.grant_id)

    await bus.subscribe(subjects.SLICES_RELEASED, ear)
    async with agent(nats, host) as first:
        await ask(bus, "grant", grant("a"), Accepted)
        await first.node.start_container("u-a", "c")
        assert (await ask(bus, "release", NodeRelease(term=1, uid="u-a", grant_id="g-a"), Accepted)).ok
        assert heard == []
        await first.node.end_container("u-a", "c")
        await eventually(lambda: heard == ["g-a"])
    async with agent(nats, host):
        await eventually(lambda: len(heard) > 1, what="no acknowledgement came, so it is repeated")


async def test_a_release_is_sent_to_placement_on_the_subject_of_the_node(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """The subject names the node, and a NATS user can be bound to it.

    The release is repeated until it is acknowledged.
    """
    heard: list[tuple[str, str]] = []

    async def placement(incoming: Incoming) -> None:
        heard.append((subjects.sender(incoming.subject), decode(incoming.payload, Released).grant_id))

    await bus.subscribe(subjects.RELEASES_ALL, placement)
    async with agent(nats, host):
        assert (await ask(bus, "release", NodeRelease(term=1, uid="u-a", grant_id="g-a"), Accepted)).ok
        await eventually(lambda: heard)
    assert set(heard) == {("n1", "g-a")}


async def test_the_grant_of_a_gpu_that_is_missing_after_a_boot_is_given_back(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, str]] = []

    async def placement(incoming: Incoming) -> None:
        heard.append((subjects.sender(incoming.subject), decode(incoming.payload, Released).reason))

    await bus.subscribe(subjects.RELEASES_ALL, placement)
    monkeypatch.setattr(gone_gpus, "AFTER_S", 0.0)
    async with agent(nats, host):
        assert (await ask(bus, "grant", grant("a"), Accepted)).ok
    (host / "boot_id").write_text("boot-2\n")
    become(host, ONE.replace("GPU-a", "GPU-b"))
    async with agent(nats, host):
        await eventually(lambda: heard)
    assert set(heard) == {("n1", "GPU GPU-a is no longer on its node")}


async def test_a_release_is_repeated_after_the_wall_clock_was_set_back(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    async def ear(incoming: Incoming) -> None:
        heard.append(incoming.subject)

    await bus.subscribe(subjects.SLICES_RELEASED, ear)
    monkeypatch.setattr(releases, "REPEAT_S", 0.1)
    async with agent(nats, host):
        await ask(bus, "release", NodeRelease(term=1, uid="u-a", grant_id="g-a"), Accepted)
        monkeypatch.setattr(Context, "now", lambda _: 0.0)
        said = len(heard)
        await eventually(lambda: len(heard) > said + 1)


class SlowDisk(CheckpointFile):
    """Writes when it is allowed to, and counts concurrent writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may, self.writing, self.most = threading.Event(), 0, 0

    def save(self, checkpoint: Checkpoint) -> None:
        self.writing += 1
        self.most = max(self.most, self.writing)
        self.may.wait(30)
        super().save(checkpoint)
        self.writing -= 1


async def test_a_start_that_the_kubelet_abandons_is_saved_before_the_next_one(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    async with agent(nats, host) as service:
        for name in ("a", "b"):
            assert (await ask(bus, "grant", grant(name, memory=300), Accepted)).ok
        disk = service.node._file = SlowDisk(host / "state" / "agent.json")
        first = asyncio.create_task(service.node.start_container("u-a", "c"))
        await eventually(lambda: disk.writing)
        first.cancel()
        second = asyncio.create_task(service.node.start_container("u-b", "c"))
        await asyncio.wait((first,))
        for _ in range(100):
            await asyncio.sleep(0)
        disk.may.set()
        assert isinstance(await second, m.HandOver)
        saved = disk.load("n1")
        assert (disk.most, saved is not None and [lease.uid for lease in saved.leases]) == (1, ["u-a", "u-b"])


async def test_the_end_of_a_container_is_checked_when_no_start_can_come_between(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """A container that seemed to have ended, and was started again while its end waited its turn, keeps its share."""
    async with agent(nats, host) as service:
        assert (await ask(bus, "grant", grant("a"), Accepted)).ok
        disk = service.node._file = SlowDisk(host / "state" / "agent.json")
        start = asyncio.create_task(service.node.start_container("u-a", "c"))
        await eventually(lambda: disk.writing)
        looked: list[int] = []

        def still_gone() -> bool:
            looked.append(disk.writing)
            return False

        end = asyncio.create_task(service.node.end_container("u-a", "c", if_so=still_gone))
        for _ in range(100):
            await asyncio.sleep(0)
        disk.may.set()
        assert isinstance(await start, m.HandOver)
        await end
        assert looked == [0], "checked once, and not while the start was saved"
        assert [live.uid for live in service.node.agent.live()] == ["u-a"]


async def test_a_cordon_survives_a_restart_of_the_agent(nats: EmbeddedServer, bus: NatsBus, host: Path) -> None:
    async with agent(nats, host):
        assert (await ask(bus, "cordon", NodeCordon(node="n1", gpu="GPU-a", by="ada"), NodeCordonAnswer)).ok
        await eventually(lambda: _has_state(bus, "draining"))
    async with agent(nats, host):
        answer = await ask(bus, "cordon", NodeCordon(node="n1", gpu="GPU-a", undo=True), NodeCordonAnswer)
        assert (answer.ok, answer.gpus) == (True, ("GPU-a",))
        await eventually(lambda: _has_state(bus, "healthy"))


async def test_uncordoning_brings_back_a_gpu_that_waits_for_a_reset(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    become(host, f"{ONE}recovery 0 -1\n")
    async with agent(nats, host, health_s=3600, poll_s=3600):
        await eventually(lambda: _xid_came_through(bus, host))
        await eventually(lambda: _pardoned(bus))


async def _pardoned(bus: NatsBus) -> bool:
    """Cleared repeatedly, because an earlier XID may still arrive."""
    assert (await ask(bus, "cordon", NodeCordon(node="n1", undo=True), NodeCordonAnswer)).ok
    return await _has_state(bus, "healthy")


async def test_with_evict_unhealthy_the_pods_of_a_failed_gpu_are_evicted(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    asked = await evictions(bus)
    async with agent(nats, host, evict_unhealthy=True) as service:
        await ask(bus, "grant", grant("a"), Accepted)
        await service.node.start_container("u-a", "c")
        become(host, ONE.replace("0 9 0 0 0", "0 9 0 0 15"))
        await eventually(lambda: asked)
    assert (asked[0].uid, asked[0].name, asked[0].reason) == ("u-a", "a", "GPU GPU-a is unhealthy: NVML: GPU is lost")


async def test_usage_is_published_and_foreign_memory_is_in_the_inventory(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """This process itself is one: it belongs to no pod."""
    heard: list[UsageSample] = []

    async def ear(incoming: Incoming) -> None:
        heard.append(decode(incoming.payload, UsageSample))

    await bus.subscribe(subjects.USAGE_ALL, ear)
    become(host, f"{ONE}process 0 {os.getpid()} 64\nbusy 0 25\n")
    async with agent(nats, host, usage_s=0.05):
        await eventually(lambda: heard)
        assert heard[0].gpus == (GpuUse(uuid="GPU-a", used_mib=64, foreign_mib=64, sm_milli=250),)
        inventory = await stored(bus)
        assert inventory is not None
        assert inventory.gpus[0].foreign_mib == 64


async def test_the_use_of_a_slice_is_reported_until_it_is_released(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published on NATS and in Prometheus. A real pod's process would be identified by /proc."""
    monkeypatch.setattr(
        monitor, "NvmlDevices", functools.partial(NvmlDevices, owner={4711: Owner("u-a", "f" * 64)}.get)
    )
    heard: list[UsageSample] = []

    async def ear(incoming: Incoming) -> None:
        heard.append(decode(incoming.payload, UsageSample))

    await bus.subscribe(subjects.USAGE_ALL, ear)
    become(host, f"{ONE}process 0 4711 500\nsm 0 4711 30\n")
    series = 'kerf_agent_slice_used_bytes{container="c",gpu="GPU-a",namespace="team",pod="a"} 5.24288e+08'
    async with agent(nats, host, usage_s=0.05) as service:
        await ask(bus, "grant", grant("a"), Accepted)
        await service.node.start_container("u-a", "c")
        await eventually(lambda: heard and heard[-1].gpus[0].slices)
        slice_ = heard[-1].gpus[0].slices[0]
        assert (slice_.name, slice_.container, slice_.memory_mib, slice_.granted_memory_mib, slice_.sm_milli) == (
            "a",
            "c",
            500,
            600,
            300,
        )
        assert heard[-1].gpus[0].foreign_mib == 0
        assert series in service.ctx.metrics.render().decode()
        await service.node.end_container("u-a", "c")
        await eventually(
            lambda: heard[-1].gpus[0].foreign_mib == 500, what="a process that outlives its container is foreign"
        )
        assert series not in service.ctx.metrics.render().decode()


async def test_monitors_learn_which_containers_have_a_gpu_until_they_end(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    become(host, ONE)
    folder = host / "jobs"
    labels = 'container="c",gpu="0",namespace="team",pod="a",strategy="advisory",uuid="GPU-a"'
    series = f"kerf_gpu_pod_info{{{labels}}} 1"
    async with agent(nats, host, job_mapping_dir=str(folder)) as service:
        await eventually(lambda: (folder / "0").exists() and not (folder / "0").read_text())
        await ask(bus, "grant", grant("a"), Accepted)
        await service.node.start_container("u-a", "c")
        await eventually(lambda: (folder / "0").read_text() == "team/a/c\n", what="the file of the GPU")
        assert series in service.ctx.metrics.render().decode()
        await service.node.end_container("u-a", "c")
        await eventually(lambda: not (folder / "0").read_text(), what="the end of the container")
        assert series not in service.ctx.metrics.render().decode()


async def test_a_start_before_the_grant_arrives_fetches_the_grant(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant of an unknown pod is fetched from placement; without an answer nothing starts."""
    monkeypatch.setattr(grant_wait, "WAIT_S", 0.5)
    async with agent(nats, host) as service:
        closed = await service.node.start_container("u-a", "c")
        assert isinstance(closed, m.RefuseStart)

        async def placement(incoming: Incoming) -> None:
            query = decode(incoming.payload, GrantQuery)
            await bus.respond(
                incoming, encode(GrantAnswer(found=grant("a") if (query.uid, query.node) == ("u-a", "n1") else None))
            )

        await bus.subscribe(queries.GRANT.subject, placement)
        await bus.alive()
        assert isinstance(await service.node.start_container("u-a", "c"), m.HandOver)
        assert isinstance(await service.node.start_container("u-b", "c"), m.RefuseStart)


async def test_a_start_waits_until_placement_has_seen_the_pod_bound(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync may name the grant before: then it is known, and starts nothing yet. The grant ends the wait at once."""
    monkeypatch.setattr(grant_wait, "WAIT_S", 600.0)
    monkeypatch.setattr(grant_wait, "ASK_S", 600.0)
    asked, queried = asyncio.Event(), list[bytes]()

    async def placement(incoming: Incoming) -> None:
        queried.append(incoming.payload)
        await bus.respond(incoming, encode(GrantAnswer(error="not bound")))
        asked.set()

    await bus.subscribe(queries.GRANT.subject, placement)
    async with agent(nats, host) as service, asyncio.TaskGroup() as group:
        unbound = msgspec.structs.replace(grant("a"), unbound=True)
        sync = NodeSync(term=1, node="n1", grants=(unbound,), number=1)
        assert (await ask(bus, "sync", sync, NodeSyncAnswer)).accepted
        start = group.create_task(service.node.start_container("u-a", "c"))
        await asked.wait()
        await ask(bus, "grant", grant("b"), Accepted)
        assert not start.done()
        await ask(bus, "grant", grant("a"), Accepted)
        async with asyncio.timeout(30):
            assert isinstance(await start, m.HandOver)
        assert len(queried) == 1, "the grant of another pod is no reason to ask again"


async def test_a_start_does_not_wait_for_an_answer_when_its_grant_has_come(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placement hangs, or its leader changes: it took the query, and never answers."""
    monkeypatch.setattr(grant_wait, "WAIT_S", 60.0)
    asked = asyncio.Event()

    async def placement(_: Incoming) -> None:
        asked.set()

    await bus.subscribe(queries.GRANT.subject, placement)
    async with agent(nats, host) as service, asyncio.TaskGroup() as group:
        request = service.ctx.bus.request
        monkeypatch.setattr(service.ctx.bus, "request", functools.partial(request, timeout_s=600.0))
        start = group.create_task(service.node.start_container("u-a", "c"))
        await asked.wait()
        await ask(bus, "grant", grant("a"), Accepted)
        async with asyncio.timeout(30):
            assert isinstance(await start, m.HandOver)


async def test_an_answer_that_cannot_be_sent_ends_no_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS is away, and the client keeps no more. What was ordered is done, and the leader orders it again."""
    asked, failed = Incoming(subject="s", payload=b"", reply="_INBOX.x"), asyncio.Queue[str]()

    async def respond(incoming: Incoming, payload: bytes) -> None:
        failed.put_nowait(incoming.subject)
        raise NotTaken("the outbound buffer is full")

    async with agent(nats, host) as service:
        with monkeypatch.context() as away:
            away.setattr(service.ctx.bus, "respond", respond)
            await service.node.handle(m.GrantReceived(grant("a")), asked)
            await failed.get()
            await service.node.handle(m.HoldReceived(NodeHold(term=1, node="n1", grant_ids=(), hold_s=0.0)), asked)
            await failed.get()
        assert (await ask(bus, "grant", grant("a"), Accepted)).ok
        assert not service.ctx.failure.done()


async def test_the_agent_does_not_start_with_a_damaged_checkpoint(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    async with agent(nats, host):
        await ask(bus, "grant", grant("a"), Accepted)
    (host / "state" / "agent.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match="move the file away"):
        async with agent(nats, host):
            raise AssertionError("it started")


async def test_an_agent_that_has_lost_its_checkpoint_says_so(nats: EmbeddedServer, bus: NatsBus, host: Path) -> None:
    async def names() -> str:
        seen = await stored(bus)
        return "" if seen is None else seen.checkpoint_id

    async with agent(nats, host):
        first = await eventually(names)
    async with agent(nats, host):
        await eventually(lambda: _has_state(bus, "healthy"))
        assert await names() == first
    (host / "state" / "agent.json").unlink()
    async with agent(nats, host):

        async def names_another() -> bool:
            return await names() not in ("", first)

        await eventually(names_another)
