"""Raises what a node advertises before a Binding that its kubelet would refuse otherwise.

The kubelet learns of its node and of its pods by two watches, and admits a pod by the node as it knows it. The Binding
can overtake the amounts: a kubelet that asks the API server again does so for node affinity alone (kubernetes pull
request 134445). Nothing tells what a kubelet has seen. So Bindings to a node whose amounts have just been raised wait
until this watcher has seen them by its own watch, and a moment more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from services.watcher.core import Core
from shared.contracts import commands as c
from shared.kube.outcomes import Result
from shared.kube.writes import Writes

SEEN_AFTER_S = 0.5
"""A kubelet is given so long to see amounts that were raised."""


class RaisedAmounts:
    def __init__(
        self, core: Core, writes: Writes, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._core, self._writes, self._sleep = core, writes, sleep
        self._seen_from: dict[str, float] = {}
        """By node that was raised lately: when its kubelet has seen it."""
        self._raising: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By node, while it is raised: of two writes under way the smaller amount could be the last to arrive."""

    async def count(self, order: c.Bind) -> Result:
        """Counts the pod on its node, and raises the node's amounts where they do not hold it."""
        pod, node = self._core.find("Pod", order.name, order.namespace), self._core.find("Node", order.node)
        if pod is None or pod.metadata.uid != order.uid or node is None:
            return Result("done")  # the API server refuses the Binding: this pod is not there any more
        self._core.requests.count(pod, order.node)
        if self._core.requests.lacking(node):
            raised = await self._raise(order.node)
            if raised.outcome != "done":
                return raised
        return await self._until_seen(order.node)

    async def _raise(self, name: str) -> Result:
        async with self._raising.setdefault(name, asyncio.Lock()):
            node = self._core.find("Node", name)
            lacking = {} if node is None else self._core.requests.raised(node, time.monotonic())
            if not lacking:
                return Result("done")  # raised meanwhile, or a Binding that was counted has been refused
            result = await self._writes.objects.advertise(name, lacking)
            if result.outcome in ("done", "unknown"):
                self._seen_from[name] = time.monotonic() + SEEN_AFTER_S
        if result.outcome in ("done", "unknown", "throttled"):
            return Result(result.outcome if result.outcome == "done" else "throttled", result.message)
        return Result("refused", f"the node's {', '.join(sorted(lacking))} could not be raised: {result.message}")

    async def _until_seen(self, name: str) -> Result:
        """Waits where the node was raised a moment ago, for this pod or for another one that is not needed any more."""
        left_s = self._seen_from.get(name, 0.0) - time.monotonic()
        if left_s <= 0:
            self._seen_from.pop(name, None)
            return Result("done")
        await self._sleep(left_s)
        node = self._core.find("Node", name)
        if node is not None and self._core.requests.lacking(node):
            return Result("throttled", f"the raised amounts of node {name} have not been seen by this watcher yet")
        return Result("done")

    def uncount(self, order: c.Bind) -> None:
        """This Binding puts the pod on no node. An earlier one may have: orders are repeated, and answered by 409."""
        self._core.requests.forget(order.uid)
        pod = self._core.find("Pod", order.name, order.namespace)
        if pod is not None and pod.metadata.uid == order.uid:
            self._core.requests.pod_seen(pod)
