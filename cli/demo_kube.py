"""The demo's cluster on a real API server: etcd and kube-apiserver from `tools`, with Kerf's policies in force."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from cli import openb
from cli.ask import ask
from cli.demo_cluster import Cluster
from cli.output import Failure, err
from cli.stack import Stack
from shared.contracts import queries
from shared.contracts.queries import StatusAnswer, StatusQuery
from shared.kube.client import connect
from shared.kube.resources import BY_KIND
from shared.kube.transport import Transport, TransportError
from shared.model import names

if TYPE_CHECKING:
    from tools.control_plane import ControlPlane

_MANIFESTS = Path(__file__).resolve().parents[1] / "k8s"
_APPLIED = ("00-", "10-", "11-", "20-", "21-", "22-", "23-")
"""Namespace, accounts, rights and policies. The webhook and the workloads are for a cluster that can run pods."""
_IN_FLIGHT = 16
_IN_FORCE_S = 30.0


class KubeCluster(Cluster):
    """What the simulated one does, through the API of a real server."""

    name = "a real Kubernetes API server"

    def __init__(self, kubeconfig: str, kube: Transport) -> None:
        self.kubeconfig = kubeconfig
        self._kube = kube

    async def put(self, made: Stack, objects: list[dict[str, Any]]) -> None:  # noqa: ARG002 - the simulated cluster goes by the stack
        async for _ in self._posted(objects):
            pass

    async def begin(self, made: Stack, nodes: list[openb.TraceNode], namespace: str) -> None:
        await super().begin(made, nodes, namespace)
        await self._until("its policies are in force", self._mutates)

        async def synced() -> bool:
            return (await ask(made.bus, queries.STATUS.subject, StatusQuery(), StatusAnswer)).nodes >= len(nodes)

        await self._until("Kerf has seen all nodes", synced)

    async def create(self, made: Stack, manifests: list[dict[str, Any]]) -> AsyncIterator[str]:  # noqa: ARG002 - as in put
        async for name in self._posted(manifests):
            yield name

    async def _mutates(self) -> bool:
        """The API server takes a policy up a second or two after it has accepted it; pods made before would slip
        past."""
        container = {"name": "c", "image": "pause", "resources": {"limits": {names.RESOURCE_GPU: "1"}}}
        probe = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
        answer = await self._kube.request(
            "POST", "/api/v1/namespaces/default/pods?dryRun=All", json.dumps(probe).encode()
        )
        if answer.status != 201:
            return False
        name: str = json.loads(answer.body)["spec"]["schedulerName"]
        return name == names.SCHEDULER_NAME

    async def _until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + _IN_FORCE_S
        while not await condition():
            if time.monotonic() > deadline:
                raise Failure(f"not within {_IN_FORCE_S:.0f} s on the API server: {what}")
            await asyncio.sleep(0.05)

    async def _posted(self, objects: list[dict[str, Any]]) -> AsyncIterator[str]:
        """Names in order, `_IN_FLIGHT` requests at a time."""
        under_way: deque[asyncio.Task[str]] = deque()
        try:
            for manifest in objects:
                if len(under_way) == _IN_FLIGHT:
                    yield await under_way.popleft()
                under_way.append(asyncio.create_task(self._post(manifest)))
            while under_way:
                yield await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()

    async def _post(self, manifest: dict[str, Any]) -> str:
        meta = manifest["metadata"]
        path = BY_KIND[manifest["kind"]].collection(meta.get("namespace", ""))
        try:
            answer = await self._kube.request("POST", path, json.dumps(manifest).encode(), timeout_s=30.0)
        except TransportError as error:
            raise Failure(f"the API server took no {manifest['kind']} {meta['name']}: {error}") from error
        if answer.status != 201:
            raise Failure(f"the API server refused {manifest['kind']} {meta['name']}: {_message(answer.body)}")
        return str(meta["name"])


@contextlib.asynccontextmanager
async def kube_cluster() -> AsyncIterator[KubeCluster]:
    """A control plane of its own in a temporary directory, killed and removed afterwards, however the block ends."""
    tools = _tools()
    err.print("  looking for a control plane (tools/build.sh builds it the first time, which takes minutes)")
    with tempfile.TemporaryDirectory(prefix="kerf-demo-") as state:
        try:
            plane: ControlPlane = tools.ControlPlane(Path(state), binaries=tools.find_binaries(build=True))
            # Blocks the loop, where nothing else runs yet: the processes die with the thread that starts them.
            plane.start()
        except (tools.NoBinaries, RuntimeError, OSError) as error:
            raise Failure(
                f"no real API server: {error}. Without --kube the demo runs on a simulated cluster"
            ) from error
        try:
            _apply(plane)
            async with contextlib.AsyncExitStack() as closing:
                kube = await connect(str(plane.kubeconfig()), max_connections=_IN_FLIGHT)
                closing.push_async_callback(kube.close)
                # The policies let only the watcher's account bind, so the watcher is just that, with its rights alone.
                yield KubeCluster(str(plane.service_account("kerf-system", "kerf-watcher")), kube)
        finally:
            plane.stop()


def _tools() -> ModuleType:
    """tools.control_plane, which is no part of the installed package."""
    try:
        return importlib.import_module("tools.control_plane")
    except ModuleNotFoundError as error:
        raise Failure(
            "a real API server is started by tools/, which only a clone of Kerf's repository has: run `python "
            "-m cli demo --kube` in its root"
        ) from error


def _apply(plane: ControlPlane) -> None:
    for file in sorted(f for f in _MANIFESTS.glob("*.yaml") if f.name.startswith(_APPLIED)):
        for manifest in yaml.safe_load_all(file.read_text()):
            status, body = plane.request("POST", _collection(manifest), manifest)
            if status != 201:
                raise Failure(f"the API server refused {file.name}: {_message(body)}")


def _collection(manifest: dict[str, Any]) -> str:
    version, kind, namespace = manifest["apiVersion"], manifest["kind"].lower(), manifest["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace")  # no Status object: a proxy's page, or an answer cut short
