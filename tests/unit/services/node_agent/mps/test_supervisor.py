"""What the supervisor does in each round. `tests/contract/enforcement/test_mps.py` has the rest, with real daemons."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.measured_files import store
from services.node_agent.mps import supervisor
from services.node_agent.mps.plan import Memory, Seen, Server
from services.node_agent.mps.supervisor import STATE, MpsSupervisor
from shared.bus.tasks import end
from shared.contracts.node_commands import LiveSlice
from shared.service import Health


class Running:
    """In place of a GPU's daemon: one that runs and answers. The first attempt to cut its logs fails."""

    cuts = 0
    cut = asyncio.Event()

    def __init__(self, uuid: str, *_: Any) -> None:
        self.uuid = uuid

    async def adopt(self) -> None: ...

    async def see(self) -> Seen:
        return Seen(control=7, servers=(Server(8, "ACTIVE"),))

    async def shorten_logs(self) -> None:
        type(self).cuts += 1
        if self.cuts == 1:
            raise OSError(5, "Input/output error")
        self.cut.set()


class Context:
    """What a supervisor uses of a service's context."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.log: Any = SimpleNamespace(warning=lambda event, **_: self.said.append(event))
        self.metrics: Any = SimpleNamespace(
            counter=lambda *_: SimpleNamespace(add=lambda *_: None), observe_by=lambda *_, **__: None
        )
        self.health = Health()

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        self.task = asyncio.create_task(work, name=name)
        return self.task


async def test_each_round_cuts_the_logs_of_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent asks its daemons all the time, and they write each question down. One that fails ends no round."""
    monkeypatch.setattr(supervisor, "ROUND_S", 0.0)
    monkeypatch.setattr(supervisor, "Daemon", Running)
    monkeypatch.setattr(Running, "cut", asyncio.Event())
    live = LiveSlice(
        uid="u", namespace="team", name="a", container="main", grant_id="g", strategy="mps", gpus={"GPU-1": (64, 300)}
    )
    agent = SimpleNamespace(node="n1", live=lambda: (live,), gpus=SimpleNamespace(inventory=None))
    store(tmp_path / "mps" / "GPU-1" / STATE, Memory(control=7, server=8))
    context = Context()
    made = MpsSupervisor(
        context,  # type: ignore[arg-type]
        agent,  # type: ignore[arg-type]
        wanted=False,
        folder=tmp_path / "mps",
        proof_file=tmp_path / "mps.json",
        tools=lambda: None,  # type: ignore[arg-type,return-value]
        prover=lambda: None,  # type: ignore[arg-type,return-value]
        keeper=SimpleNamespace(library="digest"),  # type: ignore[arg-type]
        publish=lambda _: None,
    )
    await made.start()
    made.run(_say)
    async with asyncio.timeout(5):
        await Running.cut.wait()
    await end(context.task)
    assert context.said == ["mps_log_not_cut"]


async def _say() -> None: ...
