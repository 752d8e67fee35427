"""Settings and counters of a leader session."""

from __future__ import annotations

import msgspec

MAX_BATCH = 64
MAX_HOLDS = 256
"""Unresolved holds at which placement waits for the API server (backpressure)."""
EXCLUDE_AFTER_S = 60.0
"""A pod that no touch has moved for so long is excluded, whatever the answers were: a webhook may hang, or undo what a
touch writes."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str = "kerf"
    max_holds: int = MAX_HOLDS
    max_batch: int = MAX_BATCH
    exclude_after_s: float = EXCLUDE_AFTER_S


class Stats(msgspec.Struct):
    decisions: int = 0
    rejections: int = 0
    bound: int = 0
    touched: int = 0
    readopted: int = 0
    resent: int = 0
