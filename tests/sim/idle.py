"""Idle pods in the simulation: what a node's programs do is drawn, and its agent's rules say who is idle.

In some of the worlds with turns programs stand still for a while, also when they are suspended, and want their GPU
again at some time; when turns are proposed no more, all of them do. What must hold is in `turns.py`: an idle job waits
for nothing, and whoever wants its GPU waits no longer than it was told.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from services.node_agent import messages as a
from services.node_agent.idle import IdlePods, Seen

if TYPE_CHECKING:
    from tests.sim.nodes import SimNode

LOOK_S, AFTER_S = 1.0, 2.0
WORLDS = 0.5
"""How many of the worlds with turns have idle pods."""


class Idlers:
    """Of one node. All is drawn from its own generator, so that other worlds stay what they are."""

    def __init__(self, node: SimNode) -> None:
        self._node, simulation = node, node.simulation
        self._drawn = simulation.turns.drawn and random.Random(f"{simulation.seed} idle").random() < WORLDS
        self._rng = random.Random(f"{simulation.seed} idle {node.name}")
        self._pods = IdlePods(AFTER_S)
        self._told: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._work: dict[str, int] = {}
        if self._drawn:
            simulation.clock.after(LOOK_S, self._look)

    def agent_begins(self) -> None:
        """It knows nothing of what was before."""
        self._pods, self._told = IdlePods(AFTER_S), ({}, {})

    def _look(self) -> None:
        node = self._node
        if node.alive:
            found = self._pods.look(self._seen(), node.simulation.clock.now)
            if found != self._told:
                self._told = found
                node.simulation.turns.happened["idle", "woken" if found[1] else "some" if found[0] else "none"] += 1
                node.handle(a.IdleSeen(*found))
                node.tell_all()
        node.simulation.clock.after(LOOK_S, self._look)

    def _seen(self) -> list[Seen]:
        active = self._node.simulation.turns.phase in ("resting", "draining")
        seen = []
        for known in self._node.agent.store.known:
            if known.grant.turns is None or known.releasing or known.unbound or known.is_client:
                continue
            suspended = not known.runs
            if active or self._rng.random() < 0.15:
                self._work[known.grant_id] = self._work.get(known.grant_id, 0) + 1
            wants = suspended and (active or self._rng.random() < 0.1)
            work = self._work.get(known.grant_id, 0)
            seen.append(Seen(grant_id=known.grant_id, suspended=suspended, work=work, wants=wants, kernels=False))
        return seen
