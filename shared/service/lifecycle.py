"""One service from start to drain, inside any event loop: no signals, no globals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import structlog

from shared.bus.jetstream import ApiFailure
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Bus, BusError, Incoming, NoStream, Unknown
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.metrics_queries import SpanBatch
from shared.contracts.queries import ABOUT, AboutAnswer
from shared.plugins import loaded
from shared.service.base import Context, Health, Service, new_instance
from shared.service.http import HealthServer, as_json
from shared.service.settings import ConfigError, Lifecycle, read_config
from shared.telemetry.metrics import Gauge, Metrics
from shared.telemetry.spans import Telemetry
from shared.version import version

SPAN_FLUSH_S = 0.5
CONFIG_POLL_S = 2.0
REPLICAS_POLL_S = 5.0
PROVISION_AGAIN_S = 0.5


class ServiceFailed(RuntimeError):
    """A service ended by itself: a supervised task failed, or the bus closed for good."""


async def run(
    service: type[Service],
    config: Any = None,
    *,
    bus_url: str | None = None,
    stop: asyncio.Event,
    lifecycle: Lifecycle | None = None,
    config_file: Path | None = None,
    reload: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
) -> None:
    """Runs a service until `stop` is set, then drains it. Raises what start() raises, and ServiceFailed."""
    async with running(
        service, config, bus_url=bus_url, lifecycle=lifecycle, config_file=config_file, reload=reload
    ) as ctx:
        if ready is not None:
            ready.set()
        stopping = asyncio.create_task(stop.wait())
        either: set[asyncio.Future[Any]] = {stopping, ctx.failure}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if ctx.failure.done() and not stop.is_set():
            raise ServiceFailed(f"{service.name}: {ctx.failure.result()}")


@contextlib.asynccontextmanager
async def running(
    service: type[Service],
    config: Any = None,
    *,
    bus_url: str | None = None,
    lifecycle: Lifecycle | None = None,
    config_file: Path | None = None,
    reload: asyncio.Event | None = None,
) -> AsyncIterator[Context]:
    """A started service; it is drained at the end of the block. The caller watches `ctx.failure`."""
    settings = Lifecycle() if lifecycle is None else lifecycle
    config = service.config_type() if config is None else config
    instance = new_instance()
    log = structlog.get_logger().bind(service=service.name, instance=instance)
    telemetry = Telemetry(service.name, instance, ratio=settings.trace_ratio, to_bus=service.needs_bus)
    metrics, health, http = Metrics(), Health(), HealthServer()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, telemetry.shutdown)
        bus: NatsBus | None = None
        owner: list[Context] = []

        def closed(reason: str) -> None:
            for context in owner:
                context.fail(reason)

        if service.needs_bus:
            bus = await NatsBus.connect(
                bus_url or settings.nats_url,
                name=f"kerf-{service.name}-{instance}",
                credentials=settings.nats_credentials,
                token_file=settings.nats_token_file,
                ca_file=settings.nats_ca,
                timeout_s=settings.nats_wait_s,
                inbox_prefix=service.inbox_prefix(config, settings),
                on_closed=closed,
            )
            stack.push_async_callback(bus.drain)
        ctx = Context(
            service=service.name,
            config=config,
            instance=instance,
            log=log,
            telemetry=telemetry,
            metrics=metrics,
            health=health,
            bus=bus,
            replicas=settings.nats_replicas,
        )
        owner.append(ctx)
        metrics.observe_by(
            "kerf_build_info",
            "1; the labels say what runs.",
            lambda: {(version(), service.name): 1.0},
            labels=("version", "service"),
        )
        _config_invalid(metrics)  # 0 where there is no file: an alert's expression has samples everywhere
        if bus is not None:
            _watch_bus(bus, ctx)
        if settings.http_port >= 0:
            _routes(http, ctx)
            ctx.http_port = await http.start(settings.http_host, settings.http_port)
            stack.push_async_callback(http.stop)
        if bus is not None and service.provisions and settings.provision:
            await _provision_first(ctx, settings.nats_wait_s)
            bus.on_reconnect(lambda: _provision_again(ctx))
            ctx.spawn(_keep_replicas(ctx), name="replicas")
        stack.push_async_callback(ctx.close)
        ctx.spawn(_background(ctx, bus), name="spans")
        if config_file is not None:
            ctx.spawn(_follow_config(service, ctx, config_file, reload or asyncio.Event()), name="config")
        instance_of = service()
        await instance_of.start(ctx)
        stack.push_async_callback(_drain, instance_of, ctx, settings.drain_timeout_s)
        health.started = True
        if bus is not None:
            await _answer_about(ctx, bus)
        for plugin in loaded():
            log.info("plugin_loaded", group=plugin.group, name=plugin.name, package=plugin.package)
        log.info("service_started", http_port=ctx.http_port)
        yield ctx


def _config_invalid(metrics: Metrics) -> Gauge:
    return metrics.gauge("kerf_config_invalid", "1 while the config file is invalid and the last good one is in force.")


async def _answer_about(ctx: Context, bus: Bus) -> None:
    """Answers which instance this is. A server with the permissions of an earlier version does not allow it."""

    async def about(incoming: Incoming) -> None:
        problems = {name: part["detail"] for name, part in ctx.health.report()["parts"].items() if not part["ok"]}
        answer = AboutAnswer(
            service=ctx.service,
            instance=ctx.instance,
            version=version(),
            now_ms=round(time.time() * 1000),
            ready=ctx.health.ready,
            problems=problems,
        )
        await bus.respond(incoming, encode(answer))

    try:
        await bus.subscribe(ABOUT.subject, about)
    except BusError as error:
        ctx.log.warning("about_not_answered", error=str(error))


async def _provision_first(ctx: Context, wait_s: float) -> None:
    """Servers that have just started have no leader for some seconds, or not enough of them are there yet. A stream
    that another instance has just made is not known to all of them at once."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            await ctx.provision()
            return
        except (Unknown, ApiFailure, NoStream) as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            ctx.log.warning("bus_not_provisioned", error=str(error))
        await asyncio.sleep(PROVISION_AGAIN_S)


