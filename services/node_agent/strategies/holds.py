"""Holds the members of a gang, stopped together, until they are checkpointed, withdrawn, or their time is over.

A gang on several nodes comes to a stop as one pod does (`stopping.py`), except that placement makes the attempts: it
asks all nodes at once, each tries once, and holds what has become quiet only for as long as placement has said. So a
member whose peer on another node cannot be stopped goes on by itself, also when placement or the connection is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import msgspec
import structlog

from services.node_agent.strategies.host_memory import HostMemoryUnknown
from services.node_agent.strategies.locks import LockError
from services.node_agent.strategies.stopping import Attempt
from services.node_agent.strategies.suspension import SliceGate, Suspender

ONCE = (Attempt(0.1, 1.0),)
"""In step for a moment on all nodes, and then a second to get quiet."""
LOOK_S = 0.5

log = structlog.get_logger("holds")


class _Held(msgspec.Struct, frozen=True):
    pids: tuple[int, ...]
    gate: SliceGate
    until_s: float


class _AllOf:
    """The gates of several pods as one."""

    def __init__(self, gates: Iterable[SliceGate]) -> None:
        self._gates = tuple(gates)

    def hold(self) -> None:
        for gate in self._gates:
            gate.hold()

    def settle(self) -> None:
        for gate in self._gates:
            gate.settle()

    def run_in_step(self) -> None:
        for gate in self._gates:
            gate.run_in_step()


class Holds:
    def __init__(self, suspender: Suspender) -> None:
        self._suspender = suspender
        self._held: dict[str, _Held] = {}
        """By the pods' UIDs."""

    async def hold(self, uids: tuple[str, ...], hold_s: float) -> str:
        """Stops these pods together and holds them, or lets them go on (0). Returns why they could not be stopped."""
        await self._let_go(uids)
        if not hold_s:
            return ""
        checkpointer = self._suspender.checkpointer
        async with self._suspender.alone_with(uids):
            gates = {uid: self._suspender.gate_of(uid) for uid in uids}
            try:
                await checkpointer.stop(uids, _AllOf(gates.values()), ONCE)
                until_s = asyncio.get_running_loop().time() + hold_s
                for uid, gate in gates.items():
                    self._held[uid] = _Held(await checkpointer.running(uid), gate, until_s)
            except (LockError, HostMemoryUnknown, OSError, ValueError, KeyError) as error:
                # Before a suspension of one of them, which may wait for its turn already.
                await self._released(uids)
                for gate in gates.values():
                    gate.as_before()
                return str(error)
            return ""

    def suspended(self, uid: str) -> None:
        """A pod that was held is suspended now: what holds it is its suspension."""
        self._held.pop(uid, None)

    async def run(self) -> None:
        """Lets go what is held when its time is over."""
        while True:
            await self.look(asyncio.get_running_loop().time())
            await asyncio.sleep(LOOK_S)

    async def look(self, now_s: float) -> None:
        await self._let_go([uid for uid, held in self._held.items() if held.until_s <= now_s])

    async def _let_go(self, uids: Collection[str]) -> None:
        async with self._suspender.alone_with(uids):
            await self._released(uids)

    async def _released(self, uids: Collection[str]) -> None:
        """The caller is alone with these pods."""
        for held in [self._held.pop(uid) for uid in uids if uid in self._held]:
            try:
                held.gate.as_before()
                await self._suspender.checkpointer.let_go(held.pids)
            except (LockError, OSError, ValueError, KeyError) as error:
                log.error("hold_not_ended", error=str(error), effect="the locks' worker tries again")
