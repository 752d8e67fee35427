"""What nodes answer when placement asks them to hold members of a gang: the agent's own core says whether they may be
held, and a draw whether their programs come to a stop. No answer is a no, as in the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.node_agent import messages as a
from services.placement import messages as m
from services.placement.leader.session import HOLD_ANSWER_S
from shared.contracts.node_commands import NodeHoldAnswer
from tests.sim.clock import first_only

if TYPE_CHECKING:
    from tests.sim.leaders import Leader
    from tests.sim.simulation import Simulation

BECOMES_QUIET = 0.8
"""Of the attempts while faults are drawn."""


def ask(simulation: Simulation, leader: Leader, order: m.SendHold) -> None:
    node, asked = simulation.nodes[order.hold.node], order.hold

    def said_first(reason: str) -> None:
        if asked.hold_s:
            simulation.turns.happened["held", "refused" if reason else "quiet"] += 1
            leader.hear(
                m.HoldAnswered(order.plan_id, order.gang, order.attempt, asked.node, ok=not reason, reason=reason)
            )

    answered = first_only(said_first)
    in_session = leader.while_leading
    calm, draw = simulation.network.calm, simulation.turns.rng

    def reply(reason: str) -> None:
        simulation.network.send(node.name, leader.name, in_session(lambda: answered(reason)))

    def came() -> None:
        for said in node.handle(a.HoldReceived(asked)):
            if isinstance(said, a.Answer) and isinstance(said.body, NodeHoldAnswer):
                reason, after_s = said.body.reason, 0.0
            elif isinstance(said, a.HoldPods):
                quiet = calm or draw.random() < BECOMES_QUIET
                reason, after_s = (
                    "" if quiet else "a process waits for its peer",
                    0.2 if calm else draw.uniform(0.1, 4.0),
                )
            else:
                continue
            simulation.clock.after(after_s, lambda reason=reason: reply(reason))  # type: ignore[misc]

    simulation.network.send(leader.name, node.name, came)
    simulation.clock.after(HOLD_ANSWER_S, in_session(lambda: answered("no answer")))
