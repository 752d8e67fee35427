"""The node agent with hollow nodes whose containers take some time to end, as those of a real kubelet do.

So the state "its pod is deleted, and it still runs" lasts long enough to be seen. `python -m
tests.chaos.churn.slow_agent` is such a process: it has the node agent's own settings, a journal (CHURN_JOURNAL) and a
seed (CHURN_SEED).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from services.node_agent import messages as m
from services.node_agent import state
from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.config import Config
from services.node_agent.fleet import Fleet
from services.node_agent.fleet_service import FleetRuntime
from services.node_agent.service import NodeAgent
from services.simulator.hollow import HollowMachine
from shared.model.grant import ContainerGrant
from shared.model.hollow_node import HollowNode
from shared.ports.machine import Machine
from shared.service import Context, main
from tests.chaos.churn.journal import Ended, Started, Writer

JOURNAL, SEED = "CHURN_JOURNAL", "CHURN_SEED"
ENDS_WITHIN_S = (0.3, 4.0)


class SlowMachine(HollowMachine):
    """Its containers end some time after they had to."""

    def __init__(self, node: HollowNode, boot_id: str, journal: Writer, chance: random.Random) -> None:
        super().__init__(node, boot_id)
        self._name, self._journal, self._chance = node.name, journal, chance
        self._running: dict[tuple[str, str], str] = {}
        """Grants by pod and container."""
        self._due: dict[tuple[str, str], float] = {}

    def start(self, uid: str, container: str, grant_id: str, share: ContainerGrant) -> None:
        key = (uid, container)
        if self._running.get(key) != grant_id:
            self._running[key] = grant_id
            # What a container has of another node's GPU is in that node's journal, of its server.
            gpus = {gpu.uuid: (gpu.memory_mib, gpu.compute_milli) for gpu in share.gpus if gpu.node == self._name}
            self._journal.write(Started(time.monotonic(), self._name, *key, grant_id, gpus))

    def stop(self, uid: str, container: str, now: float) -> None:
        self._due.setdefault((uid, container), now + self._chance.uniform(*ENDS_WITHIN_S))

    def take_ended(self, now: float) -> list[tuple[str, str]]:
        """The journal has it before the agent can report it."""
        ended = [key for key, at in self._due.items() if at <= now]
        for key in ended:
            del self._due[key]
            self._running.pop(key, None)
            self._journal.write(Ended(self._name, *key))
        return ended


def slow_machines(
    nodes: Iterable[HollowNode], boot_id: str, journal: Writer, chance: random.Random
) -> dict[str, Machine]:
    return {node.name: SlowMachine(node, boot_id, journal, chance) for node in nodes}


class DurableFleet(Fleet):
    """Its agents keep their checkpoints in files, as those of real nodes do: a grant that was released is not handed
    over again, also where the next process is told of its pod by a leader that does not know it yet."""

    def __init__(self, machines: Mapping[str, Machine], folder: Path) -> None:
        self._folder = folder
        saved = {name: CheckpointFile(self._file(name)).load(name) for name in machines}
        super().__init__(machines, {name: known for name, known in saved.items() if known is not None})

    def boot(self, node: str, now: float) -> list[m.Command]:
        return self._saved(node, super().boot(node, now))

    def handle(self, node: str, event: m.Input, now: float) -> list[m.Command]:
        return self._saved(node, super().handle(node, event, now))

    def _saved(self, node: str, out: list[m.Command]) -> list[m.Command]:
        if any(isinstance(order, m.Save) for order in out):
            # Not synced: what is killed here is the process, and never the machine.
            new = self._file(node).with_suffix(".new")
            new.write_bytes(state.write(self.checkpoint(node)))
            new.replace(self._file(node))
        return out

    def _file(self, node: str) -> Path:
        return self._folder / f"{node}.checkpoint"


class SlowAgent(NodeAgent):
    """The node agent of slow hollow nodes."""

    async def start(self, ctx: Context) -> None:
        config: Config = ctx.config
        journal, chance = Writer(Path(os.environ[JOURNAL])), random.Random(os.environ[SEED])
        machines = slow_machines(config.hollow_nodes(), ctx.instance, journal, chance)
        self.fleet = FleetRuntime(ctx, DurableFleet(machines, Path(os.environ[JOURNAL]).parent))
        await self.fleet.start(config.beat_s)


if __name__ == "__main__":
    main(SlowAgent)
