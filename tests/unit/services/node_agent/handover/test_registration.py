"""The registration of the device plugin with a kubelet that is not there."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.node_agent.handover import registration
from services.node_agent.handover.registration import PLUGIN_DIR, DevicePluginServer


async def test_a_kubelet_that_was_killed_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves its socket, and the agent tries again twice a second."""
    monkeypatch.setattr(registration, "CHECK_S", 0.0)
    tries: asyncio.Queue[str] = asyncio.Queue()

    def reported(part: str, *, ok: bool, detail: str) -> None:
        if "did not register" in detail:
            tries.put_nowait(part)

    tasks: list[asyncio.Task[None]] = []
    ctx: Any = SimpleNamespace(
        health=SimpleNamespace(set=reported),
        on_drain=lambda close: None,
        spawn=lambda coro, name: tasks.append(asyncio.create_task(coro, name=name)),
    )
    plugin: Any = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(registration, "add_DevicePluginServicer_to_server", lambda plugin, server: None)
    # Pytest's own paths are too long for unix sockets.
    with tempfile.TemporaryDirectory(prefix="kerf-") as folder, socket.socket(socket.AF_UNIX) as dead:
        (Path(folder) / PLUGIN_DIR).mkdir()
        dead.bind(f"{folder}/{PLUGIN_DIR}/kubelet.sock")
        server = DevicePluginServer(ctx, Path(folder), lambda _: plugin, lambda: "")
        with capture_logs() as logged:
            await server.start()
            for _ in range(3):
                await tries.get()
            await server.close()
            await asyncio.gather(*tasks)
    assert [line["event"] for line in logged] == ["not_registered"]
