"""Keeps control characters from terminals: a text of others may hold sequences that erase or forge what is shown."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 without tab and newline, DEL and C1."""


def printable(text: str) -> str:
    """The text with U+FFFD for each control character."""
    return CONTROL.sub("\ufffd", text)


def printable_json(text: str) -> str:
    """The same JSON. Encoders leave DEL and C1 in strings as they are; here they are written as escapes."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
