"""Wiring of the proof: where it is kept, when it is made anew, and what the node offers on its strength."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from services.node_agent.canary import verdict
from services.node_agent.canary.run import Canary, CanaryError
from services.node_agent.canary.verdict import Proof
from services.node_agent.gate import Occupancy
from services.node_agent.strategies.base import Offer
from shared.model.gpu import Inventory, Strategy
from shared.service import Context

LIBRARY = "libkerf.so"
LOOK_S = 2.0
ROOM_MIB = 2048
"""The canary's slice, and its context."""
AGAIN_S = 60.0
"""After a canary that could not be run, or has failed: a failure may be of the moment."""


class ProofManager:
    def __init__(self, ctx: Context, proof_file: Path, build: Path, canary: Callable[[], Canary]) -> None:
        """`canary` makes one for the driver as it is now."""
        self._ctx, self._file, self._build, self._canary = ctx, proof_file, build, canary
        self.library = _digest(build / LIBRARY)
        self._proof = _load(proof_file)
        self._trouble = ""
        self._driver_version = ""
        self._tried = ""
        self._next_s = 0.0
        ctx.metrics.observe_by(
            "kerf_agent_enforcement_proven",
            "1 while limits on the device are proven and offered.",
            lambda: float(self.offer().ok),
        )

    def offer(self) -> Offer:
        why = verdict.offered(self._proof, self._driver_version, self.library)
        return Offer(ok=not why, sentence=f"{why} ({self._trouble})" if why and self._trouble else why)

    @property
    def costs(self) -> tuple[int, int]:
        """Bytes of a GPU that a process's context takes, and that a memory pool takes at once; 0 where it is not measured."""
        proof = self._proof
        return (0, 0) if proof is None or not proof.ok else (proof.context_bytes, proof.pool_chunk_bytes)

    def strategies(self, driver_version: str) -> tuple[Strategy, ...]:
        """What is proven of a node whose driver is this one now."""
        self._driver_version = driver_version
        offer = self.offer()
        self._ctx.health.set("enforcement", ok=True, detail=offer.sentence)
        return verdict.PROVES if offer.ok else ()

    async def keep(
        self,
        inventory: Callable[[], Inventory | None],
        occupied: Callable[[], Occupancy],
        say: Callable[[], Awaitable[None]],
    ) -> None:
        """For ever: proves what is not proven. `occupied` is what is handed over now; `say` tells the world what is offered."""
        said = self.offer(), self.costs
        while True:
            await self.look(inventory(), occupied())
            if (self.offer(), self.costs) != said:
                said = self.offer(), self.costs
                await say()
            await asyncio.sleep(LOOK_S)

    async def look(self, inventory: Inventory | None, occupied: Occupancy) -> None:
        """Runs the canary where a proof is missing, on the GPU with the most memory that is nobody's."""
        now_s = asyncio.get_running_loop().time()
        if (
            inventory is None
            or not self.library
            or not inventory.driver_version
            or self._is_of(inventory.driver_version)
        ):
            return
        room = {
            gpu.uuid: gpu.memory_mib - gpu.foreign_mib - occupied.get(gpu.uuid, (0, 0))[0] for gpu in inventory.gpus
        }
        free = [
            gpu
            for gpu in inventory.gpus
            if gpu.state == "healthy" and not gpu.mig_enabled and room[gpu.uuid] >= ROOM_MIB
        ]
        if not free:
            self._trouble = f"no healthy GPU has {ROOM_MIB} MiB that are nobody's, for the canary"
        lately = self._tried == inventory.driver_version and now_s < self._next_s
        if lately or not free:
            return
        self._tried, self._next_s = inventory.driver_version, now_s + AGAIN_S
        gpu = max(free, key=lambda g: (g.uuid not in occupied, room[g.uuid], -g.index))
        at_ms, alone = int(self._ctx.now() * 1000), gpu.uuid not in occupied
        try:
            proof = await self._canary().run(
                gpu.uuid, gpu.index, inventory.driver_version, self.library, at_ms, alone=alone
            )
        except (CanaryError, OSError, ValueError) as error:
            self._trouble = str(error)
            self._ctx.log.warning("canary_not_run", gpu=gpu.uuid, why=self._trouble)
            return
        self._trouble = ""
        if not proof.ok:
            self._ctx.log.error(
                "canary_failed",
                gpu=gpu.uuid,
                driver=proof.driver_version,
                why=proof.sentence,
                effect="firm isolation is not offered here",
            )
        elif not proof.context_bytes:
            self._ctx.log.warning(
                "context_not_measured", gpu=gpu.uuid, effect="contexts are free here, unless context_mib is set"
            )
        self._proof = proof
        try:
            _save(self._file, proof)
        except OSError as error:
            self._ctx.log.warning("proof_not_kept", error=str(error), effect="the agent's next start proves it again")

    def _is_of(self, driver_version: str) -> bool:
        """A proof that failed is tried again, in case it was of the moment; one that is good stands for this driver."""
        return self._proof is not None and verdict.offered(self._proof, driver_version, self.library) == ""


def _digest(path: Path) -> str:
    """Empty where there is no library."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
    except OSError:
        return ""


def _load(path: Path) -> Proof | None:
    """None where it cannot be read: then it is made anew."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Proof)
    except (OSError, msgspec.DecodeError):
        return None


def _save(path: Path, proof: Proof) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(proof), indent=2))
    beside.replace(path)
