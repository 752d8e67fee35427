"""All of Kerf in one process, over a NATS server of its own: for laptops, demos and tests.

The services are the same as in a cluster and find out nothing: they are started by name, each with a bus connection of
its own, and speak over NATS.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cli.output import Failure
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.service import Context, Lifecycle, load, running


class Stack(msgspec.Struct):
    """What runs. `services` by name; `bus` is a connection for the caller."""

    url: str
    bus: NatsBus
    services: dict[str, Context]
    server: EmbeddedServer
    page: str = ""
    """The address of the live page; empty: there is none."""

    def failed(self) -> str:
        """What ended by itself, empty while all is well."""
        return next((ctx.failure.result() for ctx in self.services.values() if ctx.failure.done()), "")


@contextlib.asynccontextmanager
async def stack(
    nodes: Sequence[Mapping[str, Any]] = (),
    *,
    kubeconfig: str = "",
    trace_ratio: float | None = None,
    store: Path | None = None,
    port: int = 0,
    http_port: int = -1,
    metrics_port: int = -1,
    page_port: int = -1,
    prices: str = "",
    placement: Mapping[str, Any] | None = None,
    preemption: Mapping[str, Any] | None = None,
    server: EmbeddedServer | None = None,
) -> AsyncIterator[Stack]:
    """Everything is up and ready inside the block, and stopped after it.

    `nodes` are simulated nodes (name, model, count, memory_mib) with hollow agents. Without `kubeconfig` the cluster is
    simulated too, and pods pass admission's webhook over loopback as they would with an API server. `preemption`: the
    preemptor's settings; None: no preemptor runs, and no pod is preempted.
    """
    async with contextlib.AsyncExitStack() as made:
        nats = server or EmbeddedServer(store_dir=store, port=port)
        await made.enter_async_context(nats)
        services: dict[str, Context] = {}

        async def up(name: str, config: Mapping[str, Any], http: int = -1) -> Context:
            kind = load(name)
            settings = Lifecycle(nats_url=nats.url, trace_ratio=trace_ratio, http_port=http)
            ctx = await made.enter_async_context(
                running(kind, msgspec.convert(dict(config), kind.config_type), lifecycle=settings)
            )
            services[name] = ctx
            return ctx

        await up("placement", placement or {}, http_port)
        watcher: dict[str, Any] = {"source": "kubernetes", "kubeconfig": kubeconfig}
        if not kubeconfig:
            admission = await up("admission", {"host": "127.0.0.1", "port": 0})
            watcher = {"source": "simulated", "admission_url": f"http://127.0.0.1:{_port_of(admission)}/mutate"}
        await up("watcher", watcher)
        if nodes:
            await up("node-agent", {"hollow": list(nodes)})
        await up("metrics", {"page_port": page_port, "prices": prices}, metrics_port)
        if preemption is not None:
            await up("preemptor", preemption)
        bus = await NatsBus.connect(nats.url, name="kerf-up")
        made.push_async_callback(bus.drain)
        await _ready(services)
        page = services["metrics"].health.report()["parts"].get("page", {}).get("detail", "")
        yield Stack(url=nats.url, bus=bus, services=services, server=nats, page=page)


def _port_of(admission: Context) -> int:
    """Admission's health report says where it listens."""
    detail: str = admission.health.report()["parts"]["webhook"]["detail"]
    return int(detail.removeprefix("port "))


async def _ready(services: Mapping[str, Context], *, timeout_s: float = 60.0) -> None:
    """Waits until every service is ready. Raises Failure naming those that are not."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        waiting = {name: ctx.health.report()["parts"] for name, ctx in services.items() if not ctx.health.ready}
        if not waiting:
            return
        if asyncio.get_running_loop().time() > deadline:
            why = {
                name: ", ".join(f"{part}: {one['detail']}" for part, one in parts.items() if not one["ok"])
                for name, parts in waiting.items()
            }
            said = "; ".join(f"{name} ({parts or 'starting'})" for name, parts in why.items())
            raise Failure(f"not ready after {timeout_s:g} s: {said}. If the machine was busy, try again")
        await asyncio.sleep(0.02)


def quiet_logs() -> None:
    """Warnings and worse to stderr: progress messages are the caller's."""
    from shared.telemetry import configure_logging  # noqa: PLC0415 - only commands that run services need it

    configure_logging("warning" if sys.stderr.isatty() else "error")
