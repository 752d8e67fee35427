"""Writes what orders change besides Bindings: pods, nodes, claims, ResourceSlices; reports and Events of pods."""

from __future__ import annotations

import time

from services.watcher.announcer import Announcer
from services.watcher.core import Core
from services.watcher.executors.batches import Batches
from shared.contracts import commands as c
from shared.kube.outcomes import Result, refused_for_certain
from shared.kube.writes import Writes
from shared.model import names
from shared.model.gang import POD_GROUP
from shared.model.objects import Gang, GroupCondition
from shared.model.suspension import annotated_suspension, suspension_patch


class Patches:
    def __init__(self, core: Core, writes: Writes, announcer: Announcer, batches: Batches) -> None:
        self._core = core
        self._writes = writes
        self._announcer = announcer
        self._batches = batches

    async def patch(self, batch: c.PatchBatch) -> c.Answers:
        """Reports of pending pods and Events are accepted here and written later: `done` says no more of them."""
        results = await self._batches.each(batch.patches, self._patch, kind=lambda order: type(order).__name__)
        return self._batches.answers(batch.patches, results, subject=_subject)

    async def _patch(self, order: c.Patch) -> Result:  # noqa: PLR0912 one branch an order
        match order:
            case c.TouchPod():
                return await self._touch(order)
            case c.SuspendPod():
                return await self._suspend(order)
            case c.AmendGrant():
                return await self._amend(order)
            case c.ReportPending():
                self._announcer.report(order)
                return Result("done")
            case c.AnnounceEvent():
                self._announcer.offer(order)
                return Result("done")
            case c.LabelNode():
                return await self._label(order)
            case c.AdvertiseCapacity():
                return await self._advertise(order)
            case c.TaintNode():
                return await self._taint(order)
            case c.NominateNode():
                return await self._nominate(order)
            case c.DeletePod():
                return await self._delete(order)
            case c.SelectNode():
                return await self._select(order)
            case c.PublishSlice():
                return await self._publish(order)
            case c.ReportPodGroup():
                return await self._report_group(order)

    async def _touch(self, order: c.TouchPod) -> Result:
        """By a condition in the pod's status or, unless that alone is ordered, by an annotation first. A pod that
        cannot be annotated (its annotations are at the limit, or a webhook refuses or hangs) is touched by the
        condition. Any write that arrives moves the pod's version, and an extra one does no harm."""
        result = Result("unknown", "the annotation did not move the pod")
        if not order.by_status:
            result = await self._writes.pods.annotate(
                order.namespace, order.name, order.uid, {names.ANNOTATION_TOUCHED: order.token}
            )
            if result.outcome not in ("refused", "unknown"):
                return result
        by_status = await self._writes.pods.mark_touched(order.namespace, order.name, order.uid, token=order.token)
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
        result = await self._writes.pods.annotate(
            order.namespace,
            order.name,
            order.uid,
            suspension_patch(order.suspension)
            | ({names.ANNOTATION_GPU_TIME: order.gpu_time} if order.gpu_time else {})
            | ({names.ANNOTATION_GRANT: order.grant} if order.grant else {}),
            order.resource_version,
        )
        if result.outcome == "done":
            reason, action = ("Suspended", "Suspending") if order.suspension else ("Resumed", "Resuming")
            self._announcer.tell(order, reason, action, order.reason)
        return result

    async def _amend(self, order: c.AmendGrant) -> Result:
        result = await self._writes.pods.annotate(
            order.namespace,
            order.name,
            order.uid,
            {names.ANNOTATION_GRANT: order.grant},
            order.resource_version,
        )
        if result.outcome == "done":
            self._announcer.tell(order, "Resized", "Resizing", order.reason)
        return result

    async def resize(self, order: c.ResizePod) -> c.Answers:
        """Writes what a pod's slices shall have. Kerf decides what becomes of it when it sees the annotation."""
        pod = self._core.find("Pod", order.name, order.namespace)
        if pod is None or order.uid not in ("", pod.metadata.uid):
            gone = f"there is no pod {order.namespace}/{order.name}"
            return c.Answers(answers=(c.Answer(uid=order.uid, outcome="gone", message=gone),))
        result = await self._writes.pods.annotate(
            order.namespace,
            order.name,
            pod.metadata.uid,
            {names.ANNOTATION_RESIZE: order.resize or None},
            order.resource_version,
        )
        return c.Answers(answers=(c.Answer(uid=pod.metadata.uid, outcome=result.outcome, message=result.message),))

    async def _label(self, order: c.LabelNode) -> Result:
        node = self._core.find("Node", order.node)
        if node is None:
            return Result("gone", f"node {order.node} is not known to this watcher")
        if all(node.metadata.labels.get(key) == value for key, value in order.labels.items()):
            return Result("done")  # they are there already
        return await self._writes.objects.label_node(order.node, order.labels)

    async def _advertise(self, order: c.AdvertiseCapacity) -> Result:
        node = self._core.find("Node", order.node)
        if node is None:
            return Result("gone", f"node {order.node} is not known to this watcher")
        amounts = self._core.requests.to_write(node, order.amounts, time.monotonic())
        return await self._writes.objects.advertise(order.node, amounts) if amounts else Result("done")

    async def _taint(self, order: c.TaintNode) -> Result:
        node = self._core.find("Node", order.node)
        if node is None:
            return Result("gone", f"node {order.node} is not known to this watcher")
        if any(taint.key == order.key for taint in node.spec.taints) == order.present:
            return Result("done")
        return await self._writes.objects.taint(node, order.key, present=order.present)

    async def _nominate(self, order: c.NominateNode) -> Result:
        pod = self._core.find("Pod", order.name, order.namespace)
        if pod is not None and pod.metadata.uid == order.uid and pod.status.nominated_node_name == order.node:
            return Result("done")
        return await self._writes.pods.nominate(order)

    async def _delete(self, order: c.DeletePod) -> Result:
        result = await self._writes.pods.delete(order)
        if result.outcome == "done":
            self._announcer.tell(order, "Deleted", "Deleting", order.reason, warns=True)
        return result

    async def _select(self, order: c.SelectNode) -> Result:
        claim = self._core.find("PersistentVolumeClaim", order.claim, order.namespace)
        if claim is None:
            return Result("gone", f"claim {order.namespace}/{order.claim} is not known to this watcher")
        if not order.volume:
            return await self._writes.objects.select_node(order.namespace, order.claim, order.node)
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
        return await self._writes.objects.reserve_volume(
            order.volume,
            volume.metadata.resource_version,
            namespace=order.namespace,
            claim=order.claim,
            claim_uid=claim.metadata.uid,
        )

    async def _publish(self, order: c.PublishSlice) -> Result:
        node = self._core.find("Node", order.node)
        if node is None:
            return Result("gone", f"node {order.node} is not known to this watcher")
        return await self._writes.devices.publish(order, node.metadata.uid)

    async def _report_group(self, order: c.ReportPodGroup) -> Result:
        """Writes nothing if the PodGroup says so already, or has been scheduled once."""
        known: Gang | None = self._core.find(Gang.__name__, f"{POD_GROUP}/{order.name}", order.namespace)
        if known is None or known.metadata.uid != order.uid:
            return Result("gone", f"PodGroup {order.namespace}/{order.name} is not known to this watcher")
        said, wanted = known.scheduled, GroupCondition(status="False", reason=order.reason, message=order.message)
        if said is not None and (said.status == "True" or (not order.scheduled and said == wanted)):
            return Result("done")
        return await self._writes.groups.report(order, known, now_s=time.time())


def _subject(order: c.Patch) -> str:
    """What an answer names: the pod's uid; for a node its name, for a claim namespace/name."""
    match order:
        case c.LabelNode() | c.PublishSlice() | c.AdvertiseCapacity() | c.TaintNode():
            return order.node
        case c.SelectNode():
            return f"{order.namespace}/{order.claim}"
        case _:
            return order.uid