async def _provision_again(ctx: Context) -> None:
    ctx.provisioned = False
    made = await ctx.provision()
    ctx.provisioned = True
    if made:
        ctx.log.warning("bus_provisioned_again", streams=made)


async def _keep_replicas(ctx: Context) -> None:
    """Streams get the replicas of the setting when the servers for them are there; servers that came back without
    streams get them as soon as they can make them."""
    while True:
        await asyncio.sleep(REPLICAS_POLL_S)
        if (ctx.unscaled or not ctx.provisioned) and ctx.bus.connected:
            try:
                await _provision_again(ctx)
            except BusError as error:
                ctx.log.warning("bus_not_provisioned", error=str(error))


def _watch_bus(bus: NatsBus, ctx: Context) -> None:
    def reader(name: str) -> Callable[[], float]:
        return lambda: float(getattr(bus.stats, name))

    for name in vars(bus.stats):
        ctx.metrics.observe_by(
            f"kerf_bus_{name}", f"Bus client: {name.replace('_', ' ')}.", reader(name), kind="counter"
        )
    ctx.metrics.observe_by("kerf_bus_connected", "1 while there is a connection to NATS.", lambda: float(bus.connected))
    ctx.metrics.observe_by(
        "kerf_spans_dropped",
        "Spans dropped before they were published.",
        lambda: float(ctx.telemetry.dropped),
        kind="counter",
    )


def _routes(http: HealthServer, ctx: Context) -> None:
    def bus_up() -> bool:
        return ctx._bus is None or ctx._bus.connected

    def alive() -> tuple[int, str, bytes]:
        return as_json(
            503 if ctx.failure.done() else 200,
            {
                "service": ctx.service,
                "instance": ctx.instance,
                "failure": ctx.failure.result() if ctx.failure.done() else "",
            },
        )

    def ready() -> tuple[int, str, bytes]:
        good = ctx.health.ready and bus_up()
        return as_json(200 if good else 503, ctx.health.report() | {"ready": good, "bus": bus_up()})

    http.route("/healthz", alive)
    http.route("/readyz", ready)
    http.route("/metrics", lambda: (200, "text/plain; version=0.0.4; charset=utf-8", ctx.metrics.render()))


async def _background(ctx: Context, bus: Bus | None) -> None:
    """Publishes finished spans. The tracing SDK is imported here, in a thread, so that it delays nothing."""
    await asyncio.to_thread(ctx.telemetry.warm)
    if bus is None:
        return
    subject = subjects.spans(ctx.service)
    try:
        while True:
            await asyncio.sleep(SPAN_FLUSH_S)
            await _publish_spans(ctx, bus, subject)
    finally:
        await _publish_spans(ctx, bus, subject)


async def _publish_spans(ctx: Context, bus: Bus, subject: str) -> None:
    while bus.connected and (spans := ctx.telemetry.take(256)):
        try:
            await bus.publish(subject, encode(SpanBatch(spans=spans)))
        except BusError as error:  # traces are not what the service is for
            ctx.log.warning("spans_not_published", spans=len(spans), error=str(error))


async def _follow_config(service: type[Service], ctx: Context, file: Path, reload: asyncio.Event) -> None:
    """Reads a changed file again: a valid one is applied; an invalid one is reported, and the last valid one kept."""
    invalid = _config_invalid(ctx.metrics)
    taken = seen = _stamp(file)
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIG_POLL_S):
                await reload.wait()
        before, seen = seen, _stamp(file)
        # A file that is just being written is left alone until it rests: half of it, or none, may be valid too.
        if not reload.is_set() and (seen == taken or seen != before):
            continue
        reload.clear()
        taken = seen
        try:
            config: Any = read_config(service.name, service.config_type, file=file)[0]
        except ConfigError as error:
            invalid.set(1)
            ctx.health.set("config", ok=True, detail=f"the last good settings stay in force: {error}")
            ctx.log.error("config_invalid", error=str(error), kept="the last good one")
            continue
        invalid.set(0)
        ctx.health.set("config", ok=True)
        ctx.log.info("config_changed", file=str(file))
        await ctx.change_config(config)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_ino)


async def _drain(service: Service, ctx: Context, timeout_s: float) -> None:
    ctx.health.draining = True
    ctx.log.info("service_draining")
    try:
        async with asyncio.timeout(timeout_s):
            await service.drain()
    except TimeoutError:
        ctx.log.error("service_drain_timed_out", seconds=timeout_s)
