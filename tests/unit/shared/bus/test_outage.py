"""How many lines an outage of NATS is worth."""

from __future__ import annotations

from shared.bus.outage import Outage


def test_an_outage_is_told_at_its_start_and_then_ever_less_often() -> None:
    """Four errors a second for 20 minutes."""
    outage = Outage()
    assert outage.begin(100.0)
    assert not outage.begin(100.1)
    told = [tick / 4 for tick in range(4 * 1200) if outage.error(100 + tick / 4)]
    assert told == [5, 15, 35, 75, 155, 315, 615, 915]
    assert (outage.errors, outage.seconds(1300)) == (4800, 1200.0)


def test_the_next_outage_begins_anew() -> None:
    outage = Outage()
    outage.begin(0.0)
    outage.error(7.0)
    outage.end()
    assert not outage.going_on
    assert outage.begin(50.0)
    assert (outage.errors, outage.error(54.0), outage.error(55.0)) == (0, False, True)
