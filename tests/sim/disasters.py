"""Rare and large faults: stores that are restored from a backup, clocks that jump, watchers that lag, GPUs that are
numbered anew; and machines that are repaired: another GPU in a slot, or a lost checkpoint of the agent.

A part of the worlds has them. All is drawn from a generator of its own, so that the other worlds stay what they are.
What is promised after etcd was restored is less than the rest, and is in docs/decisions/0261.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from services.node_agent import gone_gpus
from services.simulator.cluster import SimulatedCluster
from shared.contracts.facts import Fact, Gone, Put

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

PART = 0.25
REPAIRED_PART = 0.2
"""How many worlds have machines that are repaired."""
PASSES_EVERY_S = 6.0
"""How often it is looked, when all is calm, whether time has to pass. An agent looks every two seconds."""
REPAIRS = ("lose_checkpoint", "replace_gpu")
KINDS = ("restore_etcd", "restore_nats", "lag", "jump", "sleep", "renumber")
BUMP = 1_000_000
"""`etcdutl snapshot restore --bump-revision`: no resourceVersion comes a second time."""
BACKUP_EVERY_S = 7.0


class RestorableCluster(SimulatedCluster):
    """An API server whose etcd can be restored."""

    def backup(self) -> dict[str, dict[tuple[str, str], dict]]:  # type: ignore[type-arg]
        return {kind: dict(found) for kind, found in self._objects.items()}

    def restore(self, backup: dict[str, dict[tuple[str, str], dict]], bump: int) -> list[Fact]:  # type: ignore[type-arg]
        """The objects of the backup, each with the version that it had then. Returns what differs from before."""
        before = {fact.object.metadata.uid: fact.object for fact in self.snapshot()}
        self._objects = {kind: dict(found) for kind, found in backup.items()}
        self._version += bump
        after = {fact.object.metadata.uid: fact.object for fact in self.snapshot()}
        return [
            *(Gone(object=was, certain=False) for uid, was in before.items() if uid not in after),
            *(Put(object=now) for uid, now in after.items() if now != before.get(uid)),
        ]


class Disasters:
    def __init__(self, simulation: Simulation, seed: int) -> None:
        self._simulation = simulation
        self.rng = random.Random(f"{seed} disasters")
        self.drawn = self.rng.random() < PART
        self._kinds = [kind for kind in KINDS if self.rng.random() < 0.5] or list(KINDS)
        self.repairs = random.Random(f"{seed} repairs")
        self.repaired = self.repairs.random() < REPAIRED_PART
        """Whether machines are repaired."""
        self.happened: Counter[str] = Counter()
        self._etcd: list[dict[str, dict[tuple[str, str], dict]]] = []  # type: ignore[type-arg]

    def begin(self) -> None:
        if self.drawn:
            self._back_up()
            self._simulation.clock.after(self.rng.uniform(5.0, 15.0), self._strike)
        if self.repaired:
            self._simulation.clock.after(self.repairs.uniform(5.0, 20.0), self._repair)

    def _back_up(self) -> None:
        simulation = self._simulation
        if simulation.network.calm:
            return
        self._etcd.append(simulation.api.backup())
        simulation.nats.back_up()
        simulation.clock.after(BACKUP_EVERY_S, self._back_up)

    def _strike(self) -> None:
        if self._simulation.network.calm:
            return
        kind = self.rng.choice(self._kinds)
        self.happened[kind] += 1
        self._simulation.last_fault = kind
        getattr(self, f"_{kind}")()
        self._simulation.clock.after(self.rng.uniform(3.0, 20.0), self._strike)

    # --- stores ---------------------------------------------------------------------------------------------------

    def _restore_etcd(self) -> None:
        """As the operators' guide says: Kerf's services are stopped, etcd is restored with higher revisions, the log is
        deleted, and the services start. Nodes run on, and requests that are under way arrive later."""
        simulation = self._simulation
        backup = self.rng.choice(self._etcd[-4:])
        for process in (*simulation.leaders, *simulation.turns.preemptors):
            process.crash()
        for watcher in simulation.watchers:
            watcher.crash()
        changed = simulation.api.restore(backup, BUMP)
        simulation.clock.tell(f"etcd is restored: {len(changed)} objects are as they were or gone")
        simulation.restored(changed)
        simulation.nats.wipe()
        for process in (*simulation.leaders, *simulation.watchers):
            simulation.clock.after(self.rng.uniform(0.1, 3.0), lambda x=process: None if x.alive else x.restart())  # type: ignore[misc]
        for preemptor in simulation.turns.preemptors:
            simulation.clock.after(self.rng.uniform(0.1, 3.0), preemptor.start)

    def _restore_nats(self) -> None:
        """All files of the servers are as they were minutes ago, perhaps from before the log was deleted. What they had
        in memory is gone, and so is the mark."""
        self._simulation.nats.restore_backup(self.rng)

    # --- time -------------------------------------------------------------------------------------------------------

    def _lag(self) -> None:
        """A watcher sees nothing new for long, and its heartbeats go on; the other one is up to date."""
        watcher = self.rng.choice(self._simulation.watchers)
        seconds = self.rng.uniform(10.0, 60.0)
        self._simulation.clock.tell(f"{watcher.name} lags {seconds:.0f} s behind")
        watcher.lags_until = self._simulation.clock.now + seconds

    def _jump(self) -> None:
        """A wall clock is set. What worlds with turns say of time is for clocks that differ by seconds."""
        if self._simulation.turns.drawn:
            return
        leader, seconds = self.rng.choice(self._simulation.leaders), self.rng.choice((-1.0, 1.0))
        seconds *= self.rng.choice((2.0, 90.0, 4_000.0, 100_000.0))
        self._simulation.clock.tell(f"the wall clock of {leader.name} jumps by {seconds:.0f} s")
        leader.wall_jumped(seconds)

    def _sleep(self) -> None:
        """A machine's monotonic clock goes on by minutes at once, as after a suspended virtual machine whose clock
        counts that time: every time-out is over."""
        if self._simulation.turns.drawn:
            return
        part = self.rng.choice((*self._simulation.leaders, *self._simulation.nodes.values()))
        seconds = self.rng.choice((8.0, 65.0, 1_000.0))
        self._simulation.clock.tell(f"the monotonic clock of {part.name} goes on by {seconds:.0f} s at once")
        part.ahead_s += seconds

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _renumber(self) -> None:
        """A node reboots; its GPUs have the same UUIDs and other numbers, and its monotonic clock begins anew."""
        node = self.rng.choice(list(self._simulation.nodes.values()))
        self.rng.shuffle(node.indices)
        if not self._simulation.turns.drawn:
            node.ahead_s = -self._simulation.clock.now
        node.reboot()
        self._simulation.record()

    def _repair(self) -> None:
        simulation, draw = self._simulation, self.repairs
        if simulation.network.calm:
            return
        kind, node = draw.choice(REPAIRS), draw.choice(list(simulation.nodes.values()))
        if simulation.remote:
            kind = "replace_gpu"  # a server begins by the word of a sync alone, so one that was void may begin (0287)
        self.happened[kind] += 1
        simulation.last_fault = kind
        if kind == "replace_gpu":
            node.replace_gpu(draw.randrange(node.gpus))
        else:
            simulation.delete_void_pods(node.name)
            node.lose_checkpoint(reboots=draw.random() < 0.5)
        simulation.record()
        simulation.clock.after(draw.uniform(3.0, 20.0), self._repair)

    def calm(self) -> None:
        """So much time passes on the nodes that what a replaced GPU had is given back."""
        if self.repaired:
            self._simulation.clock.after(PASSES_EVERY_S, self._pass_time)

    def _pass_time(self) -> None:
        if any(self._simulation.unreplaced()):
            for node in self._simulation.nodes.values():
                node.ahead_s += gone_gpus.AFTER_S
        self._simulation.clock.after(PASSES_EVERY_S, self._pass_time)
