"""A cluster without Kubernetes, for laptops, demos and tests: the simulated API server, its kubelet and its webhook
call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from services.simulator.cluster import SimulatedCluster
from services.simulator.orders import subscribe
from services.simulator.transport import SimTransport
from services.simulator.webhook import NotAdmitted, Webhook
from services.simulator.workloads import WORKLOADS, ManifestError, is_owned, owner_uid, pods_of
from shared.bus.port import Bus, Subscription
from shared.contracts.facts import Fact
from shared.kube.resources import BY_KIND
from shared.kube.writes import Writes
from shared.ports.source import Emit, Source

Json = dict[str, Any]


def connect(*, admission_url: str, reporter: str) -> Source:
    """A new cluster. `admission_url`: where pods are reviewed at creation; empty: nowhere."""
    return SimulatedSource(admission_url=admission_url, reporter=reporter)


class SimulatedSource:
    """A Source over a SimulatedCluster that it owns. `apply` and `delete` are its kubectl."""

    def __init__(
        self, *, admission_url: str = "", reporter: str = "simulated", cluster: SimulatedCluster | None = None
    ) -> None:
        # Uids must never repeat while a log of an earlier run exists, and versions never fall.
        self.cluster = cluster or SimulatedCluster(
            uid_prefix=f"{time.time_ns() // 10**6 & 0xFFFFFFFF:08x}", first_version=int(time.time())
        )
        self.transport = SimTransport(self.cluster, time.time, self._pass_on)
        self._writes = Writes(self.transport, reporter=reporter)
        self._webhook = Webhook(admission_url)
        self._emit: Emit | None = None
        self._wake = asyncio.Event()
        self._sleeps_until = float("-inf")
        self._synced = asyncio.Event()
        self._waiting: dict[tuple[str, str], list[Json]] = {}
        """Pods of ordered StatefulSets, by the namespace and name of the one that must run before the first of them."""
        self._started: list[list[Json]] = []

    @property
    def synced(self) -> bool:
        return self._synced.is_set()

    @property
    def detail(self) -> str:
        return "a simulated cluster in this process"

    @property
    def troubled(self) -> int:
        return 0

    @property
    def writes(self) -> Writes:
        return self._writes

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def refresh(self) -> None:
        """Everything is emitted as it happens."""
        await self._synced.wait()

    async def reaches(self) -> bool:
        """It is in this process."""
        return True

    async def serve(self, bus: Bus, log: Any) -> list[Subscription]:
        return await subscribe(bus, self.apply, self.delete, log)

    async def close(self) -> None:
        await self._webhook.close()

    async def run(self, emit: Emit) -> None:
        self.cluster.take()
        self._emit = emit
        emit(self.cluster.snapshot())
        self._synced.set()
        while True:
            self._wake.clear()
            self.cluster.tick(time.time())
            self._pass_on()
            while self._started:
                await self._create_next(self._started.pop())
            due = self.cluster.next_due
            self._sleeps_until = float("inf") if due is None else due
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - time.time())):
                    await self._wake.wait()
            except TimeoutError:
                continue  # the kubelet has something to do
            finally:
                self._sleeps_until = float("-inf")

    async def apply(self, document: Json) -> list[str]:
        """Creates or replaces one object or the pods of one workload; returns warnings. Raises ManifestError or
        NotAdmitted."""
        kind = document.get("kind", "")
        if kind == "List":
            return [warning for item in document.get("items") or () for warning in await self.apply(item)]
        if kind in WORKLOADS:
            pods, ordered = pods_of(document)
            meta = document["metadata"]
            self._delete_pods(kind, meta.get("namespace") or "default", meta["name"], keep=pods)
            return await self._create_ordered(pods) if ordered else [w for pod in pods for w in await self.apply(pod)]
        if kind not in BY_KIND:
            raise ManifestError(
                f"kind {kind!r} is not known to the simulated cluster; it knows {', '.join(sorted(BY_KIND))} "
                f"and {', '.join(WORKLOADS)}"
            )
        meta = document.get("metadata")
        if not isinstance(meta, dict):
            raise ManifestError(f"a {kind} needs metadata")
        namespace = (meta.get("namespace") or "default") if BY_KIND[kind].namespaced else ""
        warnings: list[str] = []
        if meta.get("name") and self.cluster.get(kind, meta["name"], namespace) is not None:
            status, answer = self.cluster.replace(kind, document)
        else:
            if kind == "Pod":
                document, warnings = await self._webhook.admit(document)
            if namespace and self.cluster.get("Namespace", namespace) is None:
                self.cluster.create(
                    "Namespace", {"metadata": {"name": namespace}}, time.time()
                )  # kinder than a real one
            status, answer = self.cluster.create(kind, document, time.time())
        self._pass_on()
        if status >= 400:
            raise ManifestError(answer["message"])
        return warnings

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Deletes an object, or the pods of a workload. Raises ManifestError where there is no such object."""
        if kind in WORKLOADS:
            if not self._delete_pods(kind, namespace or "default", name):
                raise ManifestError(f'{kind} "{name}" has no pods in namespace {namespace or "default"}')
            return
        if kind not in BY_KIND:
            raise ManifestError(f"kind {kind!r} is not known to the simulated cluster")
        status, answer = self.cluster.delete(
            kind, (namespace or "default") if BY_KIND[kind].namespaced else "", name, {}, time.time()
        )
        self._pass_on()
        if status >= 400:
            raise ManifestError(answer["message"])

    def _delete_pods(self, kind: str, namespace: str, name: str, *, keep: Sequence[Json] = ()) -> bool:
        """Deletes the pods of a workload, but for those of the names in `keep`, and forgets those that it has not made
        yet. Returns whether there were any."""
        uid, kept = owner_uid(kind, namespace, name), {pod["metadata"]["name"] for pod in keep}
        there = [pod["metadata"]["name"] for pod in self.cluster.all("Pod") if is_owned(pod, namespace, uid)]
        for gone in (one for one in there if one not in kept):
            self.cluster.delete("Pod", namespace, gone, {}, time.time())
        unmade = len(self._waiting) + len(self._started)
        self._waiting = {key: pods for key, pods in self._waiting.items() if not is_owned(pods[0], namespace, uid)}
        self._started = [pods for pods in self._started if not is_owned(pods[0], namespace, uid)]
        self._pass_on()
        return bool(there) or len(self._waiting) + len(self._started) < unmade

    async def _create_ordered(self, pods: list[Json]) -> list[str]:
        if not pods:
            return []
        first, *rest = pods
        warnings = await self.apply(first)
        if rest:
            meta = first["metadata"]
            self._waiting[meta["namespace"], meta["name"]] = rest
            # The first one may have been there, and running, before.
            held = self.cluster.get("Pod", meta["name"], meta["namespace"])
            if held is not None and held["status"].get("phase") == "Running":
                self._ran(meta["namespace"], meta["name"])
        return warnings

    def _ran(self, namespace: str, name: str) -> None:
        rest = self._waiting.pop((namespace, name), None)
        if rest:
            self._started.append(rest)
            self._wake.set()

    async def _create_next(self, pods: list[Json]) -> None:
        try:
            await self._create_ordered(pods)
        except (NotAdmitted, ManifestError) as error:
            # As the real controller: an Event on what cannot be made; the set stays short.
            meta = pods[0]["metadata"]
            note = {
                "metadata": {"name": f"{meta['name']}.failed", "namespace": meta["namespace"]},
                "type": "Warning",
                "reason": "FailedCreate",
                "note": str(error),
            }
            self.cluster.create("Event", note, time.time())

    def _pass_on(self) -> None:
        """Facts out, and the loop woken where the kubelet has got work."""
        if self._emit is None:
            return  # not running yet: run() begins with a snapshot of all
        facts = self.cluster.take()
        if facts:
            self._emit(facts)
            if self._waiting:
                self._look_for_started(facts)
        due = self.cluster.next_due
        if due is not None and due < self._sleeps_until:
            self._wake.set()

    def _look_for_started(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            seen = fact.object
            if (seen.metadata.namespace, seen.metadata.name) in self._waiting and getattr(
                getattr(seen, "status", None), "phase", ""
            ) == "Running":
                self._ran(seen.metadata.namespace, seen.metadata.name)
