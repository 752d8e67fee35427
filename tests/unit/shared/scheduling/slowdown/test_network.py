"""The predicted slowdown of a GPU behind a network: 1 + calls/s x round trip + transfers / bandwidth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.network import NetworkLink
from shared.scheduling.slowdown.network import remote_slowdown


@pytest.mark.parametrize(
    ("calls", "mib", "rtt_us", "mib_s", "expected"),
    [
        (0, 0, 5000, 1, 1.0),  # a pod that never calls its GPU
        (1000, 0, 20, 1000, 1.02),  # a thousand calls of 20 us in a second
        (1000, 0, 5000, 1000, 6.0),  # the same at 5 ms
        (0, 500, 20, 1000, 1.5),  # half of the bandwidth
        (2000, 250, 50, 1000, 1.35),  # both add up
    ],
)
def test_calls_cost_round_trips_and_transfers_cost_bandwidth(
    calls: float, mib: float, rtt_us: int, mib_s: int, expected: float
) -> None:
    assert remote_slowdown(calls, mib, NetworkLink(rtt_us=rtt_us, mib_s=mib_s)) == pytest.approx(expected)


_AMOUNTS = st.floats(0, 1e6)


@given(_AMOUNTS, _AMOUNTS, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_farther_or_narrower_link_is_never_faster(
    calls: float, mib: float, rtt_us: int, mib_s: int, more: int
) -> None:
    near = remote_slowdown(calls, mib, NetworkLink(rtt_us=rtt_us, mib_s=mib_s + more))
    assert 1 <= near <= remote_slowdown(calls, mib, NetworkLink(rtt_us=rtt_us + more, mib_s=mib_s))


@pytest.mark.parametrize(("calls", "mib"), [(-1, 0), (0, -1), (float("nan"), 0)])
def test_negative_amounts_are_refused(calls: float, mib: float) -> None:
    with pytest.raises(ValueError, match="not negative"):
        remote_slowdown(calls, mib, NetworkLink(rtt_us=20, mib_s=1000))


@pytest.mark.parametrize(("rtt_us", "mib_s"), [(0, 1000), (-5, 1000), (20, 0), (10**9, 1000), (20, 1 << 30)])
def test_a_link_has_figures_that_a_network_can_have(rtt_us: int, mib_s: int) -> None:
    with pytest.raises(ValueError, match="no network has"):
        NetworkLink(rtt_us=rtt_us, mib_s=mib_s)
