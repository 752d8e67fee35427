"""Writes Bindings (rule R3)."""

from __future__ import annotations

from typing import Any

from shared.contracts.commands import Bind
from shared.kube import resources
from shared.kube.keys import valid_key
from shared.kube.outcomes import Result
from shared.kube.sender import Send
from shared.model import names


class BindingWrites:
    def __init__(self, send: Send) -> None:
        self._send = send

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
        return await self._send("POST", resources.POD.path(order.name, order.namespace, sub="binding"), body)
