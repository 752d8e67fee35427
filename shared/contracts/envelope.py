"""CloudEvents 1.0 in structured mode around every public event.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md; `traceparent` and `sequence` are its extensions.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from shared.contracts import subjects
from shared.contracts.base import ContractError, Message, decode, encode
from shared.contracts.events import EVENTS, Event
from shared.model.timestamps import micros_text

CONTENT_TYPE = "application/cloudevents+json"

_BY_TYPE = {f"dev.kerf.{kind.ENTITY}.{kind.VERB}.v1": kind for kind in EVENTS}


class Envelope(Message, frozen=True):
    specversion: str
    id: str
    source: str
    """/kerf/<service>/<instance>"""
    type: str
    """dev.kerf.<entity>.<verb>.v1"""
    time: str
    data: msgspec.Raw
    subject: str = ""
    datacontenttype: str = "application/json"
    traceparent: str = ""
    sequence: str = ""
    """Of two events of one source, the one with the larger text is the later, whatever its clock says (CloudEvents'
    extension of that name). Empty: not known."""


def type_of(kind: type[Event]) -> str:
    return f"dev.kerf.{kind.ENTITY}.{kind.VERB}.v1"


def wrap(
    event: Event,
    *,
    source: str,
    now_s: float,
    subject: str = "",
    traceparent: str = "",
    event_id: str = "",
    sequence: str = "",
) -> tuple[str, bytes]:
    """The event's id (also its Nats-Msg-Id) and its bytes. `now_s` is Unix time; `subject` names what it is about."""
    identity = event_id or uuid.uuid4().hex
    envelope = Envelope(
        specversion="1.0",
        id=identity,
        source=source,
        type=type_of(type(event)),
        time=micros_text(now_s),
        subject=subject,
        traceparent=traceparent,
        sequence=sequence,
        data=msgspec.Raw(encode(event)),
    )
    return identity, encode(envelope)


def unwrap(payload: bytes) -> tuple[Envelope, Any]:
    """The envelope and its event. An event of a type this version does not know comes back as None.

    Raises ContractError on what is no CloudEvent or breaks its event's contract.
    """
    envelope = decode(payload, Envelope)
    kind = _BY_TYPE.get(envelope.type)
    return envelope, None if kind is None else decode(bytes(envelope.data), kind)


def check_subject(subject: str, event: Event) -> None:
    """Raises ContractError where an event is not of its subject's type and node. Its publisher's NATS user is bound to
    subjects alone."""
    entity, verb, under, _ = subject.removeprefix(f"{subjects.VERSION}.event.").split(".")
    if (entity, verb) != (event.ENTITY, event.VERB):
        raise ContractError(f"{subject} has an event of type {type_of(type(event))}")
    if under == "node" and hasattr(event, "node"):
        subjects.check_sender(subject, event.node)
