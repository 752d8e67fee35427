"""The form of every message: frozen, unknown fields ignored, defaults left out of the JSON."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from shared.formats import UNREADABLE


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode(message: Any) -> bytes:
    return _ENCODER.encode(message)


def decode(payload: bytes, kind: type[T]) -> T:
    """Raises ContractError naming the field that is wrong, the type that was wanted, and the start of what came."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(payload)  # type: ignore[no-any-return]
    except UNREADABLE as error:
        label = getattr(kind, "__name__", str(kind))
        raise ContractError(f"this is no {label}: {error}; it begins {payload[:80]!r}") from error


class ContractError(ValueError):
    """A payload that does not keep the contract. It is refused whole; nothing of it is applied."""
