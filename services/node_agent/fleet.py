"""Many agent cores in one process, each with a simulated node. Pure, like the cores.

A grant is handed over when it arrives, through the same device gate as on a real node. Its containers have to end when
its release is requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.state import Checkpoint, Lease
from shared.contracts import subjects
from shared.contracts.node_commands import NodeHoldAnswer
from shared.ports.machine import Machine

KEEP_TOMBSTONES = 512


class Fleet:
    """The agents of all simulated nodes."""

    def __init__(
        self, machines: Mapping[str, Machine], checkpoints: Mapping[str, Checkpoint] = MappingProxyType({})
    ) -> None:
        """`machines`: the nodes by name. `checkpoints`: what their agents knew when the process before ended."""
        self._machines = dict(machines)
        self._agents = {
            name: Agent(name, checkpoints.get(name), keep_tombstones=KEEP_TOMBSTONES) for name in self._machines
        }
        self.by_token = {subjects.token(name): name for name in self._machines}
        """Node names by their subject token."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    def checkpoint(self, node: str) -> Checkpoint:
        return self._agents[node].checkpoint()

    def boot(self, node: str, now: float) -> list[m.Command]:
        """The first commands of a node. Raises KeyError if there is no such node."""
        agent, machine = self._agents[node], self._machines[node]
        return self._handle(agent, machine, m.InventorySeen(machine.inventory), now)

    def handle(self, node: str, event: m.Input, now: float) -> list[m.Command]:
        """The commands of the node's agent, including those that follow because containers start and end."""
        agent, machine = self._agents[node], self._machines[node]
        out = agent.handle(event, now)
        for suspend in [order for order in out if isinstance(order, m.SuspendSlices)]:
            out += agent.handle(
                m.SuspensionDone(suspend.request, tuple(m.SuspendResult(task) for task in suspend.tasks)), now
            )
        for resize in [order for order in out if isinstance(order, m.ResizeSlices)]:
            out += agent.handle(m.ResizeDone(resize.request, resize.task), now)
        # Nothing computes here: all that is to stand still does.
        out = [m.Answer(NodeHoldAnswer(node=node, ok=True)) if isinstance(o, m.HoldPods) else o for o in out]
        out += self._start_and_stop(agent, machine, event, now)
        out += self._serve(agent, machine, out, now)
        for order in out:
            if isinstance(order, m.HandOver):
                machine.start(order.uid, order.container, order.grant_id, order.share)
        for uid, container in machine.take_ended(now):
            lease_now = agent.store.lease(uid, container)
            ended: m.Input = m.ContainerEnded(uid, container)
            if lease_now is not None and self._is_serving(agent, lease_now):
                ended = m.ServerEnded(uid, container, lease_now.grant_id)
            out += self._handle(agent, machine, ended, now)
        return out

    def _start_and_stop(self, agent: Agent, machine: Machine, event: m.Input, now: float) -> list[m.Command]:
        """The containers that start and stop because of this input."""
        out: list[m.Command] = []
        match event:
            case m.GrantReceived():
                for container in event.grant.grant.containers:
                    out += self._start(agent, event.grant.uid, container, now)
            case m.SyncReceived():
                for grant in agent.store.startable():
                    for container in grant.grant.containers:
                        out += self._start(agent, grant.uid, container, now)
                for lease in [one for one in agent.store.leases if self._ends(agent, one)]:
                    machine.stop(lease.uid, lease.container, now)
            case m.ReleaseReceived():
                known = agent.store.get(event.release.grant_id)
                for lease in agent.store.leases_of(event.release.grant_id):
                    if known is not None and not known.is_serving:
                        machine.stop(lease.uid, lease.container, now)
        return out

    @staticmethod
    def _is_serving(agent: Agent, lease: Lease) -> bool:
        known = agent.store.get(lease.grant_id)
        return known is not None and known.is_serving

    @staticmethod
    def _ends(agent: Agent, lease: Lease) -> bool:
        """Whether a container that uses another node's GPU has to end, because no leader knows its grant."""
        known = agent.store.get(lease.grant_id)
        return known is not None and known.is_client and known.releasing

    @staticmethod
    def _handle(agent: Agent, machine: Machine, event: m.Input, now: float) -> list[m.Command]:
        """The agent's commands, and those that follow from what they order of servers."""
        out = agent.handle(event, now)
        return out + Fleet._serve(agent, machine, out, now)

    @staticmethod
    def _serve(agent: Agent, machine: Machine, orders: list[m.Command], now: float) -> list[m.Command]:
        """Servers for other nodes start as soon as they have their share, and end when they have to."""
        out: list[m.Command] = []
        for order in orders:
            match order:
                case m.Serve():
                    machine.start(order.uid, order.container, order.grant_id, order.share)
                    out += agent.handle(m.ServerStarted(order.uid, order.container, order.grant_id), now)
                case m.FindServer():  # of the process before, with which its machine has ended
                    found = m.ServerFound(order.uid, order.container, order.grant_id, runs=False)
                    out += Fleet._handle(agent, machine, found, now)
                case m.EndServer():
                    machine.stop(order.uid, order.container, now)
        return out

    def _start(self, agent: Agent, uid: str, container: str, now: float) -> list[m.Command]:
        known = agent.store.find_by_pod(uid)
        if known is not None and known.is_serving:
            return []  # its container is on another node, and its server starts by itself
        started = agent.handle(m.StartRequested(uid, container), now)
        # A grant that was refused as old or as released belongs to no pod that placement should be asked about.
        return [command for command in started if not isinstance(command, m.FetchGrant)]
