"""Answers and batches of the feed that are larger than one NATS message: the sender splits them, the reader joins them.

A request says by a header that its asker joins parts; a subscriber does with `joined`. What is sent is encoded once and
split by bytes, so all parts are of one moment, and the sender keeps nothing between them. Where an answer cannot be
sent, a message with the header `Kerf-Error` and the body `{"error": "..."}` says why: an asker that knows no parts
reads it as any other error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
import structlog

from shared.bus.port import Handler, Incoming
from shared.formats import UNREADABLE

ACCEPT = "Kerf-Accept"
ACCEPT_PARTS = {ACCEPT: "parts"}
"""The header of a request that accepts its answer in parts."""
ANSWER = "Kerf-Answer"
"""An id: parts of one answer have the same one. Two responders may answer one request."""
PART = "Kerf-Part"
"""Such as 2/7: the second of seven."""
ERROR = "Kerf-Error"

PART_BYTES = 512 * 1024
_NUMBER = re.compile(r"[0-9]{1,9}")
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A larger answer is refused: the server cuts off a client for which more than this waits."""

log = structlog.get_logger("bus")


class _Refused(msgspec.Struct):
    error: str = ""


class Lost(Exception):
    """A part did not arrive, or is none; the text says which."""


def accepted(headers: Mapping[str, str]) -> bool:
    return headers.get(ACCEPT) == ACCEPT_PARTS[ACCEPT]


def header_bytes(headers: Mapping[str, str] | None) -> int:
    """What headers add to a message. The server counts them in `max_payload`."""
    if not headers:
        return 0
    return len(b"NATS/1.0\r\n\r\n") + sum(
        len(key.strip().encode()) + len(value.strip().encode()) + 4 for key, value in headers.items()
    )


def refusal(size: int, max_payload: int, *, parts: bool) -> str:
    """Why an answer of `size` bytes is not sent, empty if it is."""
    if size > MAX_ANSWER_BYTES:
        return f"the answer of {size} bytes is larger than Kerf sends ({MAX_ANSWER_BYTES} bytes); ask for less of it"
    if size > max_payload and not parts:
        return (
            f"the answer of {size} bytes is larger than one message of this NATS server ({max_payload} bytes), and "
            f"the client does not read answers in parts: use a newer client, send the header {ACCEPT}: "
            f"{ACCEPT_PARTS[ACCEPT]}, or ask for less, such as one node"
        )
    return ""


def error_message(text: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an answer that says why there is none."""
    return msgspec.json.encode(_Refused(text)), {ERROR: "answer-not-sent"}


def error_of(payload: bytes, headers: Mapping[str, str] | None) -> str:
    """The text of such an answer; empty for any other."""
    if not headers or ERROR not in headers:
        return ""
    try:
        return msgspec.json.decode(payload, type=_Refused).error or "the answer was not sent, and no reason was given"
    except UNREADABLE:
        return f"the answer was not sent, and the reason cannot be read: {payload[:80]!r}"


def split(payload: bytes, max_payload: int, answer_id: str) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Body and headers of each part."""
    size = max(1, min(PART_BYTES, max_payload // 2))
    count = -(-len(payload) // size)
    for number in range(count):
        headers = {ANSWER: answer_id, PART: f"{number + 1}/{count}"}
        yield payload[number * size : (number + 1) * size], headers


class Joiner:
    """Joins the parts of the answers to one request."""

    def __init__(self) -> None:
        self._answers: dict[str, list[bytes]] = {}
        self.newest = ""
        """The part that came last, such as 2/7."""

    def add(self, payload: bytes, headers: Mapping[str, str]) -> bytes | None:
        """The whole answer with its last part. Raises Lost where a part is missing: the server delivers those of one
        answer in order."""
        number, _, count = headers[PART].partition("/")
        if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(count)):
            raise Lost(f"the header {PART} is {headers[PART][:80]!r} and not such as 2/7")
        parts = self._answers.setdefault(headers.get(ANSWER, ""), [])
        if int(number) != len(parts) + 1:
            raise Lost(f"part {len(parts) + 1} of {count} of the answer did not arrive")
        parts.append(payload)
        self.newest = headers[PART]
        return b"".join(parts) if len(parts) == int(count) else None


def joined(handler: Handler) -> Handler:
    """A handler of messages some of which come in parts, on subjects each of which has one publisher with one message
    after the other. `handler` gets whole messages; one of which a part is missing does not come, like any message that
    is lost."""
    joiners: dict[str, Joiner] = {}

    async def take(incoming: Incoming) -> None:
        if PART not in incoming.headers:
            await handler(incoming)
            return
        if incoming.headers[PART].startswith("1/"):
            joiners[incoming.subject] = Joiner()  # an earlier message that broke off stays so
        joiner = joiners.pop(incoming.subject, None) or Joiner()
        try:
            whole = joiner.add(incoming.payload, incoming.headers)
        except Lost as lost:
            log.warning("bus_message_incomplete", subject=incoming.subject, why=str(lost))
            return
        if whole is None:
            joiners[incoming.subject] = joiner
        else:
            await handler(msgspec.structs.replace(incoming, payload=whole))

    return take
