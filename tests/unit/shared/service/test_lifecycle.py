"""A service from start to drain, on a real bus."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import structlog

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming, NoStream
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.contracts.envelope import unwrap
from shared.contracts.events import PodBound
from shared.contracts.metrics_queries import SpanBatch
from shared.service import Context, Lifecycle, Service, ServiceFailed, load, run, running
from shared.service.lifecycle import _keep_replicas, _provision_again
from tests.support.waiting import eventually


class Config(msgspec.Struct, frozen=True):
    size: int = 1
    names: tuple[str, ...] = ()


class Demo(Service):
    """A service that records the calls that it gets."""

    name: ClassVar[str] = "demo"
    config_type: ClassVar[type] = Config
    provisions: ClassVar[bool] = True
    latest: ClassVar[Demo]

    def __init__(self) -> None:
        type(self).latest = self
        self.did: list[str] = []

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        self.did.append("start")
        await ctx.bus.subscribe("kerf.test.demo", self.answer)

        async def closed() -> None:
            self.did.append("closer")

        ctx.on_drain(closed)

    async def answer(self, incoming: Incoming) -> None:
        await self.ctx.bus.respond(incoming, str(self.ctx.config.size).encode())

    async def drain(self) -> None:
        self.did.append("drain")


class Quiet(Service):
    name: ClassVar[str] = "quiet"
    needs_bus: ClassVar[bool] = False

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx

    async def drain(self) -> None:
        return


def lifecycle(**more: Any) -> Lifecycle:
    return msgspec.structs.replace(Lifecycle(http_port=0, nats_wait_s=5.0, trace_ratio=1.0), **more)


async def test_it_starts_serves_and_drains_in_order(server: EmbeddedServer, get) -> None:
    """Streams are created before start; drain comes before what was registered with on_drain; health reports each
    stage."""
    async with running(Demo, Config(size=3), bus_url=server.url, lifecycle=lifecycle()) as ctx:
        async with await NatsBus.connect(server.url) as other:
            assert await other.request("kerf.test.demo", b"") == b"3"
            assert await other.log_end() == 0
        assert await get(ctx.http_port, "/readyz") == (
            200,
            {"ready": True, "started": True, "draining": False, "parts": {}, "bus": True},
        )
        assert (await get(ctx.http_port, "/healthz"))[0] == 200
        status, text = await get(ctx.http_port, "/metrics")
        assert status == 200
        assert "kerf_bus_connected 1.0" in text
    assert Demo.latest.did == ["start", "drain", "closer"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", ctx.http_port)


async def test_an_unhealthy_part_makes_the_service_unready_with_a_reason(get) -> None:
    async with running(Quiet, lifecycle=lifecycle()) as ctx:
        ctx.health.set("feed", ok=False, detail="no snapshot yet")
        status, body = await get(ctx.http_port, "/readyz")
        assert (status, body["parts"]) == (503, {"feed": {"ok": False, "detail": "no snapshot yet"}})
        ctx.health.set("feed", ok=True)
        assert (await get(ctx.http_port, "/readyz"))[0] == 200
        assert (await get(ctx.http_port, "/nothing"))[0] == 404
        assert (await get(ctx.http_port, "/healthz", method="POST"))[0] == 405


async def test_without_a_bus_it_is_not_ready(server: EmbeddedServer, get) -> None:
    async with running(Demo, bus_url=server.url, lifecycle=lifecycle()) as ctx:
        await server.kill()
        await eventually(lambda: not ctx.bus.connected)
        assert (await get(ctx.http_port, "/readyz"))[0] == 503
        assert (await get(ctx.http_port, "/healthz"))[0] == 200


async def test_a_service_without_bus_gets_none(get) -> None:
    async with running(Quiet, lifecycle=lifecycle()) as ctx:
        with pytest.raises(BusError, match="service quiet has no bus"):
            _ = ctx.bus


async def test_a_task_that_fails_ends_the_service_with_its_reason() -> None:
    class Failing(Quiet):
        async def start(self, ctx: Context) -> None:
            async def work() -> None:
                raise RuntimeError("out of luck")

            ctx.spawn(work(), name="worker")

    with pytest.raises(ServiceFailed, match=r"quiet: task quiet:worker failed: RuntimeError\('out of luck'\)"):
        await run(Failing, stop=asyncio.Event(), lifecycle=lifecycle())


async def test_a_bus_that_closed_for_good_ends_the_service(server: EmbeddedServer) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    running_service = asyncio.create_task(run(Demo, bus_url=server.url, stop=stop, lifecycle=lifecycle(), ready=ready))
    await ready.wait()
    await Demo.latest.ctx.bus._connection.nc._process_err("'unknown protocol operation'")  # as on a fatal -ERR
    with pytest.raises(ServiceFailed, match="closed for good"):
        await asyncio.wait_for(running_service, 15)
    assert Demo.latest.did[-2:] == ["drain", "closer"]


async def test_a_drain_that_hangs_is_cut_off(server: EmbeddedServer) -> None:
    class Hanging(Demo):
        async def drain(self) -> None:
            await asyncio.Event().wait()

    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(run(Hanging, bus_url=server.url, stop=stop, lifecycle=lifecycle(drain_timeout_s=0.1)), 10)
    assert Hanging.latest.did == ["start", "closer"]


async def test_a_start_that_fails_closes_what_was_opened(server: EmbeddedServer) -> None:
    class Broken(Demo):
        async def start(self, ctx: Context) -> None:
            self.bus = ctx.bus
            raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        await run(Broken, bus_url=server.url, stop=asyncio.Event(), lifecycle=lifecycle())
    assert not Broken.latest.bus.connected


async def test_streams_are_made_again_after_a_wipe(server: EmbeddedServer) -> None:
    """A service that owns streams provisions at each reconnection, because the store may be lost."""
    async with running(Demo, bus_url=server.url, lifecycle=lifecycle()) as ctx:
        await server.restart(wipe=True)

        async def back() -> bool:
            try:
                return await ctx.bus.log_end() == 0
            except BusError:
                return False

        await eventually(back)


async def test_events_travel_as_cloudevents_with_their_source(server: EmbeddedServer) -> None:
    async with running(Demo, bus_url=server.url, lifecycle=lifecycle()) as ctx:
        came: list[Incoming] = []

        async def heard(incoming: Incoming) -> None:
            came.append(incoming)

        await ctx.bus.subscribe(subjects.EVENTS_ALL, heard)
        event = PodBound(uid="u", namespace="team.a", name="p", node="n")
        identity = ctx.emit(event, namespace="team.a", about="team.a/p")
        await eventually(lambda: came)
        envelope, body = unwrap(came[0].payload)
        assert came[0].subject == "kerf.v1.event.pod.bound.ns.team_2ea"
        assert (envelope.id, envelope.source, envelope.type, body) == (
            identity,
            f"/kerf/demo/{ctx.instance}",
            "dev.kerf.pod.bound.v1",
            event,
        )
        with pytest.raises(ValueError, match="name one"):
            ctx.emit(event)


async def test_finished_spans_come_over_the_bus_even_the_last_ones(server: EmbeddedServer) -> None:
    async with await NatsBus.connect(server.url) as other:
        names: list[str] = []

        async def heard(incoming: Incoming) -> None:
            names.extend(span.name for span in decode(incoming.payload, SpanBatch).spans)

        await other.subscribe(subjects.SPANS_ALL, heard)
        async with running(Demo, bus_url=server.url, lifecycle=lifecycle()) as ctx:
            ctx.telemetry.pod_span("uid", "first")
            await eventually(lambda: names == ["first"])
            ctx.telemetry.pod_span("uid", "at the very end")
        await eventually(lambda: names == ["first", "at the very end"])


async def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(
    tmp_path: Path, get, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid change keeps the last valid settings, and is reported in log, metric and health."""
    monkeypatch.setattr("shared.service.lifecycle.CONFIG_POLL_S", 0.02)

    class Configured(Quiet):
        config_type: ClassVar[type] = Config
        seen: ClassVar[list[Any]] = []

        async def start(self, ctx: Context) -> None:
            async def changed(config: Config) -> None:
                self.seen.append(config)

            ctx.on_config(changed)

    file = tmp_path / "config.yaml"
    file.write_text("size: 1\n")
    async with running(Configured, Config(size=1), lifecycle=lifecycle(), config_file=file) as ctx:
        await get(ctx.http_port, "/readyz")
        file.write_text("size: 2\nnames: [a]\n")
        await eventually(lambda: Configured.seen == [Config(size=2, names=("a",))])
        file.write_text("size: many\n")
        await eventually(lambda: ctx.health.report()["parts"]["config"]["detail"])
        _, report = await get(ctx.http_port, "/readyz")
        assert "setting size" in report["parts"]["config"]["detail"]
        assert report["ready"]
        assert "kerf_config_invalid 1.0" in (await get(ctx.http_port, "/metrics"))[1]
        assert ctx.config == Config(size=2, names=("a",))
        file.write_text("size: 3\n")
        await eventually(lambda: ctx.config == Config(size=3))
        assert "kerf_config_invalid 0.0" in (await get(ctx.http_port, "/metrics"))[1]


