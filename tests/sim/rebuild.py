"""P6: a book rebuilt from the log, a list and the nodes' answers equals the one that was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.placement import messages as m
from services.placement.core import Core
from shared.contracts.node_commands import NodeSyncAnswer
from tests.sim.nats import Violation
from tests.support.harness.placement import mark_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


def compare_with_rebuilt(simulation: Simulation, kept: Core) -> None:
    """Nothing outside is informed of the rebuilding: agents are asked what they hold, and get no orders."""
    term, records = simulation.nats.end + 1, simulation.nats.records()
    core = Core("rebuilt")
    todo: list[m.Input] = [
        m.TermTaken(term, records, mark_of(records, records[-1][0] if records else simulation.nats.end))
    ]
    todo += [
        m.InventorySeen(n.agent.gpus.inventory) for n in simulation.nodes.values() if n.agent.gpus.inventory is not None
    ]
    while todo:
        for command in core.handle(todo.pop(0), simulation.clock.now):
            match command:
                case m.TakeSnapshot():
                    todo.insert(0, m.SnapshotSeen(tuple(simulation.api.snapshot())))
                case m.SendSync():
                    node = simulation.nodes[command.sync.node]
                    # `answer` alone: a sync that is applied would change the agent, which also releases what is void.
                    dead = tuple(
                        g.grant.grant_id
                        for g in command.sync.grants
                        if g.grant.grant_id in node.agent.released or node.agent.syncs.is_void(g.grant)
                    )
                    told = node.agent.syncs.answer(command.sync).body
                    assert isinstance(told, NodeSyncAnswer)
                    boot = node.agent.gpus.inventory.boot_id if node.agent.gpus.inventory else ""
                    todo.append(
                        m.SyncAnswered(
                            NodeSyncAnswer(
                                node=node.name,
                                boot_id=boot,
                                term=term,
                                accepted=True,
                                number=command.sync.number,
                                live=node.agent.live(),
                                tombstones=dead,
                                suspension=told.suspension,
                                on_host=told.on_host,
                                cannot_checkpoint=told.cannot_checkpoint,
                            )
                        )
                    )
                case m.SendGrant() if simulation.nodes[command.node].agent.syncs.is_void(command.grant.grant):
                    # Of a pod that was bound by a Binding of the past while it was excluded.
                    todo.append(
                        m.GrantAcknowledged(
                            command.node, command.grant.grant.grant_id, ok=False, reason="void", dead=True
                        )
                    )
                case m.SendRelease():
                    node = simulation.nodes[command.node]
                    if not node.agent.store.leases_of(command.release.grant_id):
                        todo.append(m.ReleaseSeen(command.node, command.release.grant_id))
                case m.Append() if core.phase == "readying":
                    todo.append(m.Appended(term + 1))
                case m.Again():
                    todo.append(m.Tick())
    if core.phase not in ("leading", "touching", "over"):
        raise Violation(f"P6: the rebuilt book is stuck in {core.phase}")
    if core.phase != "leading":
        return  # the log is not complete: pods would be touched first, and a log that has lost records deleted before
    mine, theirs = core.book.digest(), kept.book.digest()
    for uid in [uid for uid in kept.queue if uid in core.holds] if kept.backfill.kept else ():
        # What was reserved for others is not, by a new leader: it has placed a pod that was kept off.
        mine.pop(f"room/{uid}", None)
        mine.pop(f"grant/{core.book.pods[uid].grant_id}", None)
    if mine != theirs:
        differs = {k: (theirs.get(k), mine.get(k)) for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k)}
        raise Violation(f"P6: the kept and the rebuilt book differ: {differs}")
