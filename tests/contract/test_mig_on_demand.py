"""MIG instances made and destroyed as grants say: a whole agent beside a fake kubelet, over the fake NVML.

`tests/unit/services/node_agent/mig/test_nvml.py` makes the same calls, of a real GPU where one is named, and
`tests/node/test_mig.py` follows pods on a real kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from services.node_agent.mig import instances
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.mig import MigInstance
from shared.service import Context
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent, pod, uid
from tests.support.waiting import eventually
from tests.unit.services.node_agent.cdi.hosts import FakeHost
from tests.unit.services.node_agent.mig.a100 import A100, DRIVER

FOREIGN = "mig 0 12 4 1g.5gb 4864 MIG-of-an-administrator\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is tried again soon."""
    monkeypatch.setattr(instances, "TRY_AGAIN_S", 0.1)


@pytest.fixture
def host(host: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    become(host, A100)
    FakeHost(host).put("proc/devices", "Character devices:\n238 nvidia-caps\n\nBlock devices:\n")
    monkeypatch.setenv("KERF_FAKE_NVML_CAPABILITIES", str(host / "proc/driver/nvidia/capabilities"))
    return host


def become(host: Path, text: str) -> None:
    (host / "new").write_text(text)
    (host / "new").replace(host / "nvml")


def made(host: Path) -> list[str]:
    """What was done to the GPU, in order: `made 0 GI START PROFILE`, `compute …`, `uncomputed …`, `gone …`."""
    changes = host / "nvml.mig"
    return changes.read_text().splitlines() if changes.exists() else []


def standing(host: Path) -> dict[int, int]:
    """The start of each GPU instance that stands, by its id, of those that were made."""
    found: dict[int, int] = {}
    for words in (line.split() for line in made(host)):
        if words[0] == "made":
            found[int(words[2])] = int(words[3])
        elif words[0] == "gone":
            del found[int(words[2])]
    return found


async def inventory(bus: NatsBus) -> Inventory | None:
    entry = await bus.kv(subjects.KV_NODES).get(subjects.token("n1"))
    return None if entry.value is None else decode(entry.value, Inventory)


async def gpu(bus: NatsBus) -> Gpu | None:
    found = await inventory(bus)
    return None if found is None or not found.gpus else found.gpus[0]


async def offered(bus: NatsBus, *others: MigInstance) -> None:
    """Waits until the GPU is divided on demand, beside the instances of others."""

    async def on_demand() -> bool:
        found = await gpu(bus)
        return found is not None and found.mig_on_demand and found.mig_instances == others

    await eventually(on_demand, what=f"the GPU offers instances beside {others}")


async def grant(bus: NatsBus, name: str, profile: str, start: int, memory_mib: int = 4864) -> None:
    share = GpuShare(
        node="n1", uuid="GPU-a", memory_mib=memory_mib, compute_milli=142,
        mig=MigInstance(profile=profile, start=start),
    )  # fmt: skip
    made_of = Grant(grant_id=f"g-{name}", term=1, containers={"main": ContainerGrant(strategy="mig", gpus=(share,))})
    order = NodeGrant(term=1, uid=uid(name), namespace="team", name=name, grant=made_of)
    assert decode(await bus.request(subjects.node_command("n1", "grant"), encode(order)), Accepted).ok


@asynccontextmanager
async def mig_agent(nats: EmbeddedServer, host: Path, **settings: Any) -> AsyncIterator[Context]:
    async with agent(nats, host, mig="on_demand", poll_s=0.1, enforce="off", **settings) as ctx:
        yield ctx


def cgroup(host: Path, name: str) -> Path:
    folder = host / "cgroup" / "kubepods" / "burstable" / f"pod{uid(name)}"
    folder.mkdir(parents=True)
    (host / "cgroup" / "cgroup.procs").touch()
    return folder


async def start(kubelet: FakeKubelet, host: Path, bus: NatsBus, name: str, profile: str, first: int) -> None:
    await kubelet.admit(pod(name))
    cgroup(host, name)
    await grant(bus, name, profile, first)
    await kubelet.start_container(kubelet.pods[uid(name)])


async def end(kubelet: FakeKubelet, host: Path, name: str) -> None:
    kubelet.forget(kubelet.pods[uid(name)])
    (host / "cgroup" / "kubepods" / "burstable" / f"pod{uid(name)}").rmdir()


async def test_an_instance_lives_as_long_as_its_container(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus)
        assert [line.split()[0] for line in made(host)] == ["made", "compute", "uncomputed", "gone"], "the proof"
        assert (await inventory(bus)).strategies[-1] == "mig"  # type: ignore[union-attr]
        await start(kubelet, host, bus, "one", "3g.20gb", 4)
        await start(kubelet, host, bus, "two", "1g.5gb", 0)
        assert sorted(standing(host).values()) == [0, 4]
        before = made(host)
        await kubelet.start_container(kubelet.pods[uid("one")])
        assert made(host) == before, "a restarted container has the instance of the first one"
        await offered(bus)
        await end(kubelet, host, "one")
        await eventually(lambda: list(standing(host).values()) == [0], what="the ended pod's instance is destroyed")
    assert list(standing(host).values()) == [0], "an agent that ends leaves what runs"


async def test_half_an_instance_is_completed_by_the_next_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """The first agent makes the GPU instance, and ends before its compute instance can be made."""
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus)
        become(host, f"{A100}deny 0 ci\n")
        with pytest.raises(grpc.RpcError, match="NVML: Unknown Error"):
            await start(kubelet, host, bus, "one", "2g.10gb", 2)
        assert list(standing(host).values()) == [2]
    become(host, A100)
    async with mig_agent(nats, host):
        await eventually(lambda: kubelet.healthy, what="the slots of the next agent")
        await offered(bus)
        await kubelet.start_container(kubelet.pods[uid("one")])
        assert list(standing(host).values()) == [2], "and no second one beside it"
        assert sum(line.startswith("compute") for line in made(host)) == 2, "of the proof and of the pod"
        await end(kubelet, host, "one")
        await eventually(lambda: standing(host) == {})


