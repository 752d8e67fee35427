"""The releases of this node: its tombstones, and those that placement has not acknowledged yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from services.node_agent.messages import Command, Publish
from services.node_agent.state import Released
from shared.contracts.events import SliceReleased

REPEAT_S = 5.0
"""How often a release is repeated until placement has acknowledged it."""


class Releases:
    def __init__(self, tombstones: Iterable[str], unbooked: Iterable[Released], keep: int) -> None:
        """`keep`: how many tombstones are kept in addition to those of unacknowledged releases."""
        self._tombstones = dict.fromkeys(tombstones)
        self._unbooked = {released.grant_id: released for released in unbooked}
        self._keep = keep
        self._repeat_at = 0.0

    def __contains__(self, grant_id: str) -> bool:
        """Whether this grant was released, and so will never be handed over again."""
        return grant_id in self._tombstones

    @property
    def tombstones(self) -> tuple[str, ...]:
        """Ids of released grants, oldest first."""
        return tuple(self._tombstones)

    @property
    def unbooked(self) -> tuple[Released, ...]:
        return tuple(self._unbooked.values())

    def add_tombstone(self, grant_id: str) -> None:
        self._tombstones[grant_id] = None
        if len(self._tombstones) > self._keep:
            oldest = next((g for g in self._tombstones if g not in self._unbooked), None)
            if oldest is not None:
                del self._tombstones[oldest]

    def add(self, released: Released, now: float) -> None:
        if not self._unbooked:
            self._repeat_at = now + REPEAT_S
        self._unbooked[released.grant_id] = released
        self.add_tombstone(released.grant_id)

    def repeat(self, grant_id: str, uid: str) -> Released:
        """The release to publish again for a grant that was released before: the leader that asks may not have heard of
        it."""
        return self._unbooked.get(grant_id) or Released(grant_id=grant_id, uid=uid, reason="released before")

    def acknowledge(self, grant_ids: Iterable[str]) -> None:
        for grant_id in grant_ids:
            self._unbooked.pop(grant_id, None)

    def due_for_repeat(self, now: float, *, at_once: bool = False) -> tuple[Released, ...]:
        """The releases to publish again now."""
        if not at_once and (not self._unbooked or now < self._repeat_at):
            return ()
        self._repeat_at = now + REPEAT_S
        return self.unbooked


def events_for(released: Iterable[Released], node: str, boot_id: str) -> list[Command]:
    return [
        Publish(
            SliceReleased(
                node=node,
                uid=r.uid,
                namespace=r.namespace,
                name=r.name,
                grant_id=r.grant_id,
                boot_id=boot_id,
                reason=r.reason,
            ),
            f"released-{r.grant_id}",
            r.namespace,
        )
        for r in released
    ]
