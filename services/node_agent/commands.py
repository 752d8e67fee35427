"""Decodes the requests on NATS into inputs of the core."""

from __future__ import annotations

from collections.abc import Callable

from services.node_agent import messages as m
from shared.contracts import subjects
from shared.contracts.base import decode
from shared.contracts.node_commands import NodeCordon, NodeGrant, NodeHold, NodeRelease, NodeSync, ReleasesSeen

VERBS: dict[str, Callable[[bytes], m.Input]] = {
    "grant": lambda payload: m.GrantReceived(decode(payload, NodeGrant)),
    "release": lambda payload: m.ReleaseReceived(decode(payload, NodeRelease)),
    "sync": lambda payload: m.SyncReceived(decode(payload, NodeSync)),
    "cordon": lambda payload: m.CordonRequested(decode(payload, NodeCordon)),
    "hold": lambda payload: m.HoldReceived(decode(payload, NodeHold)),
    "ack": lambda payload: m.ReleasesBooked(decode(payload, ReleasesSeen).grant_ids),
}
"""The requests to a node, by the last token of the subject. Each raises ContractError if the payload is malformed."""

_NODE, _VERB = subjects.node_command("*", "x").split(".").index("*"), -1


def read(subject: str, payload: bytes) -> tuple[str, m.Input]:
    """Returns the node's token and the input. Raises ContractError if the payload is malformed."""
    tokens = subject.split(".")
    return tokens[_NODE], VERBS[tokens[_VERB]](payload)
