"""What a connection logs while its server is away."""

from __future__ import annotations

from structlog.testing import capture_logs

from shared.bus.embedded import EmbeddedServer
from tests.support.waiting import eventually
from tests.unit.shared.bus.conftest import Connect


async def test_an_outage_is_a_line_at_its_start_and_one_at_its_end(server: EmbeddedServer, connect: Connect) -> None:
    """Four attempts a second fail meanwhile, and are counted."""
    with capture_logs() as logs:
        bus = await connect()
        await server.kill()
        await eventually(lambda: bus.stats.errors >= 12, within_s=30)
        await server.start()
        await eventually(lambda: bus.connected, within_s=30)
    told = [line["event"] for line in logs if line["event"].startswith("bus_")]
    assert (told[0], told[-1]) == ("bus_disconnected", "bus_reconnected")
    assert set(told[1:-1]) <= {"bus_still_unreachable"}
    assert len(told) <= 4, "on a slow machine the outage may last longer than the first interval"
    assert logs[-1]["errors"] >= 11