async def test_several_services_share_a_process(server: EmbeddedServer, get) -> None:
    """`kerf up`: no state is shared but logging."""
    async with (
        running(Demo, Config(size=1), bus_url=server.url, lifecycle=lifecycle()) as one,
        running(Quiet, lifecycle=lifecycle()) as two,
    ):
        assert one.http_port != two.http_port
        one.metrics.counter("kerf_only_one", "One.").add()
        assert "kerf_only_one" not in (await get(two.http_port, "/metrics"))[1]


def test_a_service_is_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("services.demo_thing.service")
    module.SERVICE = Demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "services.demo_thing", types.ModuleType("services.demo_thing"))
    monkeypatch.setitem(sys.modules, "services.demo_thing.service", module)
    assert load("demo-thing") is Demo
    module.SERVICE = 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="is no subclass"):
        load("demo_thing")


@pytest.mark.parametrize("name", ["nothing", "../x", "Upper", ""])
def test_an_unknown_service_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="service"):
        load(name)


async def test_a_stream_that_another_instance_has_just_made_is_looked_for_again(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three servers, the one that answers may not know it yet; the service ended then."""
    found: list[tuple[str, ...]] = []
    provision = Context.provision

    async def late(ctx: Context) -> tuple[str, ...]:
        found.append(())
        if len(found) == 1:
            raise NoStream("stream not found")
        return await provision(ctx)

    class Provisions(Service):
        name = "provisions"
        provisions = True

        async def start(self, ctx: Context) -> None: ...

    monkeypatch.setattr(Context, "provision", late)
    async with running(Provisions, bus_url=server.url) as ctx:
        assert ctx.health.ready
    assert len(found) == 2


async def test_servers_that_came_back_empty_get_their_streams_when_they_can_make_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first server of a cluster lets clients in before there are enough of them to make a stream."""
    monkeypatch.setattr("shared.service.lifecycle.REPLICAS_POLL_S", 0.01)
    tried: list[bool] = []

    async def provision() -> list[str]:
        tried.append(len(tried) >= 3)
        if not tried[-1]:
            raise BusError("insufficient resources")
        return ["KERF_LOG"]

    bus, log = types.SimpleNamespace(connected=True), structlog.get_logger()
    ctx: Any = types.SimpleNamespace(bus=bus, log=log, unscaled={}, provisioned=True, provision=provision)
    with pytest.raises(BusError):
        await _provision_again(ctx)  # when it has connected again
    keeping = asyncio.create_task(_keep_replicas(ctx))
    await eventually(lambda: ctx.provisioned)
    keeping.cancel()
    assert tried == [False, False, False, True]
