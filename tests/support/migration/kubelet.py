"""Hollow kubelets: bound pods run and become ready at once, and end when they are deleted."""

from __future__ import annotations

from typing import Any

from shared.kube.resources import POD
from shared.kube.sender import Send
from shared.kube.transport import STRATEGIC_PATCH
from shared.model.objects import Pod
from tests.support.migration.view import TERMINAL, View

_READY = [{"type": kind, "status": "True"} for kind in ("PodReadyToStartContainers", "ContainersReady", "Ready")]


class HollowKubelets:
    def __init__(self, view: View, send: Send) -> None:
        self.view, self._send = view, send
        self._ended: set[str] = set()

    async def act(self) -> None:
        for pod in list(self.view.pods.values()):
            if not pod.spec.node_name or pod.metadata.uid in self._ended:
                continue
            if pod.metadata.deletion_timestamp is not None:
                await self._end(pod)
            elif pod.status.phase == "Pending":
                await self._status(pod, {"phase": "Running", "conditions": _READY})

    async def _end(self, pod: Pod) -> None:
        """A container that gets SIGTERM fails; then the pod goes."""
        self._ended.add(pod.metadata.uid)
        if pod.status.phase not in TERMINAL:
            await self._status(pod, {"phase": "Failed", "conditions": [c | {"status": "False"} for c in _READY]})
        path = POD.path(pod.metadata.name, pod.metadata.namespace)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        said = await self._send("DELETE", path, body)
        assert said.outcome in ("done", "gone"), said

    async def _status(self, pod: Pod, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        path = POD.path(pod.metadata.name, pod.metadata.namespace)
        said = await self._send("PATCH", f"{path}/status", body, content_type=STRATEGIC_PATCH)
        assert said.outcome in ("done", "gone", "conflict"), said
