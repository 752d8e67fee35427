"""What a resumption reports of a pod while its memory beyond its request waits on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.messages import SuspendTask
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.suspension import Suspender
from shared.model.suspension import Suspension

KEY = ("uid", "main")
CHECKPOINT = Suspension(action="checkpoint", plan_id="p")


@pytest.mark.parametrize("waits", [True, False])
async def test_only_a_pod_that_does_not_wait_on_the_host_is_restored_at_once(waits: bool) -> None:
    restored: list[str] = []

    async def restore(uid: str) -> str:
        restored.append(uid)
        return ""

    registry: Any = SimpleNamespace(
        on_host=frozenset({KEY} if waits else ()), override_of=lambda _: Override(), slices=[]
    )
    driver: Any = SimpleNamespace(adjust=lambda *_: None)
    live: Any = SimpleNamespace(uid="uid", container="main", strategy="interposer", gpus={"gpu": (8192, 1000)})
    checkpointer: Any = SimpleNamespace(restore=restore)
    suspender = Suspender(registry, {"interposer": driver}, lambda: (live,), checkpointer, lambda _: NotImplemented)
    done = await suspender.suspend(SuspendTask("grant", "uid", ("main",), None, CHECKPOINT, CHECKPOINT))
    assert (done.reason, done.on_host, restored) == ("", waits, [] if waits else ["uid"])
