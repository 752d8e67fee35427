"""Decisions whose Binding has not been seen. Each is sent again until it is."""

from __future__ import annotations

import msgspec

from services.placement.protocol.binding_time import BindingTime
from shared.contracts.commands import Answer, Bind
from shared.contracts.log import Decision, DecisionBatch
from shared.model.grant import encode_grant

UNKNOWN_RESEND_S = 1.0


class Hold(msgspec.Struct):
    """`sequence` 0: not yet in the log, so nothing may be sent (R2)."""

    decision: Decision
    decided_at: float
    sequence: int = 0
    sent_at: float = 0.0
    first_sent_at: float | None = None

    def sent(self, now: float) -> None:
        self.sent_at = now
        if self.first_sent_at is None:
            self.first_sent_at = now

    def bind(self) -> Bind:
        d = self.decision
        grant = "" if d.grant is None else encode_grant(msgspec.structs.replace(d.grant, sequence=self.sequence))
        return Bind(
            uid=d.uid,
            namespace=d.namespace,
            name=d.name,
            resource_version=d.resource_version,
            node=d.node,
            grant=grant,
            claims=d.claims,
        )


class Holds(dict[str, Hold]):
    """By pod uid. A hold is removed by evidence only (R4); the caller has seen that evidence."""

    def __init__(self) -> None:
        super().__init__()
        self.binding_time = BindingTime()

    def bound(self, uid: str, now: float) -> Hold | None:
        """The pod is bound: takes its hold away."""
        hold = self.pop(uid, None)
        if hold is not None and hold.first_sent_at is not None:
            self.binding_time.took(now - hold.first_sent_at, now)
        return hold

    def logged(self, record: DecisionBatch, sequence: int, now: float) -> list[Hold]:
        """The log has these decisions. Those that are still held may be sent."""
        sent = []
        for decision in record.decisions:
            hold = self.get(decision.uid)
            if hold is None or hold.decision is not decision:
                continue  # voided meanwhile: the pod changed or is gone
            hold.sequence = sequence
            hold.sent(now)
            sent.append(hold)
        return sent

    def late(self, now: float, *, at_once: bool = False) -> list[Hold]:
        """The holds to send again. A repetition is harmless (R3)."""
        limit_s = self.binding_time.limit_s(now)
        found = [h for h in self.values() if h.sequence and (at_once or now - h.sent_at >= limit_s)]
        for hold in found:
            hold.sent(now)
        return found

    def of(self, answer: Answer) -> Hold | None:
        """The hold that an answer belongs to; None if the answer is to an older one."""
        hold = self.get(answer.uid)
        return hold if hold is not None and hold.decision.resource_version == answer.resource_version else None

    def unknown(self, hold: Hold, now: float) -> None:
        """It may have happened or not: it is sent again soon."""
        hold.sent_at = min(hold.sent_at, now - self.binding_time.limit_s(now) + UNKNOWN_RESEND_S)
