"""Random changes of examples: of bytes, of text, and of JSON documents as trees."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

MAX_CHANGES = 4
DEEP, LESS_DEEP = 3000, 700
"""Levels of nesting: more than a decoder follows, and more than Python code follows."""
_RAW = "\ue000raw:"
"""Begins a text that is replaced by JSON which `json.dumps` would not write."""
_RAWS = {
    "deep-list": "[" * DEEP + "]" * DEEP,
    "deep-object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "less-deep": '{"a":' * LESS_DEEP + "1" + "}" * LESS_DEEP,
    "many-digits": "9" * 5000,
    "exponent": "1e400",
    "surrogate": '"\\ud800"',
    "nan": "NaN",
    "twice": '{"a":1,"a":2}',
}
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5,
    -0.0, 1e308, "", " ", "0", "-1", "x", [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, "9" * 40, "9" * 5000,
    *(f"{_RAW}{name}" for name in _RAWS),
)  # fmt: skip
PIECES: tuple[str, ...] = (
    "=", ",", "..", ":", "@", "/", "|", "%", "-", "+", ".", "Gi", "Mi", "m", "e9", "1e99", "0", "9", "9" * 40,
    "9" * 5000, "\u0663", "\u00b2", "\u0130", "\x00", "\n", " ", '"', "{", "}", "[", "]", "null", "true", "\\", "GPU-",
    "_", "0x", "nan", "inf", "\U0001f600",
)  # fmt: skip
_BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\xc3\x28", b"{", b"]", b"9")


def change_bytes(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to four changes: bits flipped, parts removed, repeated, replaced, cut off, or taken from another example."""
    made = bytearray(data)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice((1, 1, 2, 4, 8, 32)))
        match rng.randrange(7):
            case 0 if made:
                made[min(at, len(made) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:end]
            case 2:
                made[at:at] = made[at:end] * rng.choice((1, 2, 16))
            case 3:
                made[at:end] = rng.choice(_BYTES)
            case 4:
                made[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
            case 5:
                del made[at:]
            case _ if others:
                other = rng.choice(others)
                made[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                made[at:at] = rng.choice(PIECES).encode()
    return bytes(made)


def change_text(rng: random.Random, text: str) -> str:
    """One to four changes, which keep most of the text."""
    for _ in range(rng.randint(1, MAX_CHANGES)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 1, 2, 5)))
        match rng.randrange(5):
            case 0:
                text = text[:at] + rng.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[end:]
            case 2:
                text = text[:at] + rng.choice(PIECES) + text[end:]
            case 3:
                text = text[:at] + text[at:end] * rng.choice((2, 16)) + text[end:]
            case _:
                text = text[:at] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(128, 0xD800)))) + text[end:]
    return text


def change_json(rng: random.Random, document: Any) -> bytes:
    """The document with one to four changes of its tree, as JSON; of a few, with changes of its bytes besides."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.randint(1, MAX_CHANGES)):
        document = _change_tree(rng, document)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    for name, raw in _RAWS.items():
        for mark in (f'"{_RAW}{name}"', json.dumps(f"{_RAW}{name}")):
            text = text.replace(mark, raw)
    made = text.encode(errors="replace")
    return change_bytes(rng, made) if rng.random() < 0.1 else made


def _change_tree(rng: random.Random, document: Any) -> Any:
    places = list(_places(document))
    if not places:
        return copy.deepcopy(rng.choice(VALUES))
    parent, key = rng.choice(places)
    value = parent[key]
    match rng.randrange(6):
        case 0:
            parent[key] = copy.deepcopy(rng.choice(VALUES))
        case 1 | 2 if isinstance(value, str):
            parent[key] = change_text(rng, value)
        case 1 | 2 if isinstance(value, int | float):
            parent[key] = rng.choice((value + 1, -value, value * 2**32, str(value), [value]))
        case 3:
            del parent[key]
        case 4 if isinstance(parent, list):
            parent.extend([value] * rng.choice((1, 2, 100)))
        case 4:
            parent[change_text(rng, key)] = value
        case _:
            other_parent, other_key = rng.choice(places)
            parent[key] = copy.deepcopy(other_parent[other_key]) if other_key in _keys(other_parent) else None
    return document


def _keys(parent: Any) -> Any:
    return parent if isinstance(parent, dict) else range(len(parent))


def _places(document: Any) -> Any:
    """(parent, key) of every value below the document."""
    if not isinstance(document, dict | list):
        return
    for key in list(document) if isinstance(document, dict) else range(len(document)):
        yield document, key
        yield from _places(document[key])
