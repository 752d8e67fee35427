"""How a kind is kept up with: how long a watch lasts, when a stream counts as dead, when there is a list."""

from __future__ import annotations

import random

import msgspec

SHORT_WATCH_S = 3
"""A watch that is to say where it is. The server says so 2 s before a watch's end (a bookmark), and looks once a second
whether it has to; where objects change, each change says it."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """`watch_s`: how long the server keeps one watch open (times 1 to 2, so that watches do not end together).
    `silence_s`: how long a stream may be silent before it counts as dead (bookmarks come about every minute)."""

    watch_s: int = 300
    list_s: int = 300
    """As `watch_s`, of a watch that begins with a list; one that exceeds `watch_s` ends with its list."""
    silence_s: float = 150.0
    backoff_s: float = 0.2
    backoff_max_s: float = 20.0
    page_size: int = 500
    page_timeout_s: float = 60.0
    relist_most: int = 2000
    """Up to so many known objects a refresh is a list, which takes less than the wait for a bookmark."""
    absent_s: float = 60.0
    """How often to check again for a kind that the server does not have."""

    def next_watch_s(self, *, listing: bool) -> int:
        """How long the next watch is to be kept open, in seconds."""
        least_s = self.list_s if listing else self.watch_s
        return int(least_s * random.uniform(1.0, 2.0))  # noqa: S311 - jitter, not a secret


CLOSE = Timing(watch_s=16, silence_s=40.0)
"""For kinds that pods would wait for: only silence shows a server that hangs while its kernel acknowledges. A
healthy one ends each of these watches, after a bookmark, before it has been silent for so long."""
