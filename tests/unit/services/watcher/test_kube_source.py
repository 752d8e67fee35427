"""Which kinds are followed closely: those without which no pod is placed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from services.watcher.kube_source import KubeSource
from shared.kube import resources
from shared.kube.http1 import Http1Transport
from shared.kube.transport import Response
from tests.support.waiting import eventually


class Silent(Http1Transport):
    """Its server hangs: no byte comes. `allowed_s`: by path, how long it may be silent."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 1)
        self.allowed_s: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def stream(self, path: str, *, read_timeout_s: float) -> AsyncIterator[tuple[Response, AsyncIterator[bytes]]]:
        self.allowed_s[path.split("?")[0]] = read_timeout_s
        yield Response(200, b""), self._no_byte()

    async def _no_byte(self) -> AsyncIterator[bytes]:
        while True:
            yield await asyncio.get_running_loop().create_future()


async def test_a_server_that_hangs_is_noticed_within_a_minute_by_nodes_and_pods() -> None:
    silent, kinds = Silent(), (resources.NODE, resources.POD, resources.VOLUME)
    source = KubeSource(silent, structlog.get_logger(), reporter="t", kinds=kinds)
    running = asyncio.create_task(source.run(lambda _: None))
    await eventually(lambda: len(silent.allowed_s) == 3, what="all kinds followed")
    running.cancel()
    await asyncio.wait({running})
    node_s, pod_s, volume_s = (silent.allowed_s[kind.collection()] for kind in kinds)
    assert max(node_s, pod_s) <= 40 < volume_s
