"""Public events of suspensions: that a pod has given up something, and that it has it back.

Both say what the pod's node has confirmed. A new leader says again which pods are suspended.
"""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from services.placement.protocol.unix_time import UnixTime
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.contracts.events import PodResumed, PodSuspended
from shared.model.grant import sum_shares
from shared.model.suspension import Suspension
from shared.queues.turns import TURN_ACTIONS


class _Open(msgspec.Struct, frozen=True):
    suspension: Suspension
    since_unix_s: float
    gpus: frozenset[tuple[str, str]]


class SuspensionEvents:
    def __init__(self, book: Book, clock: UnixTime) -> None:
        self._book, self._clock = book, clock
        self._open: dict[str, _Open] = {}
        """By uid of the pods of which it was said that they are suspended."""

    def confirmed(self, state: PodState, held: GrantState, now: float) -> list[m.Command]:
        """A node says that a pod is suspended, which may be known."""
        suspension, record = state.suspension, state.gpu_time
        before = self._open.get(state.uid)
        if suspension is None or (before is not None and before.suspension == suspension):
            return []
        since = self._clock.at(now)
        if record is not None and suspension.action in TURN_ACTIONS:
            since = record.since
        self._open[state.uid] = _Open(suspension, since, frozenset(sum_shares((held.given,))))
        node = self._book.nodes.get(held.node)
        meta = state.pod.metadata
        return [
            m.Publish(
                PodSuspended(
                    uid=state.uid,
                    namespace=meta.namespace,
                    name=meta.name,
                    node=state.charged,
                    grant_id=held.grant_id,
                    action=suspension.action,
                    plan_id=suspension.plan_id,
                    turn_of=record.turn_of if record is not None else "",
                    gpu_seconds=0 if record is None else record.attained_gpu_ms // 1000,
                    idle=bool(node and node.inventory and held.grant_id in node.inventory.idle_grants),
                ),
                namespace=meta.namespace,
                uid=state.uid,
            )
        ]

    def is_whole(self, state: PodState, held: GrantState, now: float) -> list[m.Command]:
        """A node says that a pod which is to run has all that it was granted."""
        before = self._open.pop(state.uid, None)
        if before is None:
            return []
        meta = state.pod.metadata
        return [
            m.Publish(
                PodResumed(
                    uid=state.uid,
                    namespace=meta.namespace,
                    name=meta.name,
                    node=state.charged,
                    grant_id=held.grant_id,
                    action=before.suspension.action,
                    suspended_ms=max(0, round((self._clock.at(now) - before.since_unix_s) * 1000)),
                    moved=frozenset(sum_shares((held.given,))) != before.gpus,
                ),
                namespace=meta.namespace,
                uid=state.uid,
            )
        ]

    def forget_gone(self) -> None:
        """Forgets pods that are gone."""
        self._open = {uid: one for uid, one in self._open.items() if uid in self._book.pods}
