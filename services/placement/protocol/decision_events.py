"""Public events of decisions, kept until the log has the decision: until then it may be lost (R2)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.contracts.events import GangPlaced, PlacementDecided


class DecisionEvents:
    def __init__(self) -> None:
        self._pods: dict[str, PlacementDecided] = {}
        self._gangs: dict[str, GangPlaced] = {}

    def keep(self, event: PlacementDecided) -> None:
        self._pods[event.uid] = event

    def take(self, uid: str, sequence: int) -> PlacementDecided | None:
        """The event of this decision, which the log has at this sequence."""
        event = self._pods.pop(uid, None)
        return None if event is None else msgspec.structs.replace(event, sequence=sequence)

    def keep_gang(self, uid: str, event: GangPlaced) -> None:
        """`uid`: of one of its members. The log has all of them in one record."""
        self._gangs[uid] = event

    def take_gangs(self, uids: Iterable[str], sequence: int) -> list[GangPlaced]:
        """The events of gangs of which one of these pods is the member that was named."""
        if not self._gangs:
            return []
        return [
            msgspec.structs.replace(event, sequence=sequence)
            for uid in uids
            if (event := self._gangs.pop(uid, None)) is not None
        ]

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
