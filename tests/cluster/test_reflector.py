"""The reflector against a real API server, in the weather it was built for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import structlog

from shared.contracts.facts import Fact, Gone, Put
from shared.kube import resources
from shared.kube.access import load_access
from shared.kube.client import connect, transport_for
from shared.kube.reflector import Reflector
from shared.kube.timing import Timing
from shared.kube.transport import Transport
from shared.model.objects import version
from tests.support.cluster import own_control_plane
from tests.support.waiting import eventually
from tests.support.wire import Wire
from tools.control_plane import ControlPlane

__all__ = ["own_control_plane"]
pytestmark = pytest.mark.cluster

QUICK = Timing(backoff_s=0.02, backoff_max_s=0.2, silence_s=2.0)


class Watched:
    """A reflector of pods that runs, and what it emitted."""

    def __init__(self, transport: Transport, *, watch_list: bool = True, timing: Timing = QUICK) -> None:
        self.facts: list[Fact] = []
        self.reflector = Reflector(
            transport, resources.POD, self.facts.extend, structlog.get_logger(), timing=timing, watch_list=watch_list
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        task = asyncio.create_task(self.reflector.run())
        try:
            await asyncio.wait_for(self.reflector.wait_synced(), 20)
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})

    def living(self, namespace: str) -> set[str]:
        """Names of the pods that are there by the facts."""
        there: dict[str, str] = {}
        for fact in self.facts:
            meta = fact.object.metadata
            if meta.namespace == namespace:
                if isinstance(fact, Put):
                    there[meta.uid] = meta.name
                else:
                    del there[meta.uid]
        return set(there.values())

    def check_versions(self) -> None:
        """Per uid versions rise strictly, and nothing follows an end."""
        last: dict[str, int] = {}
        ended: set[str] = set()
        for fact in self.facts:
            meta = fact.object.metadata
            assert meta.uid not in ended, "a fact after the end"
            if isinstance(fact, Gone):
                ended.add(meta.uid)
                continue
            assert version(meta) > last.get(meta.uid, 0), "a version twice"
            last[meta.uid] = version(meta)


def pod(name: str) -> bytes:
    return json.dumps({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}).encode()


async def create(transport: Transport, namespace: str, *names: str) -> None:
    slots = asyncio.Semaphore(16)

    async def one(name: str) -> None:
        async with slots:
            answer = await transport.request("POST", resources.POD.collection(namespace), pod(name), timeout_s=60)
            assert answer.status == 201, answer

    await asyncio.gather(*(one(name) for name in names))


@pytest.fixture
async def direct(control_plane: ControlPlane) -> AsyncIterator[Transport]:
    transport = await connect(str(control_plane.kubeconfig()))
    yield transport
    await transport.close()


@contextlib.asynccontextmanager
async def through(wire: Wire, plane: ControlPlane) -> AsyncIterator[Transport]:
    """A transport whose bytes pass through this wire."""
    access = await load_access(str(plane.kubeconfig()))
    transport = transport_for(msgspec.structs.replace(access, server=f"https://127.0.0.1:{wire.port}"))
    try:
        yield transport
    finally:
        await transport.close()


@pytest.mark.parametrize("watch_list", [True, False])
async def test_nothing_is_lost_when_the_wire_is_cut_again_and_again(
    control_plane: ControlPlane, direct: Transport, namespace: str, watch_list: bool
) -> None:
    names = [f"p{i}" for i in range(120)]
    async with (
        Wire(control_plane.port) as wire,
        through(wire, control_plane) as transport,
        Watched(transport, watch_list=watch_list).running() as watched,
    ):
        for start in range(0, 120, 20):
            creating = asyncio.create_task(create(direct, namespace, *names[start : start + 20]))
            await eventually(lambda enough=start + 5: len(watched.living(namespace)) >= enough, what="some of them")
            wire.cut()
            await creating
        await eventually(lambda: watched.living(namespace) == set(names), what="all of them")
        assert watched.reflector.lists == 1, "a cut watch continues; it does not list again"
        assert watched.reflector.watches > 3
        watched.check_versions()


async def test_a_silent_wire_is_noticed(control_plane: ControlPlane, direct: Transport, namespace: str) -> None:
    """A network that drops everything reports nothing; only the read time-out detects it."""
    async with (
        Wire(control_plane.port) as wire,
        through(wire, control_plane) as transport,
        Watched(transport).running() as watched,
    ):
        wire.freeze()
        await create(direct, namespace, "unheard")
        await eventually(
            lambda: "not a byte" in watched.reflector.problem or "no connection" in watched.reflector.problem,
            what="the time-out",
        )
        wire.thaw()
        await eventually(lambda: "unheard" in watched.living(namespace), what="what happened meanwhile")
        watched.check_versions()


async def test_a_burst_of_2000_pods_comes_whole(own_control_plane: ControlPlane) -> None:
    """The first burst in a fresh API server overflows its watch buffers, and it closes the watches."""
    transport = await connect(str(own_control_plane.kubeconfig()))
    try:
        async with Watched(transport).running() as watched:
            names = [f"p{i}" for i in range(2000)]
            await create(transport, "default", *names)
            await eventually(lambda: watched.living("default") == set(names), within_s=60, what="all 2000")
            assert watched.reflector.lists == 1
            watched.check_versions()
    finally:
        await transport.close()


@pytest.mark.parametrize("watch_list", [True, False])
async def test_after_an_expired_version_a_new_list_reports_what_is_missing(
    own_control_plane: ControlPlane, watch_list: bool
) -> None:
    """410: the server's history is lost (a restart and a compaction). Deletions in the gap are reported, as not
    certain."""
    plane = own_control_plane
    async with (
        Wire(plane.port) as wire,
        through(wire, plane) as transport,
        Watched(transport, watch_list=watch_list).running() as watched,
    ):
        await create(transport, "default", "stays", "goes", "comes-again")
        await eventually(lambda: len(watched.living("default")) == 3, what="the first three")
        first = {f.object.metadata.name: f.object.metadata.uid for f in watched.facts}
        wire.refuse()
        wire.cut()
        for name in ("goes", "comes-again"):
            assert plane.request("DELETE", resources.POD.path(name, "default"), {"gracePeriodSeconds": 0})[0] == 200
        for name in ("comes-again", "new"):
            assert plane.request("POST", resources.POD.collection("default"), pod(name))[0] == 201
        plane.kill_api_server()
        plane.compact()
        plane.start_api_server()
        before = watched.reflector.lists
        wire.refuse(refused=False)
        await eventually(
            lambda: watched.living("default") == {"stays", "comes-again", "new"}, what="the state after the gap"
        )
        assert watched.reflector.lists > before
        ends = {f.object.metadata.uid: f.certain for f in watched.facts if isinstance(f, Gone)}
        assert ends == {first["goes"]: False, first["comes-again"]: False}
        watched.check_versions()


async def test_the_reflector_survives_a_restart_of_the_server(own_control_plane: ControlPlane) -> None:
    transport = await connect(str(own_control_plane.kubeconfig()))
    try:
        async with Watched(transport).running() as watched:
            await create(transport, "default", "before")
            own_control_plane.kill_api_server()
            await eventually(lambda: watched.reflector.problem, what="a problem")
            await asyncio.to_thread(own_control_plane.start_api_server)
            await create(transport, "default", "after")
            await eventually(lambda: watched.living("default") == {"before", "after"}, what="both")
            assert watched.reflector.problem == ""
            watched.check_versions()
    finally:
        await transport.close()


async def test_missing_permission_is_reported(control_plane: ControlPlane) -> None:
    transport = await connect(str(control_plane.service_account("nobody", "nothing")))
    reflector = Reflector(transport, resources.POD, lambda _: None, structlog.get_logger(), timing=QUICK)
    task = asyncio.create_task(reflector.run())
    try:
        await eventually(lambda: "HTTP 403" in reflector.problem, what="the refusal")
        assert "cannot" in reflector.problem
        assert not reflector.synced
    finally:
        task.cancel()
        await asyncio.wait({task})
        await transport.close()


async def test_a_refresh_during_a_dead_wire_waits_for_a_list(
    control_plane: ControlPlane, direct: Transport, namespace: str
) -> None:
    async with (
        Wire(control_plane.port) as wire,
        through(wire, control_plane) as transport,
        Watched(transport).running() as watched,
    ):
        wire.refuse()
        wire.cut()
        await create(direct, namespace, "p")
        refreshing = asyncio.create_task(watched.reflector.refresh())
        await eventually(lambda: watched.reflector.problem, what="a problem")
        assert not refreshing.done()
        wire.refuse(refused=False)
        await asyncio.wait_for(refreshing, 10)
        assert watched.living(namespace) == {"p"}


MANY = msgspec.structs.replace(QUICK, relist_most=-1, silence_s=30.0)
"""As where many objects are known, though there are few."""


async def test_a_refresh_of_many_objects_has_what_was_there_before_it_without_a_list(
    control_plane: ControlPlane, direct: Transport, namespace: str
) -> None:
    """The watch hears nothing, so only a refresh can know that something happened."""
    async with (
        Wire(control_plane.port) as wire,
        through(wire, control_plane) as transport,
        Watched(transport, timing=MANY).running() as watched,
    ):
        await create(direct, namespace, "there", "goes")
        await watched.reflector.refresh()
        assert watched.living(namespace) == {"there", "goes"}
        wire.freeze()
        await create(direct, namespace, "unheard")
        path = f"{resources.POD.path('goes', namespace)}?gracePeriodSeconds=0"
        assert (await direct.request("DELETE", path)).status == 200
        refreshing = asyncio.create_task(watched.reflector.refresh())
        wire.thaw()
        await asyncio.wait_for(refreshing, 20)
        assert watched.living(namespace) == {"there", "unheard"}
        assert watched.reflector.lists == 1
        watched.check_versions()


async def test_a_refresh_of_many_objects_where_nothing_happens_waits_for_the_servers_word(
    control_plane: ControlPlane, direct: Transport, namespace: str
) -> None:
    """A bookmark before the end of a short watch: no pod changes, and other kinds move the server's version on."""
    await create(direct, namespace, "there")
    async with Watched(direct, timing=MANY).running() as watched:
        body = json.dumps({"metadata": {"name": "moves-the-version"}}).encode()
        answer = await direct.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
        assert answer.status == 201
        before = watched.reflector.watches
        await asyncio.wait_for(watched.reflector.refresh(), 20)
        assert watched.reflector.lists == 1
        assert watched.reflector.watches > before


async def test_a_list_of_many_pages_is_whole(control_plane: ControlPlane, direct: Transport, namespace: str) -> None:
    names = [f"p{i}" for i in range(30)]
    await create(direct, namespace, *names)
    async with Watched(direct, watch_list=False, timing=Timing(page_size=7, backoff_s=0.02)).running() as watched:
        assert watched.living(namespace) == set(names)
        assert watched.reflector.lists == 1
        watched.check_versions()
