"""Instances of the agent's that are left when the layout becomes fixed: each ends with its pod, and under no other.

`tests/contract/test_mig_on_demand.py` shows the rest of it, with a whole agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from services.node_agent.mig import instances, nvml, record
from services.node_agent.mig.instances import MigInstances
from services.node_agent.mig.layout import Own, Place
from services.node_agent.mig.nvml import MigError
from shared.bus.tasks import end
from shared.model.gpu import Gpu
from shared.model.grant import GpuShare
from shared.model.mig import MigInstance
from shared.service import Health

PLACE, ENDED = (Place(gpu="GPU-a", profile="1g.10gb", start=start) for start in (0, 1))
OWN = MigInstance(profile="1g.10gb", start=0, uuid="MIG-own")
OTHER = MigInstance(profile="3g.40gb", start=4, uuid="MIG-of-an-administrator")
GPU = Gpu(uuid="GPU-a", index=0, model="NVIDIA-H100", memory_mib=81559, mig_enabled=True, mig_instances=(OWN, OTHER))


def share(uuid: str = "") -> GpuShare:
    """Of the agent's instance: by its place, as it was granted on demand, or by its UUID."""
    mig = MigInstance(profile="1g.10gb", start=0, uuid=uuid)
    return GpuShare(node="n", uuid="GPU-a", memory_mib=9728, compute_milli=142, mig=mig)


class Driver:
    """NVML, as far as the agent destroys its instances and looks for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.destroyed: list[Place] = []
        self.why = ""
        self.meanwhile: Callable[[], object] = lambda: None
        """Called while it destroys the instance."""
        for name in ("nvmlInit", "nvmlShutdown"):
            monkeypatch.setattr(pynvml, name, lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        monkeypatch.setattr(nvml, "destroy", self._destroy)
        monkeypatch.setattr(instances, "_ids_of", self._ids_of)

    def _destroy(self, _handle: Any, own: Own) -> None:
        self.meanwhile()
        if self.why:
            raise MigError(self.why)
        self.destroyed.append(own.place)

    def _ids_of(self, uuid: str) -> tuple[int, int]:
        if uuid == OWN.uuid and PLACE in self.destroyed:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 3, 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


class Context:
    """What the instances use of a service's context."""

    def __init__(self) -> None:
        self.health = Health()
        self.log: Any = SimpleNamespace(warning=lambda *_, **__: None)
        histogram = SimpleNamespace(observe=lambda *_: None)
        self.metrics: Any = SimpleNamespace(histogram=lambda *_, **__: histogram, observe_by=lambda *_, **__: None)
        self.tasks: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))


class Site:
    """A node whose layout is fixed now; pods u0 and u1 got instances there while it was on demand, and u0 has ended."""

    def __init__(self, folder: Path) -> None:
        self.held: list[tuple[str, GpuShare]] = [("u1", share())]
        self.context = Context()
        self._file = folder / "mig.json"
        own = (Own(place=ENDED, holder="u0", id=2), Own(place=PLACE, holder="u1", id=3))
        record.save(self._file, record.Record(boot_id="b", own=own))
        self.instances = self.agent()
        self._reported: asyncio.Queue[tuple[MigInstance, ...]] = asyncio.Queue()

    def agent(self) -> MigInstances:
        return MigInstances(
            self.context,  # type: ignore[arg-type]
            on_demand=False,
            file=self._file,
            boot_id="b",
            timeout_s=5.0,
            held=lambda: self.held,
            inventory=lambda: None,
        )

    def offered(self) -> tuple[MigInstance, ...]:
        return self.instances.describe(GPU, None).mig_instances

    def begin(self) -> None:
        async def report() -> None:
            await self._reported.put(self.offered())

        self.instances.start(report)

    async def reported(self) -> tuple[MigInstance, ...]:
        """Waits until the inventory is to be read again. Returns what was offered then."""
        async with asyncio.timeout(5):
            return await self._reported.get()

    async def end(self) -> None:
        for task in self.context.tasks:
            await end(task)


@pytest.fixture
async def site(tmp_path: Path, driver: Driver) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await made.end()


async def test_an_instance_that_is_left_is_offered_for_as_long_as_its_pod_holds_it(site: Site, driver: Driver) -> None:
    """The pod's container may start again, and is refused where its node offers no such instance."""
    site.begin()
    assert await site.reported() == (OWN, OTHER)
    assert driver.destroyed == [ENDED]
    site.held = []
    site.instances.wake()
    assert await site.reported() == (OTHER,), "at once, and not when the inventory is read the next time"
    assert driver.destroyed == [ENDED, PLACE]


async def test_one_that_is_not_held_is_not_offered_before_it_is_destroyed(site: Site, driver: Driver) -> None:
    site.held = []
    assert site.agent().describe(GPU, None).mig_instances == (OTHER,), "by an agent that has just started"
    during: list[tuple[MigInstance, ...]] = []
    driver.meanwhile = lambda: during.append(site.offered())
    driver.why = "it is used by process 1"
    site.begin()
    assert await site.reported() == (OTHER,), "nor while it cannot be destroyed"
    assert during == [(OTHER,)] * 2


async def test_one_that_another_pod_was_given_by_its_uuid_is_not_destroyed_under_that_pod(
    site: Site, driver: Driver
) -> None:
    """Placement knows it from the last inventory, of a time at which the first pod still held it."""
    site.held = [("u2", share("MIG-own"))]
    site.begin()
    assert await site.reported() == (OWN, OTHER), "its container may start again, too"
    assert driver.destroyed == [ENDED]
    assert await site.instances.ids("u2", [share("MIG-own")]) == {PLACE: (3, 0)}
    site.held = []
    site.instances.wake()
    await site.reported()
    assert driver.destroyed == [ENDED, PLACE], "it ends with the pod that had it last"


async def test_a_container_that_starts_while_its_instance_is_destroyed_is_refused(site: Site, driver: Driver) -> None:
    """It gets no ids of an instance that is gone a moment later."""
    loop = asyncio.get_running_loop()
    starts: list[asyncio.Task[Any]] = []

    async def start() -> None:
        if not starts:
            site.held = [("u2", share("MIG-own"))]
            starts.append(loop.create_task(site.instances.ids("u2", [share("MIG-own")])))

    def meanwhile() -> None:
        for step in (start(), asyncio.sleep(0)):  # with the second one the start is under way
            asyncio.run_coroutine_threadsafe(step, loop).result(5)

    site.held, driver.meanwhile = [], meanwhile
    site.begin()
    await site.reported()
    assert driver.destroyed == [ENDED, PLACE]
    with pytest.raises(MigError, match="NVML"):
        await starts[0]


async def test_an_instance_of_an_administrators_is_read_as_ever(site: Site, driver: Driver) -> None:
    theirs = GpuShare(node="n", uuid="GPU-a", memory_mib=9728, compute_milli=142, mig=OTHER)
    assert await site.instances.ids("u3", [theirs]) == {Place(gpu="GPU-a", profile="3g.40gb", start=4): (3, 0)}
