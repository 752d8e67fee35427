"""Raises what a node advertises before a Binding that its kubelet would refuse otherwise."""

from __future__ import annotations

import asyncio
import time
from weakref import WeakValueDictionary

from services.watcher.core import Core
from shared.contracts import commands as c
from shared.kube.outcomes import Result
from shared.kube.writes import Writes


class RaisedAmounts:
    def __init__(self, core: Core, writes: Writes) -> None:
        self._core, self._writes = core, writes
        self._raising: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By node, while it is raised: of two writes under way the smaller amount could be the last to arrive."""

    async def count(self, order: c.Bind) -> Result:
        """Counts the pod on its node, and raises the node's amounts where they do not hold it."""
        pod, node = self._core.find("Pod", order.name, order.namespace), self._core.find("Node", order.node)
        if pod is None or pod.metadata.uid != order.uid or node is None:
            return Result("done")  # the API server refuses the Binding: this pod is not there any more
        self._core.requests.count(pod, order.node)
        if not self._core.requests.lacking(node):
            return Result("done")
        async with self._raising.setdefault(order.node, asyncio.Lock()):
            lacking = self._core.requests.raised(node, time.monotonic())
            if not lacking:
                return Result("done")  # a Binding that was counted has been refused meanwhile
            result = await self._writes.objects.advertise(order.node, lacking)
        if result.outcome in ("done", "unknown", "throttled"):
            return Result(result.outcome if result.outcome == "done" else "throttled", result.message)
        return Result("refused", f"the node's {', '.join(sorted(lacking))} could not be raised: {result.message}")

    def uncount(self, order: c.Bind) -> None:
        """This Binding puts the pod on no node. An earlier one may have: orders are repeated, and answered by 409."""
        self._core.requests.forget(order.uid)
        pod = self._core.find("Pod", order.name, order.namespace)
        if pod is not None and pod.metadata.uid == order.uid:
            self._core.requests.pod_seen(pod)
