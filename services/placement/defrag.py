"""Which moves make room for the least disturbance. Advice only: nothing is moved, and nothing is advised that was not tried.

For one pod: on each node that could ever take it, the cheapest pods are lifted until it fits, and those that need not move
are put back; then all that were lifted must find a place elsewhere, beside it and beside each other. The price is what the
moves disturb, in GPU-seconds (`explaining.movable`). For groups of idle GPUs the same is done for stand-ins that want whole
GPUs, after as many of them as find room without any move have taken it, so that no move tears another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from services.placement.engine import Engine
from services.placement.explaining.movable import as_move
from services.placement.explaining.moves import opens
from services.placement.explaining.steps import Steps
from services.placement.explaining.trial import Trial
from services.placement.policies.base import largest_ask
from shared.book.movable import Movable, disruptions_fit, price_of, why_not
from shared.book.states import NodeState, PodState, pod_state
from shared.contracts.explain import Advice
from shared.model import names
from shared.model.objects import Container, Meta, Pod, PodSpec, Resources, Toleration

GPUS_MOST = 64
GROUPS_MOST = 64
_NODES_TRIED = 24
_NODES_A_STEP = 16
_NAMESPACE = "kerf-advice"
"""Of stand-ins; a namespace of that name may exist all the same, for uids tell pods apart."""


class Goal(msgspec.Struct, frozen=True):
    """Room for one pod (`state`), or `groups` more groups of `gpus` idle GPUs on one node."""

    state: PodState | None = None
    gpus: int = 0
    groups: int = 1


class _Room(msgspec.Struct, frozen=True):
    """One way to make room on a node."""

    price_gpu_ms: int
    node: str
    moved: tuple[tuple[Movable, str], ...]
    """With the node that each goes to."""


def advise(engine: Engine, goal: Goal, now: float, most_gpu_seconds: int = 0) -> Steps[Advice]:
    """`now`: seconds since 1970. `most_gpu_seconds`: what may be disturbed in all, 0 for any. The engine's book must stand
    still meanwhile (`trial.undisturbed`)."""
    plan = _Plan(engine, now, most_gpu_seconds)
    if goal.state is not None:
        if goal.state.never_preempts:
            return Advice(sentence="its preemptionPolicy is Never: nobody is asked to make room for it")
        state = plan.world.book.add(goal.state)
        if plan.world.place(state) is not None:
            return Advice(sentence="it fits without any move")
        made = yield from plan.make_room(state)
        return plan.told(f"would make room for it on {plan.node}" if made else "no moves were found that would make room for it")
    before = 0
    while plan.world.place(plan.world.book.add(_stand_in(goal.gpus, before))) is not None:
        before += 1
        yield
    after = before
    while after < before + goal.groups:
        made = yield from plan.make_room(plan.world.book.add(_stand_in(goal.gpus, after)))
        if not made:
            break
        after += 1
    of = f"of {goal.gpus} idle GPU{'s' if goal.gpus > 1 else ''}"
    words = (
        f"would make {after - before} more group{'s' if after - before > 1 else ''} {of}"
        if plan.done
        else f"no moves were found that would make one more group {of}"
    )
    return msgspec.structs.replace(plan.told(words), node="", places_before=before, places_after=after)


class _Plan:
    """The moves so far, carried out in `world`."""

    def __init__(self, engine: Engine, now: float, most_gpu_seconds: int) -> None:
        self.engine, self.now = engine, now
        self.world = Trial(engine)
        self.left_gpu_ms = most_gpu_seconds * 1000 if most_gpu_seconds else None
        self.done: list[tuple[Movable, str]] = []
        self.node = ""
        self.kept: Counter[str] = Counter()

    def make_room(self, state: PodState) -> Steps[bool]:
        """The cheapest of the ways that were tried, for one more pod."""
        best: _Room | None = None
        row = self.world.engine.row(state)
        row.refresh()
        self.kept.clear()
        guesses = []
        for count, node in enumerate(list(self.world.book.nodes.values())):
            if row.passes[node.row] and (guess := self._guess(state, node)):
                guesses.append((sum(one.price_gpu_ms for one in guess), node.name, guess))
            if count % _NODES_A_STEP == 0:
                yield
        for _, name, guess in sorted(guesses, key=lambda g: g[:2])[:_NODES_TRIED]:
            room = self._try(state, name, guess)
            if room is not None and (best is None or room.price_gpu_ms < best.price_gpu_ms):
                best = room
            yield
        if best is not None:
            self._carry_out(state, best)
        return best is not None

    def _guess(self, state: PodState, node: NodeState) -> list[Movable]:
        """Pods of a node that may move, in the order in which to lift them until there is room; empty where all would not do."""
        book, moved = self.world.book, {one.uid for one, _ in self.done}
        movable: list[Movable] = []
        for other in node.pods.values():
            reason = "moved already" if other.uid in moved else why_not(other, book, self.now, priority=state.pod.spec.priority)
            if not reason:
                movable.append(price_of(other, book, self.now))
            elif other.ours and other.pod.metadata.namespace != _NAMESPACE:
                self.kept[reason] += 1
        if not opens(state, node, [node.pods[one.uid] for one in movable], book):
            return []
        ask = largest_ask(state)
        if ask is None or not ask.whole:
            return sorted(movable, key=lambda one: one.order)
        return _by_gpu(node, {one.uid: one for one in movable})

    def _try(self, state: PodState, name: str, guess: Sequence[Movable]) -> _Room | None:
        lifted: list[Movable] = []
        trial = Trial(self.world.engine)
        for one in guess:
            trial.book.lift(one.uid)
            lifted.append(one)
            if trial.could_go(trial.book.pods[state.uid], name):
                break
        else:
            return None
        for one in sorted(lifted, key=lambda one: one.order, reverse=True):
            rest = [other for other in lifted if other is not one]
            without = self._lifting(rest)
            if rest and without.could_go(without.book.pods[state.uid], name):
                lifted, trial = rest, without
        price_gpu_ms = sum(one.price_gpu_ms for one in lifted)
        together = [self.engine.book.pods[one.uid] for one in (*(one for one, _ in self.done), *lifted)]
        if (self.left_gpu_ms is not None and price_gpu_ms > self.left_gpu_ms) or not disruptions_fit(together, self.engine.book):
            return None
        trial.place_on(trial.book.pods[state.uid], name)
        moved: list[tuple[Movable, str]] = []
        for one in sorted(lifted, key=lambda one: (-one.gpu_milli, one.uid)):
            place = trial.place(trial.book.pods[one.uid])
            if place is None or place.node == name:
                return None
            moved.append((one, place.node))
        return _Room(price_gpu_ms, name, tuple(moved))

    def _lifting(self, pods: Iterable[Movable]) -> Trial:
        trial = Trial(self.world.engine)
        for one in pods:
            trial.book.lift(one.uid)
        return trial

    def _carry_out(self, state: PodState, room: _Room) -> None:
        for one, _ in room.moved:
            self.world.book.lift(one.uid)
        self.world.place_on(state, room.node)
        for one, target in room.moved:
            self.world.place_on(self.world.book.pods[one.uid], target)
        self.done += room.moved
        self.node = room.node
        self.left_gpu_ms = None if self.left_gpu_ms is None else self.left_gpu_ms - room.price_gpu_ms

    def told(self, words: str) -> Advice:
        moves = tuple(as_move(one, target, self.engine.book) for one, target in self.done)
        disturbed = sum(move.disturbed_gpu_seconds for move in moves)
        sentence = f"{len(moves)} move{'' if len(moves) == 1 else 's'} {words}, for {disturbed} disturbed GPU-seconds" if moves else words
        kept = tuple(f"{count} pod{'' if count == 1 else 's'}: {reason}" for reason, count in self.kept.most_common())
        return Advice(sentence=sentence, moves=moves, node=self.node, disturbed_gpu_seconds=disturbed, kept=kept)


def _by_gpu(node: NodeState, movable: dict[str, Movable]) -> list[Movable]:
    """Whole GPUs: those that are cheapest to empty first, each emptied before the next; then what has no GPU."""
    on: dict[str, list[str]] = {room.uuid: [] for room in node.gpus if room.usable and room.mig is None}
    for held in node.grants.values():
        for uuid in {share.uuid for container in held.grant.containers.values() for share in container.gpus}:
            if uuid in on:
                on[uuid].append(held.uid)
    emptied = [uids for uids in on.values() if uids and all(uid in movable for uid in uids)]
    emptied.sort(key=lambda uids: sum(movable[uid].price_gpu_ms for uid in uids))
    ordered = [movable[uid] for uid in dict.fromkeys(uid for uids in emptied for uid in uids)]
    return ordered + sorted((one for one in movable.values() if one.gpu_milli == 0), key=lambda one: one.order)


def _stand_in(gpus: int, number: int) -> PodState:
    """A pod that wants nothing but whole GPUs of one node, tolerates everything, and is of the highest priority."""
    limits: dict[str, str | int] = {names.RESOURCE_GPU: gpus}
    spec = PodSpec(
        scheduler_name=names.SCHEDULER_NAME, priority=1 << 31, tolerations=(Toleration(key=names.TAINT_MANAGED, operator="Exists"),),
        containers=(Container(name="main", resources=Resources(limits=limits)),),
    )  # fmt: skip
    return pod_state(
        Pod(metadata=Meta(name=f"group-{number}", namespace=_NAMESPACE, uid=f"advice/{number}", resource_version="0"), spec=spec)
    )
