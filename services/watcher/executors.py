"""Orders from the bus, carried out in the cluster. No decisions: the preconditions in each order decide, at the
server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from services.watcher.announcer import Announcer
from services.watcher.core import Core
from shared.contracts import commands as c
from shared.kube.outcomes import Result, refused_for_certain
from shared.kube.writes import Writes
from shared.model import names
from shared.model.claims import Consumer, ResourceClaim
from shared.model.suspension import annotated_suspension, suspension_patch
from shared.telemetry import Metrics, Telemetry

BINDS_IN_FLIGHT = 32
MESSAGE_MOST = 300
"""Characters of the server's own sentence in an answer: all answers to a batch must fit into one message."""
BIND_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

T = TypeVar("T")


class Executors:
    """Carries out batches; answers name only what did not end well, so `done` costs no bytes."""

    def __init__(
        self,
        core: Core,
        writes: Writes,
        announcer: Announcer,
        telemetry: Telemetry,
        metrics: Metrics,
        *,
        in_flight: int = BINDS_IN_FLIGHT,
    ) -> None:
        self._core = core
        self._writes = writes
        self._announcer = announcer
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(in_flight)
        self.binding = 0
        """Binds in flight or waiting for their turn."""
        self._outcomes = metrics.counter(
            "kerf_watcher_writes_total", "Writes in the cluster, by kind and outcome.", ("kind", "outcome")
        )
        self._seconds = metrics.histogram(
            "kerf_watcher_bind_seconds", "Time of one Binding, from its POST to its answer.", buckets=BIND_BUCKETS
        )

    async def bind(self, batch: c.BindBatch) -> c.Answers:
        self._core.saw_sequence(max(batch.sequence, batch.term))
        self.binding += len(batch.binds)
        try:
            results = await self._each(batch.binds, self._bind)
        finally:
            self.binding -= len(batch.binds)
        for order, result in zip(batch.binds, results, strict=True):
            if result.outcome == "done":
                note = f"Successfully assigned {order.namespace}/{order.name} to {order.node}"
                self._announcer.offer(
                    c.AnnounceEvent(
                        uid=order.uid,
                        namespace=order.namespace,
                        name=order.name,
                        reason="Scheduled",
                        action="Binding",
                        note=note,
                    )
                )
        return self._answers("bind", batch.binds, results)

    async def evict(self, batch: c.EvictBatch) -> c.Answers:
        return self._answers("evict", batch.evictions, await self._each(batch.evictions, self._evict))

    async def patch(self, batch: c.PatchBatch) -> c.Answers:
        """Reports of pending pods and Events are accepted here and written later: `done` says no more of them."""
        results = await self._each(batch.patches, self._patch)
        for order, result in zip(batch.patches, results, strict=True):
            self._outcomes.add(1, type(order).__name__, result.outcome)
        answers = [
            c.Answer(
                uid=_subject(order),
                outcome=result.outcome,
                resource_version=getattr(order, "resource_version", ""),
                message=result.message[:MESSAGE_MOST],
            )
            for order, result in zip(batch.patches, results, strict=True)
            if result.outcome != "done"
        ]
        return c.Answers(answers=tuple(answers))

    async def _bind(self, order: c.Bind) -> Result:
        if self._core.find("Node", order.node) is None:
            # The server would answer 201, and the pod would wait for ever on a node that does not exist.
            return Result("no-node", f"node {order.node} is not known to this watcher; nothing was sent")
        started = time.perf_counter()
        start_ns = time.time_ns() if self._telemetry.sampled(order.uid) else 0
        result = await self._allocate(order) if order.claims else Result("done")
        if result.outcome == "done":
            result = await self._writes.bind(order)
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

    async def _allocate(self, order: c.Bind) -> Result:
        """The pod's claims first: the kubelet starts no pod whose claims are not allocated and reserved for it."""
        pod = Consumer(resource="pods", name=order.name, uid=order.uid)
        for wanted in order.claims:
            known = self._core.find(ResourceClaim.__name__, wanted.name, order.namespace)
            if known is None:
                return Result(
                    "refused",
                    f"ResourceClaim {order.namespace}/{wanted.name} is not known to this watcher; nothing was sent",
                )
            result = await self._writes.devices.allocate(wanted, known, node=order.node, pod=pod)
            if result.outcome != "done":
                return result
        return Result("done")

    async def _publish(self, order: c.PublishSlice) -> Result:
        node = self._core.find("Node", order.node)
        if node is None:
            return Result("gone", f"node {order.node} is not known to this watcher")
        return await self._writes.devices.publish(order, node.metadata.uid)

    async def _evict(self, order: c.Evict) -> Result:
        result = await self._writes.evict(order)
        if result.outcome == "done":
            self._announcer.offer(
                c.AnnounceEvent(
                    uid=order.uid,
                    namespace=order.namespace,
                    name=order.name,
                    type="Warning",
                    reason="Evicted",
                    action="Evicting",
                    note=order.reason,
                )
            )
        return result

    async def _patch(self, order: c.Patch) -> Result:
        match order:
            case c.TouchPod():
                return await self._touch(order)
            case c.SuspendPod():
                return await self._suspend(order)
            case c.ReportPending():
                self._announcer.report(order)
                return Result("done")
            case c.AnnounceEvent():
                self._announcer.offer(order)
                return Result("done")
            case c.LabelNode():
                return await self._label(order)
            case c.DeletePod():
                return await self._delete(order)
            case c.SelectNode():
                return await self._select(order)
            case c.PublishSlice():
                return await self._publish(order)

    async def _touch(self, order: c.TouchPod) -> Result:
        """By an annotation, which `kubectl describe` shows. A pod that cannot be annotated (its annotations are at the
        limit, or a webhook refuses or hangs) is touched by a condition in its status. Any write that arrives moves
        the pod's version, and an extra one does no harm."""
        result = Result("unknown", "the annotation did not move the pod")
        if not order.by_status:
            result = await self._writes.annotate_pod(
                order.namespace, order.name, order.uid, {names.ANNOTATION_TOUCHED: order.token}
            )
            if result.outcome not in ("refused", "unknown"):
                return result
        by_status = await self._writes.mark_touched(order.namespace, order.name, order.uid, token=order.token)
        if not refused_for_certain(by_status):
            return by_status
        outcome: c.Outcome = "refused" if order.by_status or refused_for_certain(result) else "unknown"
        return Result(outcome, f"its annotations: {result.message}; its status: {by_status.message}")

    async def _suspend(self, order: c.SuspendPod) -> Result:
        """Writes and reports nothing if the annotation is so already."""
        pod = self._core.find("Pod", order.name, order.namespace)
        if (
            pod is not None
            and pod.metadata.uid == order.uid
            and annotated_suspension(pod.metadata.annotations) == order.suspension
        ):
            return Result("done")
        result = await self._writes.annotate_pod(
            order.namespace,
            order.name,
            order.uid,
            suspension_patch(order.suspension),
            order.resource_version,
        )
        if result.outcome == "done":
            reason, action = ("Suspended", "Suspending") if order.suspension else ("Resumed", "Resuming")
            self._announcer.offer(
                c.AnnounceEvent(
                    uid=order.uid,
                    namespace=order.namespace,
                    name=order.name,
                    reason=reason,
                    action=action,
                    note=order.reason,
                )
            )
        return result

    async def _label(self, order: c.LabelNode) -> Result:
        node = self._core.find("Node", order.node)
        if node is None:
            return Result("gone", f"node {order.node} is not known to this watcher")
        if all(node.metadata.labels.get(key) == value for key, value in order.labels.items()):
            return Result("done")  # they are there already
        return await self._writes.label_node(order.node, order.labels)

    async def _delete(self, order: c.DeletePod) -> Result:
        result = await self._writes.delete_pod(order)
        if result.outcome == "done":
            self._announcer.offer(
                c.AnnounceEvent(
                    uid=order.uid,
                    namespace=order.namespace,
                    name=order.name,
                    type="Warning",
                    reason="Deleted",
                    action="Deleting",
                    note=order.reason,
                )
            )
        return result

    async def _select(self, order: c.SelectNode) -> Result:
        claim = self._core.find("PersistentVolumeClaim", order.claim, order.namespace)
        if claim is None:
            return Result("gone", f"claim {order.namespace}/{order.claim} is not known to this watcher")
        if not order.volume:
            return await self._writes.select_node(order.namespace, order.claim, order.node)
        volume = self._core.find("PersistentVolume", order.volume)
        if volume is None:
            return Result("gone", f"volume {order.volume} is not known to this watcher")
        taken = volume.spec.claim_ref
        promised = (
            taken is not None and not taken.uid and (taken.namespace, taken.name) == (order.namespace, order.claim)
        )
        if taken is not None and not promised:
            ours = taken.uid == claim.metadata.uid
            return (
                Result("done")
                if ours
                else Result("conflict", f"volume {order.volume} belongs to {taken.namespace}/{taken.name}")
            )
        return await self._writes.reserve_volume(
            order.volume,
            volume.metadata.resource_version,
            namespace=order.namespace,
            claim=order.claim,
            claim_uid=claim.metadata.uid,
        )

    async def _each(self, orders: Sequence[T], execute: Callable[[T], Awaitable[Result]]) -> list[Result]:
        """All of them concurrently, within the limit that all batches share."""

        async def one(order: T) -> Result:
            async with self._slots:
                return await execute(order)

        if len(orders) == 1:
            return [await one(orders[0])]
        return list(await asyncio.gather(*(one(order) for order in orders)))

    def _answers(self, kind: str, orders: Sequence[Any], results: Sequence[Result]) -> c.Answers:
        answers = []
        for order, result in zip(orders, results, strict=True):
            self._outcomes.add(1, kind, result.outcome)
            if result.outcome != "done":
                answers.append(
                    c.Answer(
                        uid=order.uid,
                        outcome=result.outcome,
                        resource_version=order.resource_version,
                        message=result.message[:MESSAGE_MOST],
                    )
                )
        return c.Answers(answers=tuple(answers))


def _subject(order: c.Patch) -> str:
    """What an answer names: the pod's uid; for a node its name, for a claim namespace/name."""
    match order:
        case c.LabelNode() | c.PublishSlice():
            return order.node
        case c.SelectNode():
            return f"{order.namespace}/{order.claim}"
        case _:
            return order.uid
