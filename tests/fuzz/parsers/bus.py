"""Messages of every type on the bus, entries of KV buckets, headers, and questions of NATS servers and browsers."""

from __future__ import annotations

from typing import Any

import msgspec

from services.metrics.page.server import Asked
from services.operator import callout
from shared.book.book import Book
from shared.bus.parts import ANSWER, PART, Joiner, Lost, error_of
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.envelope import unwrap, wrap
from shared.contracts.events import Event
from shared.contracts.examples import EXAMPLES
from shared.contracts.facts import FeedBatch, Put
from shared.contracts.registry import message_types
from shared.formats import UNREADABLE
from shared.model.gpu import Inventory
from shared.scheduling import numa
from tests.fuzz.parser import Parser, promise
from tests.support import build


def parsers() -> tuple[Parser, ...]:
    kinds = [kind for kind in message_types() if kind.__name__ in EXAMPLES]
    made = [
        Parser(
            name=f"message-{kind.__name__}",
            form="json",
            examples=(_tree(EXAMPLES[kind.__name__]),),
            read=lambda data, kind=kind: _message(data, kind),
            errors=(ContractError,),
        )
        for kind in kinds
    ]
    events = [example for example in EXAMPLES.values() if isinstance(example, Event)]
    wrapped = [wrap(event, source="/kerf/x", now_s=1.0, event_id="1")[1] for event in events]
    inventory = _tree(EXAMPLES["Inventory"])
    return (
        *made,
        Parser(
            name="message-bytes",
            form="bytes",
            examples=(encode(EXAMPLES["Inventory"]),),
            read=lambda data: _message(data, Inventory),
            errors=(ContractError,),
        ),
        Parser(
            name="event",
            form="json",
            examples=[msgspec.json.decode(one) for one in wrapped],
            read=unwrap,
            errors=(ContractError,),
            weight=3,
        ),
        Parser(name="event-bytes", form="bytes", examples=wrapped, read=unwrap, errors=(ContractError,)),
        Parser(
            name="kv-inventory", form="json", examples=(inventory,), read=_inventory, errors=(ContractError,), weight=4
        ),
        Parser(
            name="feed",
            form="json",
            examples=(_tree(EXAMPLES["FeedBatch"]), _tree(_feed())),
            read=_feed_into_a_book,
            errors=(ContractError,),
            weight=4,
        ),
        Parser(name="parts", form="text", examples=("1/7", "1/1", "1/12"), read=_parts, errors=(Lost,)),
        Parser(name="parts-refusal", form="bytes", examples=(b'{"error":"too large"}',), read=_refusal),
        Parser(name="subject", form="text", examples=("node_2ea", "gpu_2dnode"), read=_subject, errors=(ValueError,)),
        Parser(
            name="callout",
            form="bytes",
            examples=(_QUESTION,),
            read=callout.read,
            errors=(callout.Unreadable,),
            weight=2,
        ),
        Parser(
            name="page-what-if",
            form="json",
            examples=({"gpus": 2, "memory_gib": 1.5, "compute_percent": 20, "model": "H100", "drain": ["n"]},),
            read=lambda data: msgspec.json.decode(data, type=Asked).query(),
            errors=(*UNREADABLE, ValueError),
        ),
    )


def _tree(example: Any) -> Any:
    return msgspec.json.decode(encode(example))


def _message(data: bytes, kind: type) -> object:
    found = decode(data, kind)
    promise(decode(encode(found), kind) == found, "the message is another one when it is sent on")
    return found


def _inventory(data: bytes) -> object:
    """As placement takes it from KV: into the book, and before the filters that read it."""
    found = decode(data, Inventory)
    book = Book()
    book.apply(Put(object=build.node(found.node)))
    book.put_inventory(found)
    for gpu in found.gpus:
        if gpu.cpus:
            numa._count(gpu.cpus)
    free = book.arrays.gpu_total_mib
    promise(bool((free >= 0).all()), "a GPU has less than no memory")
    return found


def _feed_into_a_book(data: bytes) -> object:
    book = Book()
    for fact in decode(data, FeedBatch).facts:
        book.apply(fact)
    return book


def _feed() -> FeedBatch:
    return FeedBatch(
        epoch="e",
        number=1,
        facts=(
            Put(object=build.node("n")),
            Put(object=build.pod("a", limits={"kerf.dev/gpu": "1"}, node="n")),
            Put(object=build.pod("b", limits={"kerf.dev/gpu-memory": "16Gi"}, annotations={"kerf.dev/gang": "g"})),
        ),
    )


def _parts(data: bytes) -> object:
    joiner = Joiner()
    joiner.add(b"x", {PART: "1/2", ANSWER: "a"})
    return joiner.add(b"y", {PART: data.decode(errors="replace"), ANSWER: "b"})


def _refusal(data: bytes) -> object:
    return error_of(data, {"Kerf-Error": "1"})


def _subject(data: bytes) -> object:
    text = data.decode(errors="replace")
    promise(subjects.untoken(subjects.token(text)) == text, "a name is another one in a subject")
    return subjects.untoken(text)


def _question() -> bytes:
    import base64

    claims = {
        "nats": {
            "server_id": {"id": "S"},
            "user_nkey": "U",
            "client_info": {"host": "10.0.0.1"},
            "connect_opts": {"auth_token": "t", "user": "u"},
        }
    }
    parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)
    return b".".join(
        [*(base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=") for part in parts), b"c2lnbmF0dXJl"]
    )


_QUESTION = _question()
