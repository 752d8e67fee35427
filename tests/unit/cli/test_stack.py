"""How long `kerf up` waits for its services."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cli.output import Failure
from cli.stack import _ready
from shared.service.base import Health


async def test_services_that_are_not_ready_end_the_wait_with_a_sentence() -> None:
    slow: Any = SimpleNamespace(health=Health())
    slow.health.set("store", ok=False, detail="opening")
    slow.health.set("bus", ok=True, detail="connected")
    with pytest.raises(Failure, match=r"^not ready after 0 s: metrics \(store: opening\)\. If the machine was busy"):
        await _ready({"metrics": slow}, timeout_s=0)
