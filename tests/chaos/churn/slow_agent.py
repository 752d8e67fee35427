"""The node agent with hollow nodes whose containers take some time to end, as those of a real kubelet do.

So the state "its pod is deleted, and it still runs" lasts long enough to be seen. `python -m
tests.chaos.churn.slow_agent` is such a process: it has the node agent's own settings, a journal (CHURN_JOURNAL) and a
seed (CHURN_SEED).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from pathlib import Path

from services.node_agent import messages as m
from services.node_agent.config import Config
from services.node_agent.fleet_service import FleetRuntime
from services.node_agent.hollow import Fleet, HollowNode
from services.node_agent.service import NodeAgent
from shared.service import Context, main
from tests.chaos.churn.journal import Ended, Started, Writer

JOURNAL, SEED = "CHURN_JOURNAL", "CHURN_SEED"
ENDS_WITHIN_S = (0.3, 4.0)


class SlowFleet(Fleet):
    """Its containers end at a tick, some time after their release was requested."""

    def __init__(self, nodes: Iterable[HollowNode], boot_id: str, journal: Writer, chance: random.Random) -> None:
        super().__init__(nodes, boot_id)
        self._journal, self._chance = journal, chance
        self._running: dict[tuple[str, str, str], str] = {}
        """Grants by node, pod and container."""
        self._due: dict[tuple[str, str, str], float] = {}

    def handle(self, node: str, event: m.Input, now: float) -> list[m.Command]:
        if isinstance(event, m.ReleaseReceived):
            agent = self.agent(node)
            out = agent.handle(event, now)
            for lease in agent.leases_of(event.release.grant_id):
                self._due.setdefault((node, lease.uid, lease.container), now + self._chance.uniform(*ENDS_WITHIN_S))
            return out
        out = super().handle(node, event, now)
        for order in out:
            if isinstance(order, m.HandOver):
                self._starts(node, order)
        if isinstance(event, m.Tick):
            for key in [key for key, at in self._due.items() if key[0] == node and at <= now]:
                out += self._ends(key, now)
        return out

    def _starts(self, node: str, order: m.HandOver) -> None:
        key = (node, order.uid, order.container)
        if self._running.get(key) != order.grant_id:
            self._running[key] = order.grant_id
            gpus = {share.uuid: (share.memory_mib, share.compute_milli) for share in order.share.gpus}
            self._journal.write(Started(time.monotonic(), *key, order.grant_id, gpus))

    def _ends(self, key: tuple[str, str, str], now: float) -> list[m.Command]:
        """The journal has it before the agent can report it."""
        del self._due[key]
        self._running.pop(key, None)
        self._journal.write(Ended(*key))
        node, uid, container = key
        return self.agent(node).handle(m.ContainerEnded(uid, container), now)


class SlowAgent(NodeAgent):
    """The node agent of slow hollow nodes."""

    async def start(self, ctx: Context) -> None:
        config: Config = ctx.config
        journal, chance = Writer(Path(os.environ[JOURNAL])), random.Random(os.environ[SEED])
        self.fleet = FleetRuntime(ctx, SlowFleet(config.hollow_nodes(), ctx.instance, journal, chance))
        await self.fleet.start(config.beat_s)


if __name__ == "__main__":
    main(SlowAgent)
