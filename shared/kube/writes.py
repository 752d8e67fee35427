"""Every write that Kerf makes in Kubernetes, and what its answer means (docs: the protocol's table of failures)."""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec

from shared.contracts.commands import AnnounceEvent, Bind, DeletePod, Evict
from shared.kube import resources
from shared.kube.device_writes import DeviceWrites
from shared.kube.outcomes import WRITE_TIMEOUT_S, Result, outcome_of
from shared.kube.transport import JSON, MERGE_PATCH, STRATEGIC_PATCH, Transport, TransportError
from shared.model import names

NOTE_LIMIT = 1024
"""events.k8s.io/v1 refuses longer notes."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_ENCODER = msgspec.json.Encoder()


class Writes:
    """Writes through a transport. None raises on a failure of server or network: the outcome says it."""

    def __init__(self, transport: Transport, *, reporter: str, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self._transport = transport
        self._reporter = reporter
        self._timeout_s = timeout_s
        self.devices = DeviceWrites(transport, timeout_s=timeout_s)
        """Of dynamic resource allocation."""

    async def send(self, method: str, path: str, body: Any, *, content_type: str = JSON) -> Result:
        try:
            response = await self._transport.request(
                method, path, _ENCODER.encode(body), content_type=content_type, timeout_s=self._timeout_s
            )
        except TransportError as error:
            # Nothing of a request that was never sent can have been executed; asking again is safe, as after a 429.
            return Result("unknown" if error.sent else "throttled", str(error))
        return outcome_of(response)

    async def bind(self, order: Bind, annotations: dict[str, str] | None = None) -> Result:
        """Binds: sets node and grant in one transaction, only if uid and resourceVersion still hold (rule R3).

        The server does not validate the Binding's metadata, and a bad key would make the pod unwritable for ever (every
        later update answers 422); so keys are checked here and refused.
        """
        notes = dict(annotations or {})
        if order.grant:
            notes[names.ANNOTATION_GRANT] = order.grant
        for key in notes:
            if not valid_key(key):
                return Result("refused", f"annotation key {key!r} is not valid; nothing was sent")
        if not order.uid or not order.resource_version or not order.node:
            return Result("refused", "a Binding needs uid, resourceVersion and node; nothing was sent")
        metadata: dict[str, Any] = {"name": order.name, "uid": order.uid, "resourceVersion": order.resource_version}
        if notes:
            metadata["annotations"] = notes
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": order.node},
        }
        return await self.send("POST", resources.POD.path(order.name, order.namespace, sub="binding"), body)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: dict[str, str | None], resource_version: str = ""
    ) -> Result:
        """With a resourceVersion: only on that version."""
        metadata = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        body = {"metadata": metadata | {"annotations": annotations}}
        return await self.send("PATCH", resources.POD.path(name, namespace), body, content_type=MERGE_PATCH)

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
            "lastTransitionTime": _seconds(now_s),
        }
        body = {"metadata": metadata, "status": {"conditions": [condition]}}
        return await self.send(
            "PATCH", resources.POD.path(name, namespace, sub="status"), body, content_type=STRATEGIC_PATCH
        )

    async def mark_touched(self, namespace: str, name: str, uid: str, *, token: str) -> Result:
        """Changes the pod's resourceVersion by a condition in its status without further meaning. Neither webhooks on
        pods nor the limit of annotations apply to the status."""
        condition = {"type": names.ANNOTATION_TOUCHED, "status": "True", "reason": "Touched", "message": token}
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        return await self.send(
            "PATCH", resources.POD.path(name, namespace, sub="status"), body, content_type=STRATEGIC_PATCH
        )

    async def label_node(self, node: str, labels: dict[str, str | None]) -> Result:
        for key in labels:
            if not valid_key(key):
                return Result("refused", f"label key {key!r} is not valid; nothing was sent")
        return await self.send(
            "PATCH", resources.NODE.path(node), {"metadata": {"labels": labels}}, content_type=MERGE_PATCH
        )

    async def delete_pod(self, order: DeletePod) -> Result:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": _preconditions(order.uid, order.resource_version),
        }
        return await self.send("DELETE", resources.POD.path(order.name, order.namespace), body)

    async def evict(self, order: Evict) -> Result:
        """Through policy/v1: a disruption budget that refuses gives `throttled`."""
        options: dict[str, Any] = {"preconditions": _preconditions(order.uid, order.resource_version)}
        if order.grace_period_seconds is not None:
            options["gracePeriodSeconds"] = order.grace_period_seconds
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": order.name, "namespace": order.namespace},
            "deleteOptions": options,
        }
        return await self.send("POST", resources.POD.path(order.name, order.namespace, sub="eviction"), body)

    async def announce(self, event: AnnounceEvent, *, event_name: str, now_s: float) -> Result:
        """An Event on a pod. `event_name` must be new in the namespace."""
        when = (
            datetime.datetime.fromtimestamp(now_s, datetime.UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z")
        )
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": event_name, "namespace": event.namespace},
            "eventTime": when,
            "type": event.type,
            "reason": event.reason,
            "action": event.action or event.reason,
            "note": event.note[:NOTE_LIMIT],
            "reportingController": names.SCHEDULER_NAME,
            "reportingInstance": self._reporter,
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
            },
        }
        return await self.send("POST", resources.EVENT.collection(event.namespace), body)

    async def select_node(self, namespace: str, claim: str, node: str) -> Result:
        """Asks the provisioner of a late-binding claim for a volume that the node can reach."""
        body = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}
        return await self.send("PATCH", resources.CLAIM.path(claim, namespace), body, content_type=MERGE_PATCH)

    async def reserve_volume(
        self, volume: str, resource_version: str, *, namespace: str, claim: str, claim_uid: str
    ) -> Result:
        """Pre-binds a free volume to a claim, as kube-scheduler does; only if the volume has not changed meanwhile."""
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": claim,
            "uid": claim_uid,
        }
        metadata = {"resourceVersion": resource_version, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}
        body = {"metadata": metadata, "spec": {"claimRef": reference}}
        return await self.send("PATCH", resources.VOLUME.path(volume), body, content_type=MERGE_PATCH)


def valid_key(key: str) -> bool:
    """Whether Kubernetes accepts it as a key of labels and annotations (a qualified name with an optional DNS
    prefix)."""
    return len(key) <= 253 + 64 and _KEY.fullmatch(key) is not None


def _preconditions(uid: str, resource_version: str) -> dict[str, str]:
    return {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}


def _seconds(now_s: float) -> str:
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
