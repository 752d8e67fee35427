"""A load of pods from a seed: created, edited, finished, deleted and recreated under the same name."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from shared.kube.resources import POD
from shared.kube.transport import MERGE_PATCH, Response, Transport, TransportError
from shared.model import names
from shared.model.objects import Pod
from tests.chaos.audit import Ask
from tests.support.waiting import eventually

WORKERS = 3
_AGAIN = (429, 500, 503, 504)


class _List(msgspec.Struct):
    items: list[Pod]


_LIST = msgspec.json.Decoder(_List)


def draw(chance: random.Random, memory_mib: int) -> Ask:
    """Whole GPUs, memory alone, compute alone, both, and several GPUs in part."""
    kind = chance.random()
    if kind < 0.45:
        return Ask(chance.choices((1, 2, 4), (6, 2, 1))[0])
    count = chance.choices((1, 2), (5, 1))[0]
    part = chance.choice((memory_mib // 8, memory_mib // 4, memory_mib // 2, 10_240))
    share = chance.choice((100, 250, 300, 500))
    if kind < 0.6:
        return Ask(count, memory_mib=part, milli=0)
    if kind < 0.7:
        return Ask(count, milli=share)
    return Ask(count, memory_mib=part, milli=share)


class Load:
    """One namespace of pods. Every write is repeated until the server has answered it."""

    def __init__(self, kube: Transport, namespace: str, *, seed: int, memory_mib: int) -> None:
        self.kube, self.namespace = kube, namespace
        self.chance = random.Random(seed)
        self.asks: dict[str, Ask] = {}
        """By name, of all pods that must exist now."""
        self.created = 0
        self._memory_mib = memory_mib
        self._made = 0

    async def go(self, count: int) -> None:
        """Creates `count` pods, and disturbs about a third of the existing ones."""
        todo = [self._draw() for _ in range(count)]

        async def work() -> None:
            while todo:
                name, ask, trouble = todo.pop(0)
                await self.create(name, ask)
                if trouble and len(self.asks) > 5:
                    await getattr(self, f"_{trouble}")(
                        self.chance.choice(sorted(name for name in self.asks if name.startswith("pod-")))
                    )

        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(work())

    async def reached(self, created: int) -> None:
        await eventually(lambda: self.created >= created, within_s=60, what=f"{created} pods created")

    async def pods(self) -> list[Pod]:
        """All pods of the namespace, from the API server, by a consistent list. Raises TransportError."""
        answer = await self.kube.request("GET", POD.collection(self.namespace))
        if answer.status != 200:
            raise TransportError(f"the list of pods was answered {answer.status}")
        return _LIST.decode(answer.body).items

    async def clear(self) -> None:
        self.asks.clear()
        await self._surely("DELETE", f"{POD.collection(self.namespace)}?gracePeriodSeconds=0", None, (200,))

    async def create(
        self, name: str, ask: Ask, *, metadata: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None
    ) -> None:
        """`metadata` and `spec`: additional fields of the pod."""
        body = {
            "metadata": {**(metadata or {}), "name": name},
            "spec": {
                **(spec or {}),
                "schedulerName": names.SCHEDULER_NAME,
                "tolerations": [{"key": names.TAINT_MANAGED, "operator": "Exists", "effect": "NoSchedule"}],
                "containers": [{"name": "main", "image": "example", "resources": {"limits": ask.limits()}}],
            },
        }
        # 409: an earlier attempt, whose answer was lost, has created it.
        await self._surely("POST", POD.collection(self.namespace), body, (201, 409))
        self.asks[name] = ask
        self.created += 1

    async def annotate(self, name: str, annotation: str) -> int:
        """The API server's status for a PATCH that sets an annotation: 200, or 422 if the pod has no space for it."""
        patch = {"metadata": {"annotations": {annotation: "x"}}}
        return (await self._surely("PATCH", POD.path(name, self.namespace), patch, (200, 422))).status

    # --- trouble ------------------------------------------------------------------------------------------------

    async def _delete(self, name: str) -> None:
        if self.asks.pop(name, None) is not None:
            await self._surely("DELETE", f"{POD.path(name, self.namespace)}?gracePeriodSeconds=0", None, (200, 404))

    async def _edit(self, name: str) -> None:
        patch = {"metadata": {"labels": {"edited": str(self.chance.randrange(10**6))}}}
        await self._surely("PATCH", POD.path(name, self.namespace), patch, (200, 404))

    async def _finish(self, name: str) -> None:
        """As a kubelet reports a pod that ran to its end; a pod that is not bound is not changed."""
        answer = await self._surely("GET", POD.path(name, self.namespace), None, (200, 404))
        if (
            answer.status == 200
            and json.loads(answer.body)["spec"].get("nodeName")
            and self.asks.pop(name, None) is not None
        ):
            await self._surely(
                "PATCH", POD.path(name, self.namespace, sub="status"), {"status": {"phase": "Succeeded"}}, (200, 404)
            )

    async def _recreate(self, name: str) -> None:
        """The same name with another uid."""
        ask = self.asks.pop(name, None)
        if ask is not None:
            await self._surely("DELETE", f"{POD.path(name, self.namespace)}?gracePeriodSeconds=0", None, (200, 404))
            await self.create(name, ask)

    def _draw(self) -> tuple[str, Ask, str]:
        self._made += 1
        trouble = self.chance.choices(("", "delete", "edit", "finish", "recreate"), (66, 14, 10, 5, 5))[0]
        return f"pod-{self._made}", draw(self.chance, self._memory_mib), trouble

    async def _surely(self, method: str, path: str, body: Any, good: tuple[int, ...]) -> Response:
        payload = b"" if body is None else json.dumps(body).encode()
        kind = MERGE_PATCH if method == "PATCH" else "application/json"

        async def once() -> Response | None:
            try:
                answer = await self.kube.request(method, path, payload, content_type=kind, timeout_s=5)
            except TransportError:
                return None  # The server is briefly down: that is what these tests are about.
            cold = (
                answer.status == 403 and b"no PriorityClass" in answer.body
            )  # a server that has just started has not listed them
            assert cold or answer.status in (*good, *_AGAIN), (method, path, answer)
            return answer if answer.status in good else None

        answer: Response = await eventually(once, within_s=60, every_s=0.1, what=f"{method} {path}")
        return answer
