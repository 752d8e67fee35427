"""What the answering of queries leaves in the log."""

from __future__ import annotations

from typing import Any

import structlog

from services.placement.queries.responder import responder
from shared.bus.port import Incoming
from shared.contracts.base import encode
from shared.contracts.queries import STATUS, StatusQuery
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.shared.book.test_book import grant


class Bus:
    async def respond(self, incoming: Incoming, payload: bytes) -> None:
        """Nothing is looked at."""


async def test_gpus_that_are_booked_twice_are_logged_once_with_their_grants() -> None:
    placement = Placement().nodes("n", gpus=1)
    pods = [build.bound(build.gpu_pod(g, gpus=1), "n", grant(g, mib=81920, milli=1000)) for g in ("a", "b")]
    bus: Any = Bus()
    ask = responder(placement.core, bus, STATUS)
    status = Incoming(subject=STATUS.subject, payload=encode(StatusQuery()))
    placement.core.audit._stopwatch = lambda: 0.0  # each answer has sums of its own
    with structlog.testing.capture_logs() as logs:
        await ask(status)
        placement.facts(*pods)
        for _ in range(2):
            await ask(status)
    (line,) = logs
    assert (line["event"], list(line["grants"]), len(line["grants"]["n/n-gpu-0"])) == (
        "gpus_overbooked",
        ["n/n-gpu-0"],
        2,
    )
