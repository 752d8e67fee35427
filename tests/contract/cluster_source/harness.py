"""Controls a cluster, simulated or real, so that the same tests run on both."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import structlog

from services.simulator.source import SimulatedSource
from services.watcher.kube_source import KubeSource
from shared.contracts.commands import Bind
from shared.contracts.facts import Fact, Gone, Put
from shared.kube import resources
from shared.kube.client import connect
from shared.kube.outcomes import Result
from shared.kube.reflector import Timing
from shared.kube.transport import JSON, STRATEGIC_PATCH, Transport
from shared.model.objects import Pod
from shared.ports.source import Source
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

_NUMBERS = itertools.count(1)
QUICK = Timing(backoff_s=0.02, backoff_max_s=0.5)


class SourceHarness:
    """`facts` is all that the source emitted. Requests bypass the source, as those of other users do."""

    def __init__(self, source: Source, transport: Transport, namespace: str, *, real: bool) -> None:
        self.source, self.transport, self.namespace, self.real = source, transport, namespace, real
        self.writes = source.writes
        self.facts: list[Fact] = []

    # --- other people's part ------------------------------------------------------------------------------------------

    async def request(self, method: str, path: str, body: Any = None, *, content_type: str = JSON) -> tuple[int, Any]:
        answer = await self.transport.request(
            method, path, b"" if body is None else msgspec.json.encode(body), content_type=content_type
        )
        return answer.status, msgspec.json.decode(answer.body)

    async def create(self, kind: str, name: str, document: Any = None, **metadata: Any) -> Any:
        resource = resources.BY_KIND[kind]
        body = {**(document or {}), "metadata": {"name": name, **metadata}}
        body |= {"apiVersion": resource.prefix.split("/", 1)[1], "kind": kind}
        status, answer = await self.request(
            "POST", resource.collection(self.namespace if resource.namespaced else ""), body
        )
        assert status == 201, answer
        return answer

    async def create_pod(self, name: str, *, spec: Any = None, **metadata: Any) -> Pod:
        """Creates a pod, and waits until the source has seen it."""
        made = {
            "schedulerName": "kerf",
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}}}],
            **(spec or {}),
        }
        answer = await self.create("Pod", name, {"spec": made}, **metadata)
        uid = answer["metadata"]["uid"]
        return await eventually(lambda: self.by_uid(uid), what=f"the fact of pod {name}")

    async def create_node(self) -> str:
        name = f"node-{next(_NUMBERS)}-{self.namespace}"
        await self.create("Node", name, {"status": {"allocatable": {"cpu": "8", "pods": "110"}}})
        await eventually(lambda: any(f.object.metadata.name == name for f in self.facts), what=f"the fact of {name}")
        return name

    async def run_pod(self, name: str) -> None:
        """Acts as the kubelet, which the simulated cluster does by itself."""
        if self.real:
            path = resources.POD.path(name, self.namespace, sub="status")
            status, answer = await self.request(
                "PATCH", path, {"status": {"phase": "Running"}}, content_type=STRATEGIC_PATCH
            )
            assert status == 200, answer
        await eventually(
            lambda: getattr(self.seen(name), "status", None) and self.pod(name).status.phase == "Running",
            what=f"{name} running",
        )

    async def finish_pod(self, name: str) -> None:
        """Acts as the kubelet after a deletion: the pod's containers have ended."""
        if self.real:
            await self.request("DELETE", resources.POD.path(name, self.namespace), {"gracePeriodSeconds": 0})
        await eventually(lambda: self.seen(name) is None, what=f"the end of {name}")

    # --- what the source emitted ----------------------------------------------------------------------------

    def of(self, name: str, kind: str = "Pod") -> list[Fact]:
        """All facts about this name, in order."""
        return [
            f
            for f in self.facts
            if type(f.object).__name__ == kind
            and f.object.metadata.name == name
            and f.object.metadata.namespace in (self.namespace, "")
        ]

    def seen(self, name: str, kind: str = "Pod") -> Any:
        """The newest state by the facts; None if it is gone or never existed."""
        facts = self.of(name, kind)
        return facts[-1].object if facts and isinstance(facts[-1], Put) else None

    def pod(self, name: str) -> Pod:
        found = self.seen(name)
        assert isinstance(found, Pod)
        return found

    def by_uid(self, uid: str) -> Any:
        found = [f for f in self.facts if f.object.metadata.uid == uid]
        return found[-1].object if found and isinstance(found[-1], Put) else None

    async def changed(self, pod: Pod) -> Pod:
        """The pod at a later version than this one."""
        name, before = pod.metadata.name, pod.metadata.resource_version
        await eventually(
            lambda: self.seen(name) is None or self.pod(name).metadata.resource_version != before,
            what=f"a change of {name}",
        )
        return self.pod(name)

    async def gone(self, name: str) -> Gone:
        await eventually(lambda: isinstance(self.of(name)[-1], Gone), what=f"the end of {name}")
        last = self.of(name)[-1]
        assert isinstance(last, Gone)
        return last

    async def bind(self, pod: Pod, node: str, *, grant: str = "", **changes: str) -> Result:
        order = Bind(
            uid=pod.metadata.uid, namespace=pod.metadata.namespace, name=pod.metadata.name,
            resource_version=pod.metadata.resource_version, node=node, grant=grant,
        )  # fmt: skip
        return await self.writes.bindings.bind(msgspec.structs.replace(order, **changes))


@contextlib.asynccontextmanager
async def simulated() -> AsyncIterator[SourceHarness]:
    source = SimulatedSource()
    async with _running(SourceHarness(source, source.transport, "team", real=False)) as harness:
        await harness.create("Namespace", "team")
        yield harness


@contextlib.asynccontextmanager
async def real(plane: ControlPlane, *, watch_list: bool = True, timing: Timing = QUICK) -> AsyncIterator[SourceHarness]:
    transport = await connect(str(plane.kubeconfig()))
    source = KubeSource(transport, structlog.get_logger(), reporter="test", watch_list=watch_list, timing=timing)
    namespace = f"contract-{next(_NUMBERS)}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    async with _running(SourceHarness(source, transport, namespace, real=True)) as harness:
        yield harness


@contextlib.asynccontextmanager
async def _running(harness: SourceHarness) -> AsyncIterator[SourceHarness]:
    task = asyncio.create_task(harness.source.run(harness.facts.extend))
    try:
        await asyncio.wait(
            {task, asyncio.create_task(harness.source.wait_synced())}, return_when=asyncio.FIRST_COMPLETED, timeout=30
        )
        assert harness.source.synced, harness.source.detail
        yield harness
    finally:
        task.cancel()
        await asyncio.wait({task})
        await harness.source.close()