async def test_an_instance_that_nobody_holds_any_more_is_destroyed_by_the_next_agent(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus)
        await start(kubelet, host, bus, "one", "2g.10gb", 2)
    await end(kubelet, host, "one")
    async with mig_agent(nats, host):
        await eventually(lambda: standing(host) == {})


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ("3g.20gb", "3g.20gb at slice 4 of GPU GPU-a cannot be made beside 1g.5gb at 4"),
        ("1g.5gb", "somebody else has made MIG instance 1g.5gb at slice 4"),
    ],
)
async def test_instances_of_others_are_neither_offered_nor_destroyed(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, profile: str, why: str
) -> None:
    become(host, A100 + FOREIGN)
    theirs = MigInstance(profile="1g.5gb", start=4)
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus, theirs)
        with pytest.raises(grpc.RpcError, match=why):
            await start(kubelet, host, bus, "one", profile, 4)
        await end(kubelet, host, "one")
        await start(kubelet, host, bus, "two", "3g.20gb", 0)
        await end(kubelet, host, "two")
        await eventually(lambda: standing(host) == {})
        await offered(bus, theirs)
        assert not any("12" in line.split()[2:3] for line in made(host)), "nothing was done to it"


async def test_an_instance_that_is_still_in_use_keeps_its_slices_and_goes_to_no_other_pod(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """A process that has outlived its pod: of another user's, for the agent cannot say whose it is."""
    async with mig_agent(nats, host) as ctx:
        await kubelet.sees_slots()
        await offered(bus)
        await start(kubelet, host, bus, "one", "2g.10gb", 2)
        ((instance, _),) = standing(host).items()
        become(host, f"{A100}process 0 1 100 {instance}\n")
        await end(kubelet, host, "one")
        await offered(bus, MigInstance(profile="2g.10gb", start=2))
        assert "is used by process 1" in ctx.health.report()["parts"]["mig"]["detail"]
        with pytest.raises(grpc.RpcError, match=r"is used by process 1; it was another pod's \(mig-not-ready\)"):
            await start(kubelet, host, bus, "two", "2g.10gb", 2)
        assert list(standing(host)) == [instance]
        become(host, A100)
        await kubelet.start_container(kubelet.pods[uid("two")])
        assert made(host)[-4:-2] == [f"uncomputed 0 {instance}", f"gone 0 {instance}"], "the old one ended first"
        await offered(bus)
        await eventually(lambda: "mig" not in ctx.health.report()["parts"])


async def test_an_instance_that_takes_the_place_of_one_that_failed_is_not_the_agents(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    become(host, A100 + FOREIGN)
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus, MigInstance(profile="1g.5gb", start=4))
        with pytest.raises(grpc.RpcError, match="cannot be made beside"):
            await start(kubelet, host, bus, "one", "3g.20gb", 4)
        become(host, f"{A100}mig 0 13 4 3g.20gb 19968 MIG-of-an-administrator\n")
        await offered(bus, MigInstance(profile="3g.20gb", start=4))
        with pytest.raises(grpc.RpcError, match="somebody else has made"):
            await kubelet.start_container(kubelet.pods[uid("one")])
        await end(kubelet, host, "one")
        await start(kubelet, host, bus, "two", "1g.5gb", 0)
        assert not any(line.split()[2] == "13" for line in made(host)), "nothing was done to it"


async def test_a_start_that_the_kubelet_abandons_is_recorded(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus)
        begun = len(made(host))
        abandoned = asyncio.create_task(start(kubelet, host, bus, "one", "2g.10gb", 2))
        await eventually(lambda: len(made(host)) > begun)
        abandoned.cancel()
        await start(kubelet, host, bus, "two", "1g.5gb", 0)
    recorded = msgspec.json.decode((host / "state" / "mig.json").read_bytes())["own"]
    assert {one["id"]: one["place"]["start"] for one in recorded} == standing(host) == {1: 2, 2: 0}


async def test_half_an_instance_whose_id_was_not_noted_is_the_agents(
    nats: EmbeddedServer, bus: NatsBus, host: Path
) -> None:
    """As a crash leaves it that comes right after the first call."""
    (host / "state").mkdir()
    intent = {"place": {"gpu": "GPU-a", "profile": "2g.10gb", "start": 2}, "holder": "u"}
    record = {"boot_id": "boot-1", "own": [intent], "proven": {"GPU-a": DRIVER}}
    (host / "state" / "mig.json").write_bytes(msgspec.json.encode(record))
    (host / "nvml.mig").write_text("made 0 1 2 14\n")
    async with mig_agent(nats, host):
        await eventually(lambda: standing(host) == {})
        await offered(bus)


async def test_a_record_that_cannot_be_written_is_named_and_ends_nothing(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    async with mig_agent(nats, host) as ctx:
        await kubelet.sees_slots()
        await offered(bus)
        await start(kubelet, host, bus, "one", "2g.10gb", 2)
        (host / "state" / "mig.json.new").mkdir()
        await end(kubelet, host, "one")
        says = "the record of MIG instances cannot be written; free some space in"
        await eventually(lambda: says in ctx.health.report()["parts"].get("mig", {}).get("detail", ""))
        with pytest.raises(grpc.RpcError, match=says):
            await start(kubelet, host, bus, "two", "1g.5gb", 0)
        (host / "state" / "mig.json.new").rmdir()
        await kubelet.start_container(kubelet.pods[uid("two")])
        await eventually(lambda: "mig" not in ctx.health.report()["parts"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (A100.replace("2g.10gb 2 9856 2 15", "2g.10gb 2 9856 2 5"), "places 2g.10gb at 0, 2, and Kerf at 0, 2, 4"),
        (f"{A100}deny 0 gi\n", "NVML: Unknown Error"),
        (A100 + "profile 0 10 25 1g.5gb+gfx 1 4864 1 7f\nmig 0 12 4 1g.5gb+gfx 4864 MIG-x\n", "profile that Kerf does"),
        (A100 + "mig 0 12 0 7g.40gb 40192 MIG-x\n", "leave no room"),
    ],
    ids=["other-placements", "no-instances", "unknown-profile", "no-room"],
)
async def test_a_gpu_on_which_it_does_not_work_offers_nothing(
    nats: EmbeddedServer, bus: NatsBus, host: Path, text: str, why: str
) -> None:
    become(host, text)
    async with mig_agent(nats, host) as ctx:
        await eventually(lambda: why in ctx.health.report()["parts"].get("mig", {}).get("detail", ""), what=why)
        found = await eventually(lambda: gpu(bus))
        assert (found.mig_enabled, found.mig_on_demand, found.mig_instances) == (True, False, ())
        assert standing(host) == {}
        become(host, A100)
        await offered(bus)


async def test_another_driver_is_proven_again(nats: EmbeddedServer, bus: NatsBus, host: Path) -> None:
    for version, proofs in ((DRIVER, 1), (DRIVER, 1), ("590.1", 2)):
        become(host, A100.replace(DRIVER, version))
        async with mig_agent(nats, host):
            await offered(bus)
            assert sum(line.startswith("made") for line in made(host)) == proofs


async def test_after_a_reboot_no_instance_is_the_agents(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet
) -> None:
    """They end with a reboot, so one in the same place, with the same id, was made by somebody else."""
    async with mig_agent(nats, host):
        await kubelet.sees_slots()
        await offered(bus)
        await start(kubelet, host, bus, "one", "1g.5gb", 4)
    (host / "nvml.mig").unlink()
    (host / "boot_id").write_text("boot-2\n")
    become(host, A100 + FOREIGN.replace(" 12 ", " 1 "))
    async with mig_agent(nats, host):
        await offered(bus, MigInstance(profile="1g.5gb", start=4))
    assert made(host) == [], "the proof stands, and the foreign instance too"


async def test_a_damaged_record_stops_the_agent(nats: EmbeddedServer, host: Path) -> None:
    """Without it the agent does not know which instances are its own."""
    (host / "state").mkdir()
    (host / "state" / "mig.json").write_text("{")
    with pytest.raises(msgspec.DecodeError):
        async with mig_agent(nats, host):
            await asyncio.Event().wait()
