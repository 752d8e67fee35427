"""Keeps the canary's proof on disk, renews it when needed, and says what the node offers because of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.node_agent.canary import verdict
from services.node_agent.canary.bandwidth import HostBandwidth
from services.node_agent.canary.run import LIBRARY, Canary, CanaryError
from services.node_agent.canary.verdict import Proof
from services.node_agent.gate import Occupancy
from services.node_agent.measured_files import load, store
from services.node_agent.strategies.base import Offer
from shared.model.gpu import Inventory
from shared.model.strategies import POLICED, PROVEN_BY_CANARY, StrategyName, registered
from shared.service import Context

CHECK_S = 2.0
ROOM_MIB = 2048
"""GPU memory that the canary needs: its slice and its CUDA context."""


class ProofManager:
    def __init__(
        self,
        ctx: Context,
        proof_file: Path,
        build: Path,
        canary: Callable[[], Canary],
        *,
        context_mib: int | None = None,
    ) -> None:
        """`canary` creates a canary for the driver as it is now.

        `context_mib`: the operator's figure for the memory of a context; None: it must be measured.
        """
        self._context_mib = context_mib
        self.bandwidth = HostBandwidth(ctx, proof_file.with_name("bandwidth.json"), canary)
        """Measured when nothing is to be proven."""
        self._ctx, self._file, self._build, self._canary = ctx, proof_file, build, canary
        self.library = _digest(build / LIBRARY)
        self._proof = load(proof_file, Proof)
        self._asks_again = self._proof is not None and verdict.may_change_with_the_agent(self._proof)
        """The last proof is an earlier agent's, and this one may do better."""
        self._trouble = ""
        self._driver_version = ""
        self._tried = ""
        self._next_s = 0.0
        self._attempts = 0
        """With this driver, without a complete proof."""
        self.busy = asyncio.Lock()
        """Held while a canary runs: another one would disturb its measurements."""
        ctx.metrics.observe_by(
            "kerf_agent_enforcement_proven",
            "1 while limits on the GPU are proven and offered.",
            lambda: float(self.offer().ok),
        )

    def offer(self) -> Offer:
        why = verdict.offered(self._proof, self._driver_version, self.library, self._context_mib)
        return Offer(ok=not why, sentence=f"{why} ({self._trouble})" if why and self._trouble else why)

    @property
    def costs(self) -> tuple[int, int]:
        """Bytes of GPU memory that a process's context takes, and that a memory pool takes at once; 0 if not
        measured."""
        proof = self._proof
        return (0, 0) if proof is None or not proof.ok else (max(0, proof.context_bytes), proof.pool_chunk_bytes)

    @property
    def driver_limits_hold(self) -> bool:
        """Whether the driver's memory limits hold for all but managed memory."""
        proof = self._proof
        return self.offer().ok and proof is not None and proof.driver_limit in ("managed-passes", "holds")

    @property
    def _lacks_limits(self) -> bool:
        return self._proof is not None and self._proof.driver_limit == "none"

    def strategies(self, driver_version: str) -> tuple[StrategyName, ...]:
        """The strategies that are proven on a node with this driver version."""
        self._driver_version = driver_version
        offer = self.offer()
        missing = _missing(self._proof) if offer.ok and self._proof is not None else {}
        # That most drivers have no limits for cgroups is nothing to look at.
        told = {name: why for name, why in missing.items() if not self._lacks_limits or not _needs_limits(name)}
        detail = "; ".join(f"{name} is not offered: {why}" for name, why in told.items())
        self._ctx.health.set("enforcement", ok=True, detail=detail or offer.sentence)
        return tuple(name for name in PROVEN_BY_CANARY if offer.ok and name not in missing)

    async def keep(
        self,
        inventory: Callable[[], Inventory | None],
        occupied: Callable[[], Occupancy],
        say: Callable[[], Awaitable[None]],
    ) -> None:
        """Runs for ever, and proves what is not proven.

        `occupied` returns what is handed over now; `say` publishes a change of the offer.
        """
        published = self.offer(), self.costs
        while True:
            await self.prove_if_needed(inventory(), occupied())
            async with self.busy:
                measured = bool(self.library) and await self.bandwidth.measure_one(inventory(), occupied)
            if measured or (self.offer(), self.costs) != published:
                published = self.offer(), self.costs
                await say()
            await asyncio.sleep(CHECK_S)

    async def prove_if_needed(self, inventory: Inventory | None, occupied: Occupancy) -> None:
        """Runs the canary if a proof is missing, on the GPU with the most memory that no process and no slice holds."""
        now_s = asyncio.get_running_loop().time()
        if (
            inventory is None
            or not self.library
            or not inventory.driver_version
            or self._is_proven(inventory.driver_version)
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
            self._trouble = f"no healthy GPU has {ROOM_MIB} MiB of unused memory for the canary"
        lately = self._tried == inventory.driver_version and now_s < self._next_s
        if lately or not free:
            return
        self._attempts = self._attempts + 1 if self._tried == inventory.driver_version else 1
        retry_s = verdict.retry_after_s(self._attempts)
        self._tried, self._next_s = inventory.driver_version, now_s + retry_s
        gpu = max(free, key=lambda g: (g.uuid not in occupied, room[g.uuid], -g.index))
        at_ms, alone = int(self._ctx.now() * 1000), gpu.uuid not in occupied
        try:
            async with self.busy:
                proof = await self._canary().run(gpu.uuid, inventory.driver_version, self.library, at_ms, alone=alone)
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
                effect="firm isolation is not offered on this node",
            )
        if proof.ok and proof.context_bytes == verdict.UNKNOWN and self._context_mib is None:
            self._ctx.log.warning(
                "context_not_measured",
                gpu=gpu.uuid,
                effect=f"firm isolation is not offered on this node; the canary runs again in {retry_s:g} s",
                advice="wait until the GPU is idle, check that the agent has hostPID, or set context_mib",
            )
        if proof.ok and proof.turns_sentence:
            self._ctx.log.error(
                "time_slicing_failed",
                gpu=gpu.uuid,
                driver=proof.driver_version,
                why=proof.turns_sentence,
                effect="time_slice and policed are not offered on this node",
            )
        elif proof.ok and (unseen := verdict.not_policed(proof)):
            self._ctx.log.warning(
                "canary_not_seen", gpu=gpu.uuid, why=unseen, effect="policed is not offered on this node"
            )
        if proof.ok and proof.driver_limit in ("fails", "managed-passes"):
            self._ctx.log.warning(
                "driver_limit_not_proven",
                gpu=gpu.uuid,
                driver=proof.driver_version,
                why=verdict.not_by_driver(proof),
                effect="hard isolation of parts is not offered on this node"
                + ("; policed slices have the limit beside" if proof.driver_limit == "managed-passes" else ""),
            )
        self._proof, self._asks_again = proof, False
        try:
            store(self._file, proof)
        except OSError as error:
            self._ctx.log.warning(
                "proof_not_kept", error=str(error), effect="the agent proves it again at its next start"
            )

    def _is_proven(self, driver_version: str) -> bool:
        """Whether a good proof exists for this driver. A failed one is renewed, because its cause may be temporary."""
        proof = self._proof
        return (
            proof is not None
            and verdict.offered(proof, driver_version, self.library, self._context_mib) == ""
            and verdict.not_time_sliced(proof) == ""
            and proof.seen_bytes != verdict.UNKNOWN
            and proof.driver_limit != "untried"
            and not self._asks_again
        )


def _missing(proof: Proof) -> dict[StrategyName, str]:
    """Why a node with this good proof does not offer some strategies, by their names."""
    found: dict[StrategyName, str] = {}
    for strategy in map(registered().__getitem__, PROVEN_BY_CANARY):
        why = verdict.not_time_sliced(proof) if strategy.takes_turns else ""
        if not why and strategy.name in POLICED:
            why = verdict.not_policed(proof)
        if not why and _needs_limits(strategy.name):
            why = verdict.not_by_driver(proof)
        if why:
            found[strategy.name] = why
    return found


def _needs_limits(name: StrategyName) -> bool:
    strategy = registered()[name]
    return strategy.driver_limit and strategy.promise == "hard"


def _digest(path: Path) -> str:
    """The digest of the interposer library, or "" if there is none."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
    except OSError:
        return ""
