"""When the container runtime is asked, and what stands between its answers; over real gRPC on unix sockets, with waits
that only count."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from services.node_agent.cdi.host import Host
from services.node_agent.handover.runtime_monitor import REFRESH_S, RETRY_S, RuntimeMonitor
from services.node_agent.kubelet_api import container_runtime_pb2 as cri
from services.node_agent.kubelet_api.container_runtime_pb2_grpc import (
    RuntimeServiceServicer,
    add_RuntimeServiceServicer_to_server,
)
from shared.service.base import Health
from shared.telemetry.metrics import Metrics
from tests.support.waiting import eventually

FIRST, SECOND = "/run/first.sock", "/run/second.sock"


class Runtime(RuntimeServiceServicer):
    """A containerd. It answers only while `open` is set."""

    def __init__(self, *, cdi: bool) -> None:
        self.config = json.dumps({"enableCDI": cdi})
        self.open = asyncio.Event()
        self.open.set()

    async def Version(self, request: Any, context: Any) -> Any:
        await self.open.wait()
        return cri.VersionResponse(runtime_name="containerd", runtime_version="v2.1.0")

    async def Status(self, request: Any, context: Any) -> Any:
        return cri.StatusResponse(info={"config": self.config})


class Node:
    """A host with sockets, its monitor, and what that logs. Nothing waits: `waited` has the seconds."""

    def __init__(self, root: Path, timeout_s: float = 10.0) -> None:
        self._root = root
        (root / "run").mkdir()
        self.logged: list[str] = []
        self.waited: list[float] = []
        self.at_wait: list[Callable[[], Awaitable[object]]] = []
        """What happens in each wait of the monitor. After the last one it is cancelled."""
        self.health, self._servers = Health(), list[grpc.aio.Server]()
        self.tasks: list[asyncio.Task[None]] = []
        ctx: Any = SimpleNamespace(
            health=self.health,
            metrics=Metrics(),
            log=SimpleNamespace(warning=self._log, error=self._log),
            spawn=lambda coro, name: self.tasks.append(asyncio.create_task(coro, name=name)),
        )
        self.monitor = RuntimeMonitor(
            ctx, Host(root=root), (FIRST, SECOND), "/var/run/cdi", sleep=self._sleep, timeout_s=timeout_s
        )

    async def serve(self, where: str, runtime: Runtime | None) -> grpc.aio.Server:
        """Listens on a socket. None: as a containerd without its CRI plugin."""
        server = grpc.aio.server()
        if runtime is not None:
            add_RuntimeServiceServicer_to_server(runtime, server)
        server.add_insecure_port(f"unix:{self._root}{where}")
        await server.start()
        self._servers.append(server)
        return server

    def leave_socket(self, where: str) -> None:
        """The socket of a runtime that was killed."""
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{self._root}{where}")

    def remove_socket(self, where: str) -> None:
        """A server that ends removes its socket itself."""
        Path(f"{self._root}{where}").unlink(missing_ok=True)

    def part(self) -> tuple[bool, str]:
        part = self.health.report()["parts"]["runtime"]
        return part["ok"], part["detail"]

    async def close(self) -> None:
        for server in self._servers:
            await server.stop(0)

    def _log(self, what: str, **_: object) -> None:
        self.logged.append(what)

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        if not self.at_wait:
            raise asyncio.CancelledError
        await self.at_wait.pop(0)()


@pytest.fixture
def root() -> Iterator[Path]:
    """Pytest's own paths are too long for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="kerf-") as name:
        yield Path(name)


@pytest.fixture
async def node(root: Path) -> AsyncIterator[Node]:
    made = Node(root)
    yield made
    await made.close()


async def test_a_runtime_that_answers_decides_at_once(node: Node) -> None:
    await node.serve(FIRST, Runtime(cdi=True))
    assert await node.monitor.refresh()
    assert (node.monitor.obstacle, node.part()) == ("", (True, ""))


async def test_a_runtime_without_cdi_is_an_obstacle(node: Node) -> None:
    await node.serve(FIRST, Runtime(cdi=False))
    assert await node.monitor.refresh()
    assert "enable_cdi = true" in node.monitor.obstacle
    assert node.logged == ["nothing_offered"]


async def test_a_host_without_any_socket_has_no_obstacle(node: Node) -> None:
    assert not await node.monitor.refresh()
    assert node.monitor.obstacle == ""
    assert node.part() == (True, f"no container runtime listens on {FIRST}, {SECOND}")


async def test_a_socket_on_which_nobody_answers_yet_is_an_obstacle(node: Node) -> None:
    """It is logged once, however often it is asked."""
    node.leave_socket(FIRST)
    for _ in range(3):
        assert not await node.monitor.refresh()
    assert f"does not answer ({FIRST}: " in node.monitor.obstacle
    assert node.part() == (False, node.monitor.obstacle)
    assert node.logged == ["runtime_not_answering"]


