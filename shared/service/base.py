"""What a service is, and what it is given."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar

import msgspec

from shared.bus.port import Bus, BusError
from shared.bus.provision import provision, scale
from shared.bus.tasks import end
from shared.contracts import subjects
from shared.contracts.envelope import wrap
from shared.contracts.events import Event
from shared.service.settings import Lifecycle
from shared.telemetry.metrics import Metrics
from shared.telemetry.spans import Telemetry


class NoConfig(msgspec.Struct, frozen=True):
    """For services without settings of their own."""


class Service:
    """Wiring of one service. `start` returns when it works; what goes on belongs to `ctx.spawn` and to
    subscriptions."""

    name: ClassVar[str]
    config_type: ClassVar[type] = NoConfig
    needs_bus: ClassVar[bool] = True
    provisions: ClassVar[bool] = False
    """Whether it makes the streams and buckets where they are missing, at start and after every reconnection."""
    knows_cluster: ClassVar[bool] = False
    """Whether it keeps objects of the whole cluster: millions, nearly all of them for long."""

    @classmethod
    def inbox_prefix(cls, config: Any, settings: Lifecycle) -> str:  # noqa: ARG003 - of the service's own settings
        """Where the service gets its answers: the prefix to which its NATS user may subscribe."""
        return settings.nats_inbox_prefix

    async def start(self, ctx: Context) -> None:
        """Raises to say that it cannot start; the process then ends."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Stop taking work, finish what is in flight, return. Bounded from outside."""


class Health:
    """Parts of a service and how they are. Ready means: started, not draining, and no part is bad."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[bool, str]] = {}
        self.started = False
        self.draining = False

    def set(self, part: str, *, ok: bool, detail: str = "") -> None:
        self._parts[part] = (ok, detail)

    def clear(self, part: str) -> None:
        self._parts.pop(part, None)

    @property
    def ready(self) -> bool:
        return self.started and not self.draining and all(ok for ok, _ in self._parts.values())

    def report(self) -> dict[str, Any]:
        parts = {name: {"ok": ok, "detail": detail} for name, (ok, detail) in sorted(self._parts.items())}
        return {"ready": self.ready, "started": self.started, "draining": self.draining, "parts": parts}


class Context:
    """Given to a service at start; see the attributes. Everything in it lives until after `drain`."""

    def __init__(
        self,
        *,
        service: str,
        config: Any,
        instance: str,
        log: Any,
        telemetry: Telemetry,
        metrics: Metrics,
        health: Health,
        bus: Bus | None,
        replicas: int = 1,
    ) -> None:
        self.service = service
        self.config = config
        """The valid settings of now; see `on_config`."""
        self.instance = instance
        self.log = log
        self.telemetry = telemetry
        self.metrics = metrics
        self.health = health
        self.http_port = 0
        """Where /healthz, /readyz and /metrics are served; 0 where they are not."""
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._bus = bus
        self._replicas = replicas
        self._source = f"/kerf/{service}/{instance}"
        self._events = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._releases: list[Callable[[], None]] = []
        self.provisioned = True
        """Whether every stream and bucket was there, or could be made, when it was looked at last."""
        self.unscaled: dict[str, str] = {}
        """Streams that do not have the replicas of the setting, and why; mostly servers are missing."""
        self._on_config: list[Callable[[Any], Awaitable[None]]] = []

    @property
    def bus(self) -> Bus:
        """Raises BusError if the service declared that it needs none, or none was given to it."""
        if self._bus is None:
            raise BusError(f"service {self.service} has no bus; set KERF_NATS_URL, and needs_bus = True in its class")
        return self._bus

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Runs it beside. An exception that escapes it is logged and ends the process, for a half-dead service is
        worse."""
        task = asyncio.create_task(coro, name=f"{self.service}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        self.log.error("task_failed", task=task.get_name(), error=repr(error), exc_info=error)
        self.fail(f"task {task.get_name()} failed: {error!r}")

    def fail(self, reason: str) -> None:
        """Ends the process, with this reason."""
        if not self.failure.done():
            self.failure.set_result(reason)

    def on_drain(self, close: Callable[[], Awaitable[None]]) -> None:
        """Called after the service's own drain, the last one registered first."""
        self._closers.append(close)

    def on_end(self, release: Callable[[], None]) -> None:
        """Called last, when no task of this service runs any more."""
        self._releases.append(release)

    def on_config(self, changed: Callable[[Any], Awaitable[None]]) -> None:
        """Called with the new settings after a valid change of the config file."""
        self._on_config.append(changed)

    def emit(self, event: Event, *, namespace: str = "", node: str = "", about: str = "", traceparent: str = "") -> str:
        """Publishes a public event under its namespace, or else its node, without waiting; returns the event's id.

        Raises ValueError where neither is named.
        """
        if namespace:
            subject = subjects.event_in_namespace(event.ENTITY, event.VERB, namespace)
        elif node:
            subject = subjects.event_on_node(event.ENTITY, event.VERB, node)
        else:
            raise ValueError(f"{type(event).__name__} is published under a namespace or under a node; name one")
        self._events += 1
        identity, payload = wrap(
            event,
            source=self._source,
            now_s=self.now(),
            subject=about,
            traceparent=traceparent,
            event_id=f"{self.instance}-{self._events}",
        )
        self.bus.publish_event(subject, payload, identity, traceparent=traceparent)
        return identity

    async def provision(self) -> tuple[str, ...]:
        """Creates missing streams and buckets, and returns their names; for when the bus raises NoStream. Streams with
        another number of replicas than the setting says get it."""
        made = await provision(self.bus, replicas=self._replicas)
        left = await scale(self.bus, replicas=self._replicas)
        if left and left != self.unscaled:
            self.log.warning("bus_streams_not_scaled", nats_replicas=self._replicas, streams=left)
        self.unscaled = left
        return made

    async def change_config(self, config: Any) -> None:
        self.config = config
        for changed in self._on_config:
            await changed(config)

    async def close(self) -> None:
        """Called by the lifecycle after the service's drain."""
        for close in reversed(self._closers):
            await close()
        if not await end(*self._tasks):
            self.log.error("tasks_hang", tasks=[task.get_name() for task in self._tasks])
        for release in reversed(self._releases):
            release()


def new_instance() -> str:
    """A name for this process that no other has: host, process id and chance."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}-{secrets.token_hex(3)}"


def load_simulator(part: str) -> Any:
    """Imports the module services.simulator.<part>. By name, because no service imports another."""
    return importlib.import_module(f"services.simulator.{part}")


def load(name: str) -> type[Service]:
    """The service of this name, from services.<name>.service:SERVICE. Raises ValueError where there is none.

    Services are found by name so that nothing in `shared` or `cli` imports one.
    """
    module_name = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z_]*", module_name):
        raise ValueError(f"{name!r} is no name of a service")
    target = f"services.{module_name}.service"
    try:
        module = importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name is not None and target.startswith(error.name):
            raise ValueError(f"there is no service {name!r}") from error
        raise
    service = getattr(module, "SERVICE", None)
    if not (isinstance(service, type) and issubclass(service, Service)):
        raise ValueError(f"{target}.SERVICE is no subclass of shared.service.Service")
    return service
