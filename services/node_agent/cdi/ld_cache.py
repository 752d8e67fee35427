"""Reads library directories from ld.so.cache, for distributions that keep their libraries elsewhere.

The format is glibc's "new" one (sysdeps/generic/dl-cache.h): a header, entries of 24 bytes, and strings at offsets from
the header.
"""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII20x")
_ENTRY = struct.Struct("<iIIIQ")


def directories(cache: Path, library: str) -> tuple[str, ...]:
    """The directories of this library, in order of preference. Empty if there is no cache of that format."""
    try:
        data = cache.read_bytes()
    except OSError:
        return ()
    start = data.find(_MAGIC)
    if start < 0 or len(data) < start + _HEADER.size:
        return ()
    _, count, _ = _HEADER.unpack_from(data, start)
    found: dict[str, None] = {}
    for number in range(count):
        at = start + _HEADER.size + number * _ENTRY.size
        if at + _ENTRY.size > len(data):
            break
        _, key, value, _, _ = _ENTRY.unpack_from(data, at)
        if _string(data, start + key) == library:
            found[_string(data, start + value).rpartition("/")[0]] = None
    return tuple(found)


def _string(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    return data[at:end].decode(errors="replace") if at < len(data) and end > 0 else ""
