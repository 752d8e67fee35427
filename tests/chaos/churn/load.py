"""An endless load: bare pods, members of gangs, and pods whose controller replaces them when they are deleted."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec

from shared.kube.resources import POD
from shared.kube.transport import Transport
from shared.model import names
from tests.chaos.audit import Ask
from tests.chaos.load import WORKERS, Load, draw

PRIORITIES = {"low": 0, "mid": 100, "high": 1000}
LEAST = 40
"""If there are fewer pods than this, none is disturbed."""
FINISHED_STAYS_S = 5.0
PAUSE_S = 0.08


class Kind(msgspec.Struct, frozen=True):
    """What a pod is, besides its request."""

    ask: Ask
    priority: str
    annotations: dict[str, str] = {}
    controller: str = ""
    """Its uid."""


class ChurnLoad(Load):
    def __init__(self, kube: Transport, namespace: str, *, seed: int, memory_mib: int, target: int) -> None:
        super().__init__(kube, namespace, seed=seed, memory_mib=memory_mib)
        self.vanished: dict[str, Kind] = {}
        """Names of pods that something else has removed."""
        self._target, self._memory = target, memory_mib
        self._kinds: dict[str, Kind] = {}
        self._finished: deque[tuple[str, float]] = deque()
        self._numbers = self._gangs = 0

    def workers(self) -> list[Coroutine[Any, Any, None]]:
        """Each of these runs for ever."""
        return [self._churn() for _ in range(WORKERS)]

    async def _churn(self) -> None:
        while True:
            if len(self.asks) < self._target:
                for kind in self._next():
                    await self.make(kind)
            if len(self.asks) > LEAST and self.chance.random() < 0.75 * min(1.0, len(self.asks) / self._target):
                trouble = self.chance.choices((self._delete, self._edit, self._finish), (55, 25, 20))[0]
                await trouble(self.chance.choice(sorted(self.asks)))
            while self._finished and self._finished[0][1] <= time.monotonic() - FINISHED_STAYS_S:
                await self._remove(self._finished.popleft()[0])
            await asyncio.sleep(self.chance.uniform(0, PAUSE_S))

    async def make(self, kind: Kind) -> None:
        self._numbers += 1
        name = f"pod-{self._numbers}"
        self._kinds[name] = kind
        metadata: dict[str, Any] = {"annotations": kind.annotations}
        if kind.controller:
            owner = {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "churn",
                "uid": kind.controller,
                "controller": True,
            }
            metadata["ownerReferences"] = [owner]
        # There is no kubelet here that would end a pod in its grace period.
        spec = {"priorityClassName": kind.priority, "terminationGracePeriodSeconds": 0}
        await self.create(name, kind.ask, metadata=metadata, spec=spec)

    @property
    def single(self) -> dict[str, Ask]:
        """The requests of pods that are in no gang, by name, of all that must exist now."""
        return {
            name: ask for name, ask in self.asks.items() if names.ANNOTATION_GANG not in self._kinds[name].annotations
        }

    async def gone(self, name: str) -> None:
        """The pod does not exist, and we did not remove it. Its controller creates another."""
        if self.asks.pop(name, None) is not None:
            kind = self.vanished[name] = self._kinds[name]
            if kind.controller:
                await self.make(kind)

    async def clear(self) -> None:
        self._finished.clear()
        await super().clear()

    def _next(self) -> list[Kind]:
        if self.chance.random() < 0.06:
            self._gangs += 1
            size = self.chance.randint(2, 6)
            notes = {
                names.ANNOTATION_GANG: f"gang-{self._gangs}",
                names.ANNOTATION_GANG_SIZE: str(size),
                names.ANNOTATION_GANG_TIMEOUT: "20s",
            }
            return [Kind(Ask(1), self.chance.choice(("low", "mid")), notes)] * size
        priority = self.chance.choices(tuple(PRIORITIES), (8, 3, 1))[0]
        controller = str(uuid.UUID(int=self.chance.getrandbits(128))) if self.chance.random() < 0.5 else ""
        return [Kind(draw(self.chance, self._memory), priority, controller=controller)]

    async def _finish(self, name: str) -> None:
        await super()._finish(name)
        if name not in self.asks:
            self._finished.append((name, time.monotonic()))

    async def _remove(self, name: str) -> None:
        await self._surely("DELETE", f"{POD.path(name, self.namespace)}?gracePeriodSeconds=0", None, (200, 404))
