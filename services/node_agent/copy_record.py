"""Remembers how fast this node copies GPU memory to its host and back, over restarts of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from services.node_agent.config import Config
from services.node_agent.measured_files import load, store
from services.node_agent.strategies.copy_speeds import CopySpeeds, Way
from services.node_agent.strategies.host_memory import offered_mib
from shared.model.gpu import HostMemory
from shared.model.units import MIB
from shared.service import Context


class CopyRecord:
    def __init__(self, ctx: Context, config: Config, held: Callable[[str], Mapping[str, int]]) -> None:
        """`held` returns the bytes that a pod has on each GPU; it may raise OSError."""
        self._ctx, self._held = ctx, held
        self._file = Path(config.checkpoint_file).with_name("copies.json")
        self._park_mib = offered_mib(config.host_memory_mib)
        self._known = load(self._file, CopySpeeds) or CopySpeeds()
        ctx.metrics.observe_by(
            "kerf_agent_copy_mib_per_s",
            "How fast the memory of a GPU was copied to the host (out) and back; not there until it was.",
            self._by_way,
            labels=("way",),
        )

    def copied(self, uid: str, way: Way, seconds: float) -> None:
        """All GPU memory of a pod was copied in that time. What cannot be read is not learned; the copy holds."""
        try:
            mib = max(self._held(uid).values(), default=0) // MIB
        except OSError as error:
            self._ctx.log.warning("copy_not_learned", pod=uid, error=str(error))
            return
        self._ctx.log.info("pod_copied", pod=uid, way=way, mib=mib, seconds=round(seconds, 3))
        known = self._known.after(way, mib, seconds)
        if known == self._known:
            return
        self._known = known
        try:
            store(self._file, known)
        except OSError as error:
            self._ctx.log.warning("copy_speeds_not_kept", error=str(error), effect="the next agent learns them again")

    def told(self) -> HostMemory:
        """Returns what this host takes of the GPU memory of suspended pods, and how fast it has copied it."""
        known = self._known
        return HostMemory(
            park_mib=self._park_mib, out_mib_per_s=known.out.told_mib_per_s, back_mib_per_s=known.back.told_mib_per_s
        )

    def _by_way(self) -> dict[tuple[str, ...], float]:
        told = msgspec.structs.asdict(self._known)
        return {(way,): float(one.told_mib_per_s) for way, one in told.items() if one.told_mib_per_s}
