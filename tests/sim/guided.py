"""A search for worlds that reach new states: worlds that reached one are begun again and go on otherwise.

A state is abstract: what the last fault was, in which phases the leaders are, and from which state to which a pod
changed. A pod's state is what the API server has of it, what its node has and runs, and what the leader's book says. A
world that met new ones is kept. A *fork* of it is the same world up to shortly before such a moment, and all that is
drawn afterwards is drawn from another number. `Simulation(seed, forks)` replays it exactly.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from shared.model import names
from shared.model.suspension import annotated_suspension
from tests.sim.nats import Violation
from tests.sim.simulation import Fork, Simulation

State = tuple[object, ...]
EARLIER_S = 1.5
"""At most so long before the new state a fork begins."""


class Coverage:
    """The states that worlds have reached; `fresh` are the times at which the present one met new ones."""

    def __init__(self) -> None:
        self.states: set[State] = set()
        self.fresh: list[float] = []
        self._pods: dict[str, State] = {}

    def begin(self) -> None:
        self.fresh, self._pods = [], {}

    def look(self, simulation: Simulation) -> None:
        """After a step that has changed something."""
        phases = tuple("" if leader.core is None else leader.core.phase for leader in simulation.leaders)
        pods = self._pods
        for pod in simulation.api.all("Pod"):
            uid = pod["metadata"]["uid"]
            state = _pod(simulation, pod)
            before = pods.get(uid)
            if before == state:
                continue
            pods[uid] = state
            met = (simulation.last_fault, phases, before, state)
            if met not in self.states:
                self.states.add(met)
                self.fresh.append(simulation.clock.now)


def _pod(simulation: Simulation, pod: dict) -> State:  # type: ignore[type-arg]
    meta = pod["metadata"]
    uid, notes, at = meta["uid"], meta.get("annotations") or {}, pod["spec"].get("nodeName", "")
    node, core = simulation.nodes.get(at), simulation.leading()
    known = None if node is None else node.agent.store.find_by_pod(uid)
    state = None if core is None else core.book.pods.get(uid)
    held = None if core is None or state is None else core.book.grants.get(state.grant_id)
    return (
        bool(at),
        pod["status"].get("phase"),
        "deletionTimestamp" in meta,
        names.ANNOTATION_TOUCHED in notes,
        names.ANNOTATION_RESIZE in notes,
        annotated_suspension(notes)[:24],
        known is not None and (known.unbound, known.releasing, known.runs, known.grant.grant.amendment > 0),
        node is not None and any(key[0] == uid for key in node.running),
        core is not None and uid in core.holds,
        held is not None and held.phase,
    )


class World(NamedTuple):
    seed: int
    forks: tuple[Fork, ...]

    @property
    def replay(self) -> str:
        return f"--seed {self.seed}" + "".join(f" --fork {at_s!r}:{number}" for at_s, number in self.forks)


class Found(NamedTuple):
    states: int
    worlds: int
    kept: int
    failed: list[tuple[World, str]]


class _Kept:
    """A world that met new states, and how often it was forked."""

    def __init__(self, world: World, moments: list[float]) -> None:
        self.world, self.moments, self.forked = world, moments, 0

    @property
    def worth(self) -> float:
        return len(self.moments) / (1 + self.forked)


def search(
    budget_s: float, *, guided: bool, first: int = 0, clock: Callable[[], float] = time.process_time, draw: int = 0
) -> Found:
    """Runs worlds for so many seconds of this process's CPU. Not guided: seeds one after the other."""
    rng, coverage, end = random.Random(f"guided {draw}"), Coverage(), clock() + budget_s
    kept: list[_Kept] = []
    failed: list[tuple[World, str]] = []
    seed, worlds = first, 0
    while clock() < end:
        if guided and kept and rng.random() < 0.7:
            parent = rng.choices(kept, [one.worth for one in kept])[0]
            parent.forked += 1
            at_s = max(0.0, rng.choice(parent.moments) - rng.uniform(0.0, EARLIER_S))
            before = tuple(fork for fork in parent.world.forks if fork[0] < at_s)
            world = World(parent.world.seed, (*before, (round(at_s, 3), rng.randrange(1 << 30))))
        else:
            world, seed = World(seed, ()), seed + 1
        coverage.begin()
        simulation = Simulation(world.seed, world.forks)
        simulation.observe = coverage.look
        worlds += 1
        try:
            simulation.run()
        except Violation as violation:
            failed.append((world, str(violation)))
        moments = [at for at in coverage.fresh if at < simulation.faulty_until]
        if moments:
            kept.append(_Kept(world, moments))
    return Found(len(coverage.states), worlds, len(kept), failed)
