"""Times as RFC 3339 texts in UTC, as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_text(at_s: float) -> str:
    """Kubernetes' Time, such as 2026-11-21T09:00:00Z. `at_s`: Unix seconds, of which fractions are cut off."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micros_text(at_s: float) -> str:
    """Kubernetes' MicroTime, such as 2026-11-21T09:00:00.000042Z. `at_s`: Unix seconds."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
