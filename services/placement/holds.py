"""Decisions on their way to becoming true, and what has to be said again until somebody answers."""

from __future__ import annotations

import msgspec

from shared.contracts.commands import Bind, NodeGrant
from shared.contracts.log import Decision
from shared.model.grant import encode_grant

RESEND_AFTER_S = 5.0


class Hold(msgspec.Struct):
    """A decision whose Binding has not been seen. `sequence` 0: not yet in the log, and nothing may be sent (R2)."""

    decision: Decision
    decided_at: float
    sequence: int = 0
    sent_at: float = 0.0

    def bind(self) -> Bind:
        d = self.decision
        grant = "" if d.grant is None else encode_grant(msgspec.structs.replace(d.grant, sequence=self.sequence))
        return Bind(uid=d.uid, namespace=d.namespace, name=d.name, resource_version=d.resource_version, node=d.node, grant=grant)


class Unanswered(msgspec.Struct):
    """A grant or release that a node has not yet acknowledged."""

    node: str
    message: NodeGrant | None
    sent_at: float


def due(sent_at: float, now: float) -> bool:
    return now - sent_at >= RESEND_AFTER_S
