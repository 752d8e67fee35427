"""Time-slices processes that bypass the interposer: such a process runs only while its slice owns the GPU.

The CUDA driver's process lock stops these processes. The same lock limits processes that used more GPU time than their
share to that share. While a slice that bypasses the interposer has a guaranteed quantum, the other slices are stopped
by the gates in their control blocks. If no slice bypasses the interposer, this module does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import structlog

from services.node_agent.strategies.gpu_locks import GpuLocks
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.overuse import ThrottleQuotas
from services.node_agent.strategies.quantum_scheduler import Contender, Decision, QuantumPolicy, QuantumScheduler
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Slice

STEP_INTERVAL_S = 0.005
_RESERVED = 2
"""The rank of reserved slices: above all time-sliced ones."""

log = structlog.get_logger("time_slicing")

Escaped = Mapping[str, Mapping[Key, frozenset[int]]]
"""By GPU and slice: the PIDs of the processes that bypass the interposer, in the agent's PID namespace."""


class TimeSlicer:
    def __init__(
        self, registry: SliceRegistry, locks: GpuLocks, policy: QuantumPolicy, clock: Callable[[], int]
    ) -> None:
        self._registry, self._locks, self._policy, self._clock = registry, locks, policy, clock
        self._escaped: dict[str, dict[Key, frozenset[int]]] = {}
        self._quotas: ThrottleQuotas = {}
        self._turns: dict[str, QuantumScheduler] = {}
        self._last: dict[str, tuple[int, Decision]] = {}
        self._wake = asyncio.Event()
        self._failed: set[int] = set()
        """Processes that could not be locked. Another attempt follows if they are still there at the next sample."""
        self._changes: dict[str, asyncio.Task[None]] = {}
        """The locks and unlocks that each GPU's worker is making. A GPU whose worker hangs delays no other."""

    def set_escaped(self, escaped: Escaped, quotas: ThrottleQuotas | None = None) -> None:
        """Replaces the set of escaped processes and the throttle quotas."""
        self._quotas = quotas or {}
        self._escaped = {uuid: dict(found) for uuid, found in escaped.items() if found}
        self._failed.clear()
        self._wake.set()

    async def run(self) -> None:
        """Runs forever."""
        while True:
            if not self._escaped and not self._quotas and not self._locks.held and not self._closed():
                self._wake.clear()
                await self._wake.wait()
            self.begin_step()
            await asyncio.sleep(STEP_INTERVAL_S)

    def begin_step(self) -> None:
        """Decides which slices run, sets the gates, and begins to lock and unlock processes.

        A GPU whose last locks and unlocks are not done yet gets its next ones in a later step.
        """
        waiting: dict[str, frozenset[Key]] = {}
        for uuid, found in self._escaped.items():
            waiting[uuid] = self._turn(uuid, found).waiting
        for uuid in self._turns.keys() - self._escaped.keys():
            del self._turns[uuid]
            self._last.pop(uuid, None)
        self._gates(waiting)
        wanted = self._wanted(waiting)
        for uuid in self._locks.gpus | wanted.keys():
            before = self._changes.get(uuid)
            if before is None or before.done():
                if before is not None:
                    before.result()
                self._changes[uuid] = asyncio.create_task(self._lock(uuid, wanted.get(uuid, frozenset())))

    async def step(self) -> None:
        """Takes one step and waits until its locks and unlocks are done."""
        self.begin_step()
        await asyncio.gather(*self._changes.values())

    def _turn(self, uuid: str, found: Mapping[Key, frozenset[int]]) -> Decision:
        now_ns = self._clock()
        before_ns, before = self._last.get(uuid, (now_ns, Decision(owner=None, waiting=frozenset())))
        on_it = [slice_ for slice_ in self._registry.slices if any(part.uuid == uuid for part in slice_.parts)]
        seen = [self._contender(slice_, found, before, now_ns - before_ns) for slice_ in on_it]
        turn = self._turns.setdefault(uuid, QuantumScheduler(self._policy)).step(now_ns, seen)
        self._last[uuid] = now_ns, turn
        return turn

    def _contender(
        self, slice_: Slice, found: Mapping[Key, frozenset[int]], before: Decision, span_ns: int
    ) -> Contender:
        """Describes a slice for the scheduler. A process that bypasses the interposer counts as busy, because its
        activity cannot be seen within milliseconds."""
        key = slice_.key
        busy = key in found or key in before.waiting or self._registry.is_busy(key)
        used_ns = span_ns if before.owner == key and busy else 0
        return Contender(key=key, rank=(_RESERVED, 0) if slice_.reserved else slice_.rank, busy=busy, used_ns=used_ns)

    def _gates(self, waiting: Mapping[str, frozenset[Key]]) -> None:
        """Closes the gates of the waiting slices. An escaped process ignores its gate, so closing it there does no
        harm."""
        for slice_ in self._registry.slices:
            closed = frozenset(uuid for uuid, keys in waiting.items() if slice_.key in keys)
            override = self._registry.override_of(slice_.key)
            if override.closed != closed:
                self._registry.set_override(slice_.key, msgspec.structs.replace(override, closed=closed))

    def _closed(self) -> bool:
        return any(self._registry.override_of(slice_.key).closed for slice_ in self._registry.slices)

    def _wanted(self, waiting: Mapping[str, frozenset[Key]]) -> dict[str, frozenset[int]]:
        """Returns the processes to be locked, by the GPU whose worker locks them.

        A process is locked as a whole, so one that must wait on any GPU is locked, and by one worker alone.
        """
        now_ns = self._clock()
        wanted: dict[int, str] = {}
        for uuid, found in sorted(self._escaped.items()):
            for key, pids in found.items():
                if key in waiting[uuid]:
                    wanted |= dict.fromkeys(pids - wanted.keys(), uuid)
        for (_, uuid), quota in sorted(self._quotas.items()):
            if quota.waits(now_ns):
                wanted |= dict.fromkeys(quota.pids - wanted.keys(), uuid)
        wanted |= {pid: uuid for uuid in self._locks.gpus for pid in self._locks.of(uuid).held & wanted.keys()}
        by_gpu: dict[str, set[int]] = {}
        for pid, uuid in wanted.items():
            by_gpu.setdefault(uuid, set()).add(pid)
        return {uuid: frozenset(pids) for uuid, pids in by_gpu.items()}

    async def _lock(self, uuid: str, wanted: frozenset[int]) -> None:
        locks = self._locks.of(uuid)
        await self._done(locks.heartbeat())
        for pid in locks.held - wanted:
            await self._done(locks.unlock(pid))
        for pid in wanted - locks.held - self._failed:
            if not await self._done(locks.lock(pid)):
                self._failed.add(pid)

    async def _done(self, call: Coroutine[Any, Any, None]) -> bool:
        try:
            await call
        except LockError as error:
            log.warning("not_locked", why=str(error))
            return False
        return True
