"""Writes what is not a pod: labels, resources and taints of nodes, and the volumes of pods that wait for a node."""

from __future__ import annotations

from collections.abc import Mapping

from shared.kube import resources
from shared.kube.keys import valid_key
from shared.kube.outcomes import Result
from shared.kube.sender import Send
from shared.kube.transport import MERGE_PATCH
from shared.model.objects import Node, Taint
from shared.model.storage import SELECTED_NODE


class ObjectWrites:
    def __init__(self, send: Send) -> None:
        self._send = send

    async def label_node(self, node: str, labels: dict[str, str | None]) -> Result:
        for key in labels:
            if not valid_key(key):
                return Result("refused", f"label key {key!r} is not valid; nothing was sent")
        return await self._send(
            "PATCH", resources.NODE.path(node), {"metadata": {"labels": labels}}, content_type=MERGE_PATCH
        )

    async def advertise(self, node: str, amounts: Mapping[str, int]) -> Result:
        """Writes extended resources into a node's status. The kubelet keeps what it does not know in `capacity`, and
        makes `allocatable` from that (pkg/kubelet/nodestatus, MachineInfo)."""
        written = {name: str(amount) for name, amount in amounts.items()}
        body = {"status": {"capacity": written, "allocatable": written}}
        return await self._send("PATCH", resources.NODE.path(node, sub="status"), body, content_type=MERGE_PATCH)

    async def taint(self, node: Node, key: str, *, present: bool) -> Result:
        """Adds a NoSchedule taint to a node or takes it away, if the node is still of this version: the API replaces
        the list of taints as a whole."""
        kept = [taint for taint in node.spec.taints if taint.key != key]
        taints = [
            {field: value for field in ("key", "value", "effect") if (value := getattr(taint, field))}
            | ({"timeAdded": taint.time_added} if taint.time_added else {})
            for taint in (*kept, *((Taint(key=key, effect="NoSchedule"),) if present else ()))
        ]
        meta = node.metadata
        metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": metadata, "spec": {"taints": taints}}
        return await self._send("PATCH", resources.NODE.path(meta.name), body, content_type=MERGE_PATCH)

    async def select_node(self, namespace: str, claim: str, node: str) -> Result:
        """Asks the provisioner of a late-binding claim for a volume that the node can reach."""
        body = {"metadata": {"annotations": {SELECTED_NODE: node}}}
        return await self._send("PATCH", resources.CLAIM.path(claim, namespace), body, content_type=MERGE_PATCH)

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
        return await self._send("PATCH", resources.VOLUME.path(volume), body, content_type=MERGE_PATCH)
