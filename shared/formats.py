"""JSON and YAML that others wrote: reading it raises more than msgspec's own error, and all of it means the same.

A text that is no UTF-8 raises UnicodeDecodeError, and one that is nested deeper than the interpreter's stack
RecursionError. PyYAML's constructors raise whatever Python does on `!!int x`, `!!bool x` or the 13th month.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What a msgspec JSON decoder raises on bytes that it cannot read."""
_YAML_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

T = TypeVar("T")


def decode_yaml(data: bytes | str, kind: type[T]) -> T:
    """Raises msgspec.DecodeError, and nothing else, on what is no YAML or not of this kind."""
    try:
        return msgspec.yaml.decode(data, type=kind)
    except msgspec.DecodeError:
        raise
    except _YAML_ERRORS as error:
        raise msgspec.DecodeError(f"a value cannot be read: {error}") from error
