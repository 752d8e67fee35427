"""What of others' texts is shown: a text may hold sequences that erase or forge what is on a terminal, and annotations
may have 256 KiB."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 without tab and newline, DEL and C1."""
_MOST = 4096
"""Characters of a sentence about a pod. Conditions may have 32,768, and some hundred reports fit into a message."""


def printable(text: str) -> str:
    """The text with U+FFFD for each control character."""
    return CONTROL.sub("\ufffd", text)


def printable_json(text: str) -> str:
    """The same JSON. Encoders leave DEL and C1 in strings as they are; here they are written as escapes."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str) -> str:
    """The text without its middle where it is long: what to do is at the end."""
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} … {text[-_MOST // 2 :]}"
