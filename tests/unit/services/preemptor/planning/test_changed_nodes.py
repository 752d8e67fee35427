"""A core that follows changes knows the same of each node as one that looks at everything anew."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from services.preemptor import messages as m
from services.preemptor.planning.bounds import Bounds
from services.preemptor.planning.changed_nodes import ChangedNodes
from services.preemptor.planning.victims import Candidates
from shared.book.states import PodState
from shared.contracts.facts import Gone, Put
from shared.model.life import STUCK_S
from tests.support import build
from tests.support.harness.preemptor import NOW, TOTAL_MIB, Preemptor
from tests.unit.services.preemptor.planning.objects import budget

NODES = ("a", "b", "c")
GPUS = 3


def _anew(preemptor: Preemptor) -> Candidates:
    core = preemptor.core
    mine = core._candidates
    return Candidates(
        core.book,
        core.gangs,
        mine._preemption_policy,
        mine._is_exempt,
        ChangedNodes(core.book),
        left=mine._budgets._left,
        non_disruptive=mine.non_disruptive,
        uses_mib=mine._uses_mib,
        leaving_s=mine._leaving_s,
    )


def _known(candidates: Candidates, preemptor: Preemptor, states: list[PodState]) -> dict[str, object]:
    candidates.begin(preemptor.now, ())
    nodes = list(preemptor.core.book.nodes.values())
    found: dict[str, object] = {node.name: candidates.leaving(node) for node in nodes}
    for state in states:
        found |= {f"{node.name} for {state.key}": candidates.on(node, state) for node in nodes}
        found |= {
            f"bound on {node.name} for {state.key}": bound
            for bound, node in Bounds(candidates, nodes, wait_for_release=False).nodes(state, ())
        }
    return found


_STEPS = ("run", "run", "slice", "end", "release", "delete", "touch", "label", "budget", "inventory", "void", "tick")
"""Methods of `_Walk`."""


class _Walk:
    """Changes a cluster at random, at one moment: prices stay what they are."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.preemptor = Preemptor(*NODES, gpus=GPUS, checkpoints=True)
        self.number = 0
        self.left: list[str] = []
        """Pods that are gone, and whose nodes have not released their grants."""

    def step(self) -> None:
        getattr(self, self.rng.choice(_STEPS))()

    def _some(self) -> str | None:
        return self.rng.choice(sorted(self.preemptor.pods)) if self.preemptor.pods else None

    def _put(self, name: str, **meta: object) -> None:
        pod = build.newer(self.preemptor.pods[name])
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **meta))
        self.preemptor.pods[name] = pod
        self.preemptor.send(m.FactsSeen((Put(object=pod),)))

    def run(self, **more: int) -> None:
        self.number += 1
        self.preemptor.run(
            f"p{self.number}",
            self.rng.choice(NODES),
            self.rng.randrange(GPUS),
            ran_s=self.rng.choice((5, 60, 900)),
            priority=self.rng.choice((0, 1, 200)),
            labels={"app": self.rng.choice("xy")},
            **more,
        )

    def slice(self) -> None:
        self.run(memory_mib=20_480)

    def end(self) -> None:
        if (name := self._some()) is not None:
            self.left.append(name)
            self.preemptor.send(m.FactsSeen((Gone(object=self.preemptor.pods.pop(name)),)))

    def release(self) -> None:
        if self.left:
            self.preemptor.send(m.GrantOver(f"grant-{self.left.pop()}"))

    def inventory(self) -> None:
        """A GPU fails or is gone, or all are well again."""
        node, self.number = self.rng.choice(NODES), self.number + 1
        states, there = {self.rng.randrange(2 * GPUS): "unhealthy"}, self.rng.choice((GPUS, GPUS, GPUS - 1))
        made = build.inventory(node, gpus=there, generation=self.number, states=states, park_mib=8 * TOTAL_MIB)
        self.preemptor.send(m.InventorySeen(made))

    def void(self) -> None:
        """The node gives back the grant of a pod that stays, as where its GPU is gone."""
        if (name := self._some()) is not None:
            self.preemptor.send(m.GrantOver(f"grant-{name}"))

    def delete(self) -> None:
        if (name := self._some()) is not None:
            until = datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=self.rng.choice((-3600, 30)))
            self._put(name, deletion_timestamp=until.strftime("%Y-%m-%dT%H:%M:%SZ"))

    def touch(self) -> None:
        if (name := self._some()) is not None:
            self._put(name, annotations=self.preemptor.pods[name].metadata.annotations | {"note": str(self.number)})

    def label(self) -> None:
        if (name := self._some()) is not None:
            self._put(name, labels={"app": self.rng.choice("xy")})

    def budget(self) -> None:
        self.preemptor.send(m.FactsSeen((Put(object=budget(self.rng.choice((0, 1)), app=self.rng.choice("xy"))),)))

    def tick(self) -> None:
        self.preemptor.send(m.Tick(proposes=False))


@pytest.mark.parametrize("seed", range(30))
def test_what_is_known_by_changes_is_what_is_found_anew(seed: int) -> None:
    walk = _Walk(seed)
    preemptor = walk.preemptor
    waiting = [
        preemptor.wait("whole"),
        preemptor.wait("part", gpus=0, memory="30Gi"),
        preemptor.wait("low", priority=1),
    ]
    for pod in waiting:
        del preemptor.pods[pod.metadata.name]
    states = [preemptor.core.book.pods[pod.metadata.uid] for pod in waiting]
    for _ in range(40):
        walk.step()
        preemptor.send(m.Tick(proposes=False))  # a new budget is noted in a tick
        known = _known(preemptor.core._candidates, preemptor, states)
        assert known == _known(_anew(preemptor), preemptor, states)


def test_what_leaves_is_waited_for_no_longer_than_its_time_though_nothing_changes() -> None:
    preemptor = Preemptor("a", "b", leaving_s=45.0)
    pod = build.newer(preemptor.run("ending", "a", 0))
    until = datetime.fromtimestamp(NOW + 30, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=until))
    preemptor.send(m.FactsSeen((Put(object=pod),)))
    preemptor.run("orphan", "b", 0)
    preemptor.send(m.FactsSeen((Gone(object=preemptor.pods["orphan"]),)))
    node = preemptor.core.book.nodes
    seen = []
    for after_s in (0.0, 44.0, 46.0, 30.0 + STUCK_S):
        candidates = preemptor.core._candidates.begin(NOW + after_s, ())
        seen.append(tuple(len(candidates.leaving(node[name])) for name in "ab"))
    assert seen == [(1, 1), (1, 1), (1, 0), (0, 0)]


def test_unchanged_nodes_are_not_looked_at_again() -> None:
    preemptor = Preemptor(*NODES)
    changed = ChangedNodes(preemptor.core.book)
    assert changed.take() is None  # nothing was looked at before
    assert changed.take() == set()
    preemptor.run("p", "b", 0)
    assert changed.take() == {"b"}
    assert changed.take() == set()
    changed.note(("c",))
    assert changed.take() == {"c"}
    changed.note_all()
    assert changed.take() is None
