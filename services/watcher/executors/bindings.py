"""Binds pods: allocates their claims, then writes the Binding (rule R3)."""

from __future__ import annotations

import time

from services.watcher.announcer import Announcer
from services.watcher.core import Core
from services.watcher.executors.batches import Batches
from services.watcher.executors.raised_amounts import RaisedAmounts
from shared.contracts import commands as c
from shared.kube import resources
from shared.kube.outcomes import Result
from shared.kube.writes import Writes
from shared.model.claims import Consumer, ResourceClaim
from shared.model.life import disruption_note
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.telemetry import Metrics, Telemetry

BIND_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Bindings:
    def __init__(
        self,
        core: Core,
        writes: Writes,
        announcer: Announcer,
        batches: Batches,
        *,
        telemetry: Telemetry,
        metrics: Metrics,
    ) -> None:
        self._core = core
        self._writes = writes
        self._announcer = announcer
        self._batches = batches
        self._telemetry = telemetry
        self._raised_amounts = RaisedAmounts(core, writes)
        self._seconds = metrics.histogram(
            "kerf_watcher_bind_seconds", "Time of one Binding, from its POST to its answer.", buckets=BIND_BUCKETS
        )

    async def bind(self, batch: c.BindBatch) -> c.Answers:
        self._core.saw_sequence(max(batch.sequence, batch.term))
        results = await self._batches.each_once(batch.binds, self._bind)
        return self._batches.answers(batch.binds, results)

    async def _bind(self, order: c.Bind) -> Result:
        if self._core.find("Node", order.node) is None:
            # The server would answer 201, and the pod would wait for ever on a node that does not exist.
            if await self._writes.is_missing(resources.NODE, order.node):
                return Result("no-node", f"node {order.node} does not exist; nothing was sent")
            # Placement may follow another watcher that is further on.
            return Result("throttled", f"node {order.node} is not known to this watcher yet; nothing was sent")
        found: Pod | None = self._core.find("Pod", order.name, order.namespace)
        if found is None:
            # What the node has to be raised by is not known here; a pod that is gone ends by the feed.
            return Result("throttled", "the pod is not known to this watcher yet; nothing was sent")
        pod = found if found.metadata.uid == order.uid else None
        if pod is None and order.claims:  # allocated for a pod that is gone, they would be kept from the others
            return Result("throttled", f"{order.name} is another pod to this watcher; nothing was sent")
        if pod is not None and pod.spec.node_name:
            return Result("conflict", f"the pod is bound to {pod.spec.node_name} already; nothing was sent")
        started = time.perf_counter()
        start_ns = time.time_ns() if self._telemetry.sampled(order.uid) else 0
        result = await self._allocate(order) if order.claims else Result("done")
        if result.outcome == "done":
            result = await self._raised_amounts.count(order)
        if result.outcome == "done":
            result = await self._send(order, pod)
        if result.outcome == "done":
            note = f"Successfully assigned {order.namespace}/{order.name} to {order.node}"
            self._announcer.tell(order, "Scheduled", "Binding", note)
        elif result.outcome != "unknown":
            self._raised_amounts.uncount(order)
        self._seconds.observe(time.perf_counter() - started)
        if start_ns or result.outcome != "done":
            self._telemetry.pod_span(
                order.uid,
                "bind",
                start_ns=start_ns or None,
                kind="client",
                force=result.outcome not in ("done", "conflict"),
                attributes={"k8s.node.name": order.node, "kerf.outcome": result.outcome},
                error="" if result.outcome == "done" else result.message,
            )
        return result

    async def _send(self, order: c.Bind, pod: Pod | None) -> Result:
        try:
            notes = disruption_note(pod) if pod is not None else {}
        except RequestError as error:
            return Result("refused", str(error))
        return await self._writes.bindings.bind(order, notes)

    async def _allocate(self, order: c.Bind) -> Result:
        """The pod's claims first: the kubelet starts no pod whose claims are not allocated and reserved for it."""
        pod = Consumer(resource="pods", name=order.name, uid=order.uid)
        for wanted in order.claims:
            known = self._core.find(ResourceClaim.__name__, wanted.name, order.namespace)
            if known is None:
                claim = f"ResourceClaim {order.namespace}/{wanted.name}"
                if await self._writes.is_missing(resources.DEVICE_CLAIM, wanted.name, order.namespace):
                    return Result("refused", f"{claim} does not exist; nothing was sent")
                return Result("throttled", f"{claim} is not known to this watcher yet; nothing was sent")
            result = await self._writes.devices.allocate(wanted, known, node=order.node, pod=pod)
            if result.outcome != "done":
                return result
        return Result("done")
