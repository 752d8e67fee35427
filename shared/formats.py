"""JSON and YAML that others wrote: reading it raises more than msgspec's own error, and all of it means the same.

A text that is no UTF-8 raises UnicodeDecodeError, and one that is nested deeper than the interpreter's stack
RecursionError. PyYAML's constructors raise whatever Python does on `!!int x`, `!!bool x` or the 13th month.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import yaml

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


def decode_manifests(data: bytes | str) -> list[Any]:
    """The documents of a text of YAML, as JSON has them: times are texts, and empty documents are left out. Raises
    msgspec.DecodeError, and nothing else, on what is no YAML and on values that JSON does not have."""
    try:
        documents = [document for document in yaml.safe_load_all(data) if document is not None]
        return msgspec.json.decode(msgspec.json.encode(documents), type=list[Any])
    except yaml.YAMLError as error:
        raise msgspec.DecodeError(str(error)) from error
    except _YAML_ERRORS as error:
        raise msgspec.DecodeError(f"a value cannot be read: {error}") from error
