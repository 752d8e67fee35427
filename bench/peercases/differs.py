"""Where Kerf means to differ: docs/decisions/0051-where-kerf-differs-from-peers.md gives the reasons."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]


def differs(case: Case) -> bool:
    return False
