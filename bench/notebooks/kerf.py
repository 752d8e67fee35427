"""The notebooks through the cores of placement and preemptor, with the clock of the day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.jobs.kerf import BEGAN_S, NODE
from bench.jobs.kerf_turns import KerfTurns
from bench.jobs.replay import Copied, Order
from services.placement import messages as m
from shared.model import names
from shared.model.grant import decode_grant


class Kerf(KerfTurns):
    """Each second both cores get a tick; nothing else passes time."""

    def second(
        self,
        now_s: float,
        arrived: list[int],
        copied: list[Copied],
        idle: Mapping[int, float],
        woken: Mapping[int, float],
    ) -> Sequence[Order]:
        self._now = BEGAN_S + now_s
        self._say(idle, woken)
        if copied:
            self.copied(copied)
        return self.step(now_s, [], arrived)

    def _settle(self) -> None:
        self._make_room()

    def _pass_time(self, seconds: float) -> None:
        """One tick: the time is the day's."""
        del seconds
        self._send(m.BeatSeen((NODE,)))
        self._send(m.Tick(self._now))

    def _say(self, idle: Mapping[int, float], woken: Mapping[int, float]) -> None:
        """The agent's inventory, if it has changed."""
        says = {
            "idle_grants": {self._grant_of(job): BEGAN_S + at for job, at in idle.items()},
            "woken_grants": {self._grant_of(job): BEGAN_S + at for job, at in woken.items()},
        }
        if says != {name: getattr(self._inventory, name) for name in says}:
            generation = self._inventory.generation + 1
            self._inventory = msgspec.structs.replace(self._inventory, generation=generation, **says)
            self._send(m.InventorySeen(self._inventory))

    def _grant_of(self, job: int) -> str:
        return decode_grant(self._pods[job].metadata.annotations[names.ANNOTATION_GRANT]).grant_id