async def test_a_runtime_that_listens_and_does_not_answer_is_an_obstacle_until_it_does(root: Path) -> None:
    node = Node(root, timeout_s=0.2)
    slow = Runtime(cdi=True)
    slow.open.clear()
    await node.serve(FIRST, slow)
    assert not await node.monitor.refresh()
    assert f"does not answer ({FIRST}: " in node.monitor.obstacle
    slow.open.set()
    await eventually(node.monitor.refresh)
    assert (node.monitor.obstacle, node.part()) == ("", (True, ""))
    await node.close()


async def test_a_runtime_is_asked_every_second_until_it_answers_and_then_once_a_minute(node: Node) -> None:
    """First there is no socket, then one that is dead, then a runtime."""
    obstacles: list[bool] = []

    async def nothing() -> None:
        obstacles.append(bool(node.monitor.obstacle))

    async def dead() -> None:
        await nothing()
        node.leave_socket(FIRST)

    async def alive() -> None:
        await nothing()
        await node.serve(SECOND, Runtime(cdi=True))

    node.at_wait = [nothing, dead, nothing, alive, nothing]
    await node.monitor.start()
    await asyncio.wait(node.tasks)
    assert node.waited == [RETRY_S, RETRY_S, RETRY_S, RETRY_S, REFRESH_S, REFRESH_S]
    assert obstacles == [False, False, True, True, False]


async def test_the_last_answer_stands_while_the_runtime_is_away_and_it_is_asked_again_soon(node: Node) -> None:
    """As while it is upgraded: whether its socket stays or not."""
    server = await node.serve(FIRST, Runtime(cdi=False))

    async def gone() -> None:
        await server.stop(0)

    async def removed() -> None:
        assert "enable_cdi = true" in node.monitor.obstacle
        node.remove_socket(FIRST)

    async def back() -> None:
        assert "enable_cdi = true" in node.monitor.obstacle
        await node.serve(FIRST, Runtime(cdi=True))

    node.at_wait = [gone, removed, back]
    await node.monitor.start()
    await asyncio.wait(node.tasks)
    assert node.waited == [REFRESH_S, RETRY_S, RETRY_S, REFRESH_S]
    assert (node.monitor.obstacle, node.part()) == ("", (True, ""))


async def test_a_good_answer_stands_while_the_runtime_is_away(node: Node) -> None:
    server = await node.serve(FIRST, Runtime(cdi=True))
    await node.monitor.refresh()
    await server.stop(0)
    node.remove_socket(FIRST)
    node.leave_socket(FIRST)
    assert not await node.monitor.refresh()
    assert (node.monitor.obstacle, node.part()) == ("", (True, ""))
    assert node.logged == ["runtime_not_answering"]


@pytest.mark.parametrize("left_over", ["dead", "without CRI"])
async def test_a_socket_that_is_not_the_kubelets_hides_no_runtime(node: Node, left_over: str) -> None:
    if left_over == "dead":
        node.leave_socket(FIRST)
    else:
        await node.serve(FIRST, None)
    await node.serve(SECOND, Runtime(cdi=False))
    assert await node.monitor.refresh()
    assert "enable_cdi = true" in node.monitor.obstacle


async def test_a_containerd_without_cri_alone_is_no_obstacle(node: Node) -> None:
    """As Docker's: it is no runtime of a kubelet, which has another socket then."""
    await node.serve(FIRST, None)
    assert not await node.monitor.refresh()
    assert (node.monitor.obstacle, node.part()[0]) == ("", True)


async def test_a_configuration_that_cannot_be_read_is_an_answer_that_says_nothing(node: Node) -> None:
    odd = Runtime(cdi=True)
    odd.config = "{"
    await node.serve(FIRST, odd)
    assert await node.monitor.refresh()
    assert node.monitor.obstacle == ""
    assert "configuration cannot be read" in node.part()[1]
    odd.config = json.dumps({"enableCDI": False})
    await node.monitor.refresh()
    odd.config = "{"
    await node.monitor.refresh()
    assert "enable_cdi = true" in node.monitor.obstacle, "the last answer that says something stands"


@pytest.mark.parametrize("odd", ["latin-1", "a folder"])
async def test_an_odd_configuration_of_nvidias_runtime_ends_no_agent(node: Node, root: Path, odd: str) -> None:
    """It says only whether GPUs are exposed."""
    await node.serve(FIRST, Runtime(cdi=True))
    file = root / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir(parents=True)
    if odd == "a folder":
        file.mkdir()
    else:
        file.write_bytes("# für alle Knoten".encode("latin-1"))
    assert await node.monitor.refresh()
    assert node.part() == (True, "")
    assert node.logged == (["toolkit_configuration_not_read"] if odd == "a folder" else [])
