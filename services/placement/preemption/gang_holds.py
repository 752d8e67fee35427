"""Brings the members of a gang to a stop together before any of them is checkpointed.

A member whose peer stands still waits for it in a collective, and cannot be checkpointed any more. So all nodes of the
gang are asked at once to stop their members and to hold them (`NodeHold`). When all have said yes, the checkpoints are
ordered; when one has not, the others let theirs go on, and all are asked again a moment later. Nothing is given up by
a hold, and a node lets go by itself after a while: a leader that dies leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from services.placement import messages as m
from services.placement.protocol.suspension import suspension_by
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.contracts.node_commands import MOST_HOLD_S, NodeHold
from shared.contracts.preemption import Plan, Victim

MOST_ATTEMPTS = 6
"""A hold comes about by chance where programs never wait for each other; each attempt costs the gang a second."""
AGAIN_S = 1.0
"""How long the gang runs between two attempts."""


class Hold(msgspec.Struct):
    grants: dict[str, tuple[str, ...]]
    """By node: the grants of its members."""
    attempt: int = 0
    waits_for: set[str] = set()
    """The nodes that have not answered this attempt."""
    refused: str = ""
    """Why this attempt fails, by the first node that said no."""
    again_at: float = 0.0
    held: bool = False
    """All members stand still: they are to be checkpointed."""


class GangHolds:
    def __init__(self, book: Book, gangs: Gangs) -> None:
        self._book, self._gangs = book, gangs
        self._holds: dict[str, dict[str, Hold]] = {}
        """By plan, and by gang."""

    def ask(self, plan: Plan, term: int, now: float) -> tuple[list[m.Command], Plan]:
        """Returns what the nodes are asked now, and the plan with those victims alone that may be suspended now."""
        waits: set[str] = set()
        out: list[m.Command] = []
        for key, members in self._to_stop(plan):
            holds = self._holds.setdefault(plan.plan_id, {})
            if key not in holds:
                holds[key] = Hold(self._by_node(members))
            if not holds[key].held:
                out += self._attempt(plan.plan_id, key, holds[key], term, now)
                waits |= {victim.uid for victim in members}
        if not waits:
            return out, plan
        left = tuple(victim for victim in plan.victims if victim.uid not in waits)
        return out, msgspec.structs.replace(plan, victims=left)

    def answered(self, event: m.HoldAnswered, term: int, now: float) -> list[m.Command]:
        """Handles a node's answer. When the last one has come and not all have said yes, all are told to go on."""
        hold = self._holds.get(event.plan_id, {}).get(event.gang)
        if hold is None or event.attempt != hold.attempt or event.node not in hold.waits_for:
            return []  # it is over, or this answers an earlier attempt
        hold.waits_for.discard(event.node)
        if not event.ok:
            hold.refused = hold.refused or f"node {event.node}: {event.reason}"
        if hold.waits_for:
            return []
        hold.held, hold.again_at = not hold.refused, now + AGAIN_S
        return _orders(event.plan_id, event.gang, hold, term, 0) if hold.refused else []

    def failure(self, plan: Plan) -> tuple[str, tuple[str, ...]]:
        """Returns why a gang of the plan cannot be stopped, and the uids of its members; empty if it can, or as long as
        it is tried."""
        for hold in self._holds.get(plan.plan_id, {}).values():
            if hold.refused and not hold.waits_for and hold.attempt >= MOST_ATTEMPTS:
                members = {grant for grants in hold.grants.values() for grant in grants}
                return (
                    f"its gang could not be stopped together in {MOST_ATTEMPTS} attempts; {hold.refused}",
                    tuple(victim.uid for victim in plan.victims if victim.grant_id in members),
                )
        return "", ()

    def due(self, plan_id: str, now: float) -> bool:
        """Whether a gang of the plan is to be asked again."""
        holds = self._holds.get(plan_id, {}).values()
        return any(not hold.held and not hold.waits_for and hold.again_at <= now for hold in holds)

    def end(self, plan_id: str, term: int) -> list[m.Command]:
        """Ends the holds of a plan that is over: what stands still and is not suspended goes on."""
        ended = self._holds.pop(plan_id, {})
        return [order for key, hold in ended.items() for order in _orders(plan_id, key, hold, term, 0)]

    def forget(self, plan_id: str) -> None:
        """The plan is carried out: what holds its victims is their suspension."""
        self._holds.pop(plan_id, None)

    def _attempt(self, plan_id: str, key: str, hold: Hold, term: int, now: float) -> list[m.Command]:
        if hold.waits_for or now < hold.again_at or hold.attempt >= MOST_ATTEMPTS:
            return []
        hold.attempt, hold.refused = hold.attempt + 1, ""
        hold.waits_for = set(hold.grants)
        return _orders(plan_id, key, hold, term, MOST_HOLD_S)

    def _to_stop(self, plan: Plan) -> Iterator[tuple[str, list[Victim]]]:
        """The gangs of which several members are to be checkpointed, each with those that are not on their way yet."""
        victims = {v.uid: v for v in plan.victims if v.action == "checkpoint"}
        for gang in self._gangs.among(victims):
            members = [victim for uid, victim in victims.items() if self._gangs.of(uid) is gang]
            left = [victim for victim in members if self._runs(victim, plan.plan_id)]
            if len(members) > 1 and left:
                yield gang.key, left

    def _runs(self, victim: Victim, plan_id: str) -> bool:
        state = self._book.pods.get(victim.uid)
        known = state is not None and state.grant_id in self._book.grants
        return known and state is not None and state.suspension != suspension_by(victim, plan_id)

    def _by_node(self, members: list[Victim]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for victim in members:
            node = self._book.grants[self._book.pods[victim.uid].grant_id].node
            found[node] = (*found.get(node, ()), victim.grant_id)
        return found


def _orders(plan_id: str, gang: str, hold: Hold, term: int, hold_s: float) -> list[m.Command]:
    return [
        m.SendHold(plan_id, gang, hold.attempt, NodeHold(term=term, node=node, grant_ids=grants, hold_s=hold_s))
        for node, grants in hold.grants.items()
    ]
