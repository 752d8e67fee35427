"""Counters of a leader session."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct):
    decisions: int = 0
    rejections: int = 0
    bound: int = 0
    touched: int = 0
    readopted: int = 0
    resent: int = 0
