"""Watches the pods and nodes of a cluster, and sends nothing but GET: lists and watches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from shadow.objects import (
    AnyFact,
    Began,
    Ended,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    SeenPod,
    same_node,
    same_pod,
    trimmed_node,
    trimmed_pod,
)
from shadow.peers import NODE_ANNOTATIONS
from shared.contracts.facts import Fact, Put
from shared.kube.reflector import Reflector
from shared.kube.resources import NODE, POD
from shared.kube.timing import Timing
from shared.kube.transport import JSON, Response, Transport
from shared.model.objects import Node


class NotReadOnly(RuntimeError):
    """Something would have written to a cluster that is only watched."""


class ReadOnly:
    """A transport that sends GET alone; `sent` counts the requests by method."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.sent: Counter[str] = Counter()

    async def request(
        self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0
    ) -> Response:
        if method != "GET" or body:
            raise NotReadOnly(f"{method} {path} was not sent: shadow mode only reads")
        self.sent[method] += 1
        return await self._inner.request(method, path, content_type=content_type, timeout_s=timeout_s)

    def stream(
        self, path: str, *, read_timeout_s: float
    ) -> AbstractAsyncContextManager[tuple[Response, AsyncIterator[bytes]]]:
        self.sent["GET"] += 1
        return self._inner.stream(path, read_timeout_s=read_timeout_s)

    async def close(self) -> None:
        await self._inner.close()


class Watch:
    """Passes facts on: first Began and all that exists, once everything was listed, then each change.

    `clock`: seconds since 1970.
    """

    def __init__(
        self,
        transport: Transport,
        emit: Callable[[AnyFact], None],
        log: Any,
        *,
        clock: Callable[[], float],
        source: str = "",
        namespaces: tuple[str, ...] = (),
        timing: Timing | None = None,
    ) -> None:
        self.transport = ReadOnly(transport)
        self._emit, self._clock = emit, clock
        self._source, self._namespaces = source, namespaces
        kinds = [(NODE, Node), *((POD._replace(only=(name, "")), SeenPod) for name in namespaces or ("",))]
        self.reflectors = [
            Reflector(self.transport, resource, self._take, log, timing=timing, kind=kind) for resource, kind in kinds
        ]
        self._pods: dict[str, SeenPod] = {}
        self._nodes: dict[str, Node] = {}
        self._begun = False

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not followed at present, and why; and how many objects could not be decoded."""
        found = [
            f"{' of namespace '.join(filter(None, (one.resource.plural, one.resource.only[0])))}: {one.problem}"
            for one in self.reflectors
            if one.problem
        ]
        unreadable = sum(one.unreadable for one in self.reflectors)
        if unreadable:
            found.append(f"{unreadable} objects have another form than Kubernetes'; the log above names them")
        return tuple(found)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors:
                group.create_task(reflector.run(), name=f"shadow:{reflector.resource.plural}")
            for reflector in self.reflectors:
                await reflector.wait_synced()
            self._begin()

    @property
    def begun(self) -> bool:
        return self._begun

    def end(self) -> Ended:
        return Ended(at_s=self._clock())

    def _begin(self) -> None:
        now = self._clock()
        self._emit(Began(at_s=now, source=self._source, namespaces=self._namespaces))
        for node in self._nodes.values():
            self._emit(NodeSeen(at_s=now, node=node))
        for pod in sorted(self._pods.values(), key=lambda one: (one.metadata.creation_timestamp, one.key)):
            if not pod.ended:
                self._emit(PodSeen(at_s=now, pod=pod))
        self._begun = True

    def _take(self, facts: list[Fact]) -> None:
        for fact in facts:
            seen: Any = fact.object  # Node, or SeenPod in the place of the model's Pod
            found = self._pod(seen, fact) if isinstance(seen, SeenPod) else self._node(seen, fact)
            if found is not None and self._begun:
                self._emit(found)

    def _pod(self, pod: SeenPod, fact: Fact) -> AnyFact | None:
        uid = pod.metadata.uid
        if not isinstance(fact, Put):
            known = self._pods.pop(uid, None)
            return None if known is None else PodGone(at_s=self._clock(), uid=uid)
        kept, known = trimmed_pod(pod), self._pods.get(uid)
        self._pods[uid] = kept
        return None if known is not None and same_pod(known, kept) else PodSeen(at_s=self._clock(), pod=kept)

    def _node(self, node: Node, fact: Fact) -> AnyFact | None:
        name = node.metadata.name
        if not isinstance(fact, Put):
            known = self._nodes.pop(name, None)
            return None if known is None else NodeGone(at_s=self._clock(), name=name)
        kept, known = trimmed_node(node, NODE_ANNOTATIONS), self._nodes.get(name)
        self._nodes[name] = kept
        return None if known is not None and same_node(known, kept) else NodeSeen(at_s=self._clock(), node=kept)
