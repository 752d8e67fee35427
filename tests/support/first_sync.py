"""The first sync of an agent that has no checkpoint: before it, it takes no order."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import NodeSync, NodeSyncAnswer
from tests.support.waiting import eventually


def is_new(checkpoint_file: str) -> bool:
    """Whether an agent with this file has none yet."""
    return not Path(checkpoint_file).exists()


async def first_sync(url: str, *nodes: str) -> None:
    """Syncs these nodes' agents, which run already, as the leader of term 1 without grants."""
    async with await NatsBus.connect(url) as bus:
        for node in nodes:
            await eventually(partial(_synced, bus, node), what=f"the first sync of {node}")


async def _synced(bus: NatsBus, node: str) -> bool:
    with contextlib.suppress(BusError):  # its agent does not listen yet
        answer = await bus.request(subjects.node_command(node, "sync"), encode(NodeSync(term=1, node=node)))
        return decode(answer, NodeSyncAnswer).accepted
    return False
