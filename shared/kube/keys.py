"""Which keys of labels and annotations Kubernetes accepts."""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


def valid_key(key: str) -> bool:
    """Whether Kubernetes accepts it as a key of labels and annotations (a qualified name with an optional DNS
    prefix)."""
    return len(key) <= 253 + 64 and _KEY.fullmatch(key) is not None
