"""Settings of a session, and what it counts."""

from __future__ import annotations

import msgspec

BATCH_MOST = 64
HOLDS_MOST = 256
"""Unresolved holds at which placement waits for the API server (backpressure)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str = "kerf"
    holds_most: int = HOLDS_MOST
    batch_most: int = BATCH_MOST


class Stats(msgspec.Struct):
    decisions: int = 0
    rejections: int = 0
    bound: int = 0
    touched: int = 0
    readopted: int = 0
    resent: int = 0
