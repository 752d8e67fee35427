"""A cluster of one real node, and Kerf in it: every service, and the agent beside the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from cli.ask import ask
from cli.stack import Stack, stack
from shared.contracts import queries
from shared.contracts.queries import InspectAnswer, InspectNode, InspectQuery
from shared.kube import resources
from shared.kube.access import load_access
from shared.kube.client import transport_for
from shared.model.grant import Grant, decode_grant
from tests.support.waiting import eventually
from tests.support.whole import Whole, has_account
from tools.sandbox import Sandbox
from tools.sandbox.agent import Agent, Gpus
from tools.sandbox.inside import minor
from tools.sandbox.node import NODE, WORKLOAD

WITHIN_S = 60.0
_NUMBERS = itertools.count(1)


class Seen(msgspec.Struct, frozen=True):
    """What the workload prints about its container."""

    environment: dict[str, str]
    devices: list[str]
    """The files of NVIDIA's driver."""
    files: list[str]
    """Files below /usr, where its image has none."""


class NodeCluster:
    """Kerf against a real API server, and one real node with its agent."""

    def __init__(self, sandbox: Sandbox, gpus: Gpus, made: Stack, agent: Agent, namespace: str) -> None:
        self.whole = Whole(sandbox.plane, made, namespace)
        self.sandbox, self.gpus, self.agent = sandbox, gpus, agent

    async def create_pod(
        self, name: str, *, args: Iterable[str] = (), annotations: dict[str, str] | None = None, grace_s: int = 2,
        containers: list[dict[str, Any]] | None = None, init: list[dict[str, Any]] | None = None,
        spec: dict[str, Any] | None = None, **limits: str,
    ) -> Any:  # fmt: skip
        """A pod with one container `main`. `limits` by the last part of Kerf's resource names (gpu, gpu_memory)."""
        document = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {
                "terminationGracePeriodSeconds": grace_s, "containers": containers or [container(args=args, **limits)],
                "initContainers": init or [], **(spec or {}),
            },
        }  # fmt: skip
        return await self.whole.ask("POST", resources.POD.collection(self.whole.namespace), document)

    async def pods(self) -> dict[str, Any]:
        return {
            pod["metadata"]["name"]: pod
            for pod in (await self.whole.ask("GET", resources.POD.collection(self.whole.namespace)))["items"]
        }

    async def running(self, *names: str) -> dict[str, Any]:
        """Waits until every container of these pods runs, and returns the pods."""

        async def all_run() -> dict[str, Any] | None:
            pods = await self.pods()
            return {n: pods[n] for n in names} if all(n in pods and _runs(pods[n]) for n in names) else None

        try:
            found: dict[str, Any] = await eventually(
                all_run, within_s=WITHIN_S, every_s=0.1, what=f"{len(names)} pods run"
            )
        except AssertionError:
            raise AssertionError(f"not all run: {await self.why_not(names)}") from None
        return found

    async def why_not(self, names: Iterable[str]) -> str:
        pods = await self.pods()
        late = [n for n in names if n not in pods or not _runs(pods[n])]
        messages = [e["note" if "note" in e else "message"] for e in await self.events(late[0])] if late else []
        status = late and json.dumps(pods.get(late[0], {}).get("status"))
        return f"{late}; {status}; {messages}\nagent: {self.sandbox.log('agent')}"

    async def events(self, name: str) -> list[Any]:
        listed = await self.whole.ask(
            "GET", f"/api/v1/namespaces/{self.whole.namespace}/events?fieldSelector=involvedObject.name={name}"
        )
        return list(listed["items"])

    async def wait_for_event(self, name: str, *words: str) -> str:
        """Waits for an Event on the pod that contains all of `words`, and returns it."""

        async def there() -> str | None:
            return next(
                (e["message"] for e in await self.events(name) if all(word in e["message"] for word in words)), None
            )

        try:
            message: str = await eventually(
                there, within_s=WITHIN_S, every_s=0.1, what=f"an Event on {name} that says {words}"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; events were {[e['message'] for e in await self.events(name)]}") from None
        return message

    async def inside(self, name: str, container: str = "main", *, previous: bool = False) -> Seen:
        """What the container reports that it was given, through the API server and the kubelet."""

        async def said() -> Seen | None:
            pod = resources.POD.path(name, self.whole.namespace)
            path = f"{pod}/log?container={container}&previous={str(previous).lower()}"
            status, text = await asyncio.to_thread(self.whole.plane.request, "GET", path)
            return msgspec.json.decode(text, type=Seen) if status == 200 and text.endswith(b"\n") else None

        seen: Seen = await eventually(said, within_s=WITHIN_S, every_s=0.1, what=f"the log of {name}")
        return seen

    async def bind_by_hand(self, name: str) -> str:
        """Binds a pod around placement, with the only account that the policies let bind. Returns the pod's UID."""
        uid = str((await self.whole.seen("Pod", name))["metadata"]["uid"])
        access = await load_access(str(self.whole.plane.service_account("kerf-system", "kerf-watcher")))
        client = transport_for(access, max_connections=1)
        try:
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": NODE},
            }
            answer = await client.request(
                "POST", f"{resources.POD.path(name, self.whole.namespace)}/binding", msgspec.json.encode(body)
            )
            assert answer.status == 201, answer
        finally:
            await client.close()
        return uid

    def processes(self, pod: Any, container: str = "main") -> list[int]:
        """The command in the container that this pod's status names."""
        return self.sandbox.pids_of(container_id(pod, container))

    async def delete(self, *names: str, query: str = "") -> None:
        """A pod that is already gone is ignored."""
        for name in names:
            path = resources.POD.path(name, self.whole.namespace) + query
            status, answer = await asyncio.to_thread(self.whole.plane.request, "DELETE", path)
            assert status in (200, 202, 404), answer.decode()

    async def gone(self, *names: str) -> None:
        async def all_gone() -> bool:
            return not set(names) & set(await self.pods())

        await eventually(all_gone, within_s=WITHIN_S, every_s=0.1, what=f"pods {names} gone from the API server")

    async def node(self) -> InspectNode | None:
        """This node in placement's book, queried over NATS."""
        answer = await ask(self.whole.made.bus, queries.INSPECT.subject, InspectQuery(), InspectAnswer)
        return next((n for n in answer.nodes if n.node == NODE), None)

    async def free(self) -> None:
        """Waits until the book has no pod on the node."""

        async def nothing() -> bool:
            node = await self.node()
            return node is not None and all(not gpu.pods and gpu.allocated_memory_mib == 0 for gpu in node.gpus)

        await eventually(nothing, within_s=WITHIN_S, every_s=0.1, what="everything is released")

    async def kill_kubelet(self) -> None:
        """Stops the kubelet. Returns when the agent has noticed, so that its next report is about the next kubelet."""
        self.sandbox.kill("kubelet")
        await eventually(
            lambda: not self.agent.ready,
            within_s=WITHIN_S,
            every_s=0.05,
            what="the agent has noticed that the kubelet is down",
        )

    async def offered(self) -> None:
        """Waits until the agent is healthy, the kubelet watches its slots and placement has its GPUs."""
        try:
            await eventually(
                self._offered,
                within_s=WITHIN_S,
                every_s=0.05,
                what="the kubelet offers slots, and placement has the GPUs",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\nagent: {self.sandbox.log('agent')}") from None

    async def _offered(self) -> bool:
        if not self.agent.ready:
            return False
        node = await self.whole.ask("GET", f"/api/v1/nodes/{NODE}")
        known = await self.node()
        slots = int(node["status"].get("allocatable", {}).get("kerf.dev/slot", 0))
        return slots > 0 and known is not None and known.ready and known.synced and len(known.gpus) == self.gpus.count


def container(name: str = "main", *, args: Iterable[str] = (), **limits: str) -> dict[str, Any]:
    wanted = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
    return {"name": name, "image": WORKLOAD, "args": list(args), "resources": {"limits": wanted}}


def container_id(pod: Any, container: str = "main") -> str:
    status = next(s for s in pod["status"]["containerStatuses"] if s["name"] == container)
    return str(status["containerID"].removeprefix("containerd://"))


def grant_of(pod: Any) -> Grant:
    return decode_grant(pod["metadata"]["annotations"]["kerf.dev/grant"])


def expected(cluster: NodeCluster, pod: Any, container: str = "main") -> tuple[dict[str, str], list[str]]:
    """The environment that the container must have, and its device nodes, by the pod's grant."""
    grant = grant_of(pod)
    shares = grant.containers[container].gpus
    words = {
        "KERF_GRANT": grant.grant_id,
        "KERF_CONTAINER": container,
        "KERF_GPUS": ",".join(share.uuid for share in shares),
        "KERF_GPU_MEMORY_MIB": str(sum(share.memory_mib for share in shares)),
        "KERF_GPU_COMPUTE_MILLI": str(sum(share.compute_milli for share in shares)),
    }
    uuids = {share.uuid for share in shares}
    nodes = [f"/dev/nvidia{minor(i)}" for i in range(cluster.gpus.count) if cluster.gpus.uuid(i) in uuids]
    return words, sorted([*nodes, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])


def given(seen: Seen) -> tuple[dict[str, str], list[str]]:
    """The same, as the container sees it."""
    words = ("KERF_GRANT", "KERF_CONTAINER", "KERF_GPUS", "KERF_GPU_MEMORY_MIB", "KERF_GPU_COMPUTE_MILLI")
    return {name: seen.environment.get(name, "") for name in words}, sorted(seen.devices)


@contextlib.asynccontextmanager
async def cluster_on(
    sandbox: Sandbox,
    gpus: Gpus,
    settings: Mapping[str, str] | None = None,
    *,
    preemption: Mapping[str, Any] | None = None,
) -> AsyncIterator[NodeCluster]:
    """Runs Kerf in a new namespace. `settings` are the agent's, by their environment variables; `preemption` those of
    the preemptor, without which none runs."""
    plane, namespace = sandbox.plane, f"node-{next(_NUMBERS)}"
    rules, account = {"resize_beyond_request": True}, plane.service_account("kerf-system", "kerf-watcher")
    async with stack(kubeconfig=str(account), placement=rules, preemption=preemption) as running:
        agent = Agent(sandbox, gpus, running.url, checkpoint=namespace, settings=settings)
        cluster = NodeCluster(sandbox, gpus, running, agent, namespace)
        await cluster.whole.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await eventually(lambda: has_account(cluster.whole), within_s=WITHIN_S, what="the namespace's account")
        agent.start()
        try:
            await cluster.offered()
            yield cluster
            assert running.failed() == ""
        finally:
            try:
                await cluster.delete(*await cluster.pods(), query="?gracePeriodSeconds=1")
                await cluster.gone(*await cluster.pods())
            finally:  # a leftover agent would offer its slots to the next test's kubelet
                if sandbox.status("agent") is None:
                    agent.end()


def _runs(pod: Any) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    return pod["status"].get("phase") == "Running" and bool(statuses) and all("running" in s["state"] for s in statuses)
