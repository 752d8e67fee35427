"""When an operator takes, renews or leaves the Lease."""

from __future__ import annotations

import pytest

from services.operator.lease import Lease, LeaseSpec, Seen, decide


def held_by(holder: str | None) -> Lease:
    return Lease(spec=LeaseSpec(holder_identity=holder, lease_duration_seconds=6))


@pytest.mark.parametrize(
    ("lease", "age_s", "wanted"),
    [
        (None, 0.0, "take"),
        (held_by(""), 0.0, "take"),
        (held_by(None), 0.0, "take"),
        (held_by("me"), 100.0, "renew"),
        (held_by("other"), 5.9, "wait"),
        (held_by("other"), 6.1, "take"),
    ],
)
def test_a_lease_is_taken_when_free_or_unchanged_for_its_duration(
    lease: Lease | None, age_s: float, wanted: str
) -> None:
    """By one's own clock since it was last seen to change, not by the time that the holder wrote."""
    assert decide(lease, "me", Seen("1", 50.0), 50.0 + age_s, 99.0) == wanted
