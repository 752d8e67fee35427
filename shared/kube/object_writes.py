"""Writes what is not a pod: labels of nodes, and the volumes of pods that wait for a node."""

from __future__ import annotations

from shared.kube import resources
from shared.kube.keys import valid_key
from shared.kube.outcomes import Result
from shared.kube.sender import Send
from shared.kube.transport import MERGE_PATCH


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

    async def select_node(self, namespace: str, claim: str, node: str) -> Result:
        """Asks the provisioner of a late-binding claim for a volume that the node can reach."""
        body = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}
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
