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
from shared.model.suspension import Suspension, goes_to_host

ONCE = (Attempt(0.1, 1.0),)
"""In step for a moment on all nodes, and then a second to get quiet."""
LOOK_S = 0.5

log = structlog.get_logger("holds")


class _Held(msgspec.Struct, frozen=True):
    pids: tuple[int, ...]
    gate: SliceGate | None
    """None: its launches are as a later order says, and stay so."""
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
        checkpointer = self._suspender.checkpointer
        async with self._suspender.alone_with(uids):
            # In the same turn: the gate of a pod that another hold has stopped would leave it held for good.
            await self._released(uids)
            if not hold_s:
                return ""
            gates = {uid: self._suspender.gate_of(uid) for uid in uids}
            stopped: tuple[int, ...] = ()
            try:
                stopped = await checkpointer.stop(uids, _AllOf(gates.values()), ONCE)
                pids = {uid: await checkpointer.running(uid) for uid in uids}
            except (LockError, HostMemoryUnknown, OSError, ValueError, KeyError) as error:
                # All of them for each pod, because it may be unknown which are its own: none may stay locked. Before a
                # suspension of one of them, which may wait for its turn already.
                self._held |= {uid: _Held(stopped, gate, 0.0) for uid, gate in gates.items()}
                await self._released(uids)
                return str(error)
            until_s = asyncio.get_running_loop().time() + hold_s
            self._held |= {uid: _Held(pids[uid], gate, until_s) for uid, gate in gates.items()}
            return ""

    async def ordered(self, uid: str, suspension: Suspension | None) -> None:
        """A pod that may be held has just been suspended, or resumed (None): its launches are as that order says.

        A pod that has gone to the host has no locks any more. Any other goes on, as far as the order lets it: the order
        has written its override over the hold's, and nothing else would unlock its processes.
        """
        held = self._held.pop(uid, None)
        if held is not None and not goes_to_host(suspension):
            # Before anything is awaited, for the hold's time may be over: its gate would undo the order.
            self._held[uid] = msgspec.structs.replace(held, gate=None)
            await self._let_go((uid,))

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
        """The caller is alone with these pods. A gate that cannot be opened stays for the next `look`."""
        for uid, held in [(uid, self._held.pop(uid)) for uid in uids if uid in self._held]:
            try:
                if held.gate is not None:
                    held.gate.as_before()
            except (OSError, ValueError, KeyError) as error:
                self._held[uid] = msgspec.structs.replace(held, pids=())
                log.error("launches_still_held", pod=uid, error=str(error), effect="the agent tries again")
            finally:
                await self._unlocked(uid, held.pids)

    async def _unlocked(self, uid: str, pids: tuple[int, ...]) -> None:
        try:
            await self._suspender.checkpointer.let_go(pids)
        except LockError as error:
            log.error("hold_not_ended", pod=uid, error=str(error), effect="the locks' worker tries again")
