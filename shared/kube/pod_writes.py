"""Writes pods: annotations, conditions, deletions and evictions."""

from __future__ import annotations

from typing import Any

from shared.contracts.commands import DeletePod, Evict, NominateNode
from shared.kube import resources
from shared.kube.outcomes import Result
from shared.kube.sender import Send
from shared.kube.transport import MERGE_PATCH, STRATEGIC_PATCH
from shared.model import names
from shared.model.timestamps import seconds_text

_UID_DIFFERS = "UID in"
"""Both sentences of the server have it: "UID in precondition: ..." and "the UID in the precondition (...) does not"."""


class PodWrites:
    def __init__(self, send: Send) -> None:
        self._send = send

    async def annotate(
        self, namespace: str, name: str, uid: str, annotations: dict[str, str | None], resource_version: str = ""
    ) -> Result:
        """With a resourceVersion: only on that version."""
        metadata = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        body = {"metadata": metadata | {"annotations": annotations}}
        return await self._send("PATCH", resources.POD.path(name, namespace), body, content_type=MERGE_PATCH)

    async def report_unscheduled(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        reason: str,
        message: str,
        now_s: float,
        resource_version: str = "",
    ) -> Result:
        """PodScheduled=False, as kube-scheduler writes it. With a resourceVersion it never lands on a later version of
        the pod."""
        metadata = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": seconds_text(now_s),
        }
        body = {"metadata": metadata, "status": {"conditions": [condition]}}
        return await self._send(
            "PATCH", resources.POD.path(name, namespace, sub="status"), body, content_type=STRATEGIC_PATCH
        )

    async def nominate(self, order: NominateNode) -> Result:
        """Writes status.nominatedNodeName, or empties it, if the pod is still of this version."""
        metadata = {
            "uid": order.uid,
            **({"resourceVersion": order.resource_version} if order.resource_version else {}),
        }
        body = {"metadata": metadata, "status": {"nominatedNodeName": order.node or None}}
        path = resources.POD.path(order.name, order.namespace, sub="status")
        return await self._send("PATCH", path, body, content_type=STRATEGIC_PATCH)

    async def mark_touched(self, namespace: str, name: str, uid: str, *, token: str) -> Result:
        """Changes the pod's resourceVersion by a condition in its status without further meaning. Neither webhooks on
        pods nor the limit of annotations apply to the status."""
        condition = {"type": names.ANNOTATION_TOUCHED, "status": "True", "reason": "Touched", "message": token}
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        return await self._send(
            "PATCH", resources.POD.path(name, namespace, sub="status"), body, content_type=STRATEGIC_PATCH
        )

    async def delete(self, order: DeletePod) -> Result:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": _preconditions(order.uid, order.resource_version),
        }
        return await self._send("DELETE", resources.POD.path(order.name, order.namespace), body)

    async def evict(self, order: Evict) -> Result:
        """Through policy/v1: a disruption budget that refuses gives `throttled`.

        Another pod has the name by now where the uid alone is in conflict: the intended one is gone. The server also
        answers 409 where it set a resourceVersion itself and the pod changed meanwhile.
        """
        options: dict[str, Any] = {"preconditions": _preconditions(order.uid, order.resource_version)}
        if order.grace_period_seconds is not None:
            options["gracePeriodSeconds"] = order.grace_period_seconds
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": order.name, "namespace": order.namespace},
            "deleteOptions": options,
        }
        result = await self._send("POST", resources.POD.path(order.name, order.namespace, sub="eviction"), body)
        succeeded = result.outcome == "conflict" and not order.resource_version and _UID_DIFFERS in result.message
        return Result("gone", result.message) if succeeded else result


def _preconditions(uid: str, resource_version: str) -> dict[str, str]:
    return {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
