"""Times as Kubernetes writes them."""

from __future__ import annotations

from shared.model.timestamps import micros_text, seconds_text


def test_times_are_utc_with_whole_seconds_or_microseconds() -> None:
    at_s = 1_795_251_600.999_999
    assert seconds_text(at_s) == "2026-11-21T09:00:00Z"
    assert micros_text(at_s) == "2026-11-21T09:00:00.999999Z"
    assert micros_text(1_795_251_600) == "2026-11-21T09:00:00.000000Z"
