"""Which migrations free capacity at the least cost. Advice only: nothing is migrated, and only tried moves are advised.

For one pod: on each node that could ever take it, the cheapest pods are removed until it fits, and those that need not
move are put back; then all removed pods must find another place, beside it and beside each other. The cost is what the
moves disturb, in GPU-seconds (`shared.book.disruption_cost`). For a gang this is done for one member after the other in
one copy of the book: either all have room then, or nothing is advised. For groups of idle GPUs it is done for
placeholder pods that request whole GPUs, after as many of them as fit without any move have been placed, so that no
move breaks another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from services.placement.engine.engine import Engine, Place
from services.placement.engine.placeholder import NAMESPACE, placeholder_pod
from services.placement.explain.disruption_cost import as_move
from services.placement.explain.migrations import opens
from services.placement.explain.steps import Steps
from services.placement.policies.base import largest_ask
from services.placement.scheduling.trial import Trial
from shared.book.arrays import Bools
from shared.book.book import Book
from shared.book.disruption_cost import DisruptionCost, disruptions_fit, price_of, why_not_disruptable
from shared.book.levels import value_on
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Advice, AdvisedPlace
from shared.scheduling.minimal_sets import add_until_enough, put_back_unneeded
from shared.scheduling.transaction import ChangeList

GPUS_MOST = 64
GROUPS_MOST = 64
_NODES_TRIED = 24
_NODES_A_STEP = 16
_AREAS_TRIED = 8


class Goal(msgspec.Struct, frozen=True):
    """Room for these pods together (`states`), or `groups` more groups of `gpus` idle GPUs on one node."""

    states: tuple[PodState, ...] = ()
    gang: str = ""
    """The pods that the advice is for."""
    within: str = ""
    """The label of which all of their nodes must have one value: a gang's required topology."""
    begun: frozenset[str] = frozenset()
    """The values where the gang has begun: no others then."""
    waits: bool = False
    """They are queued: they get the room as soon as it is free, so a pod that moved may come back beside them."""
    busy: frozenset[str] = frozenset()
    """Nodes that no pod may move to, and that none of these pods goes to."""
    can_spare: Callable[[str, Collection[str]], bool] | None = None
    """Whether a gang can do without a member when these pods go too (`Gangs.can_spare`); None: no gang member moves."""
    spared: Callable[[PodState], str] | None = None
    """Why a pod is left alone, beside what always keeps one (`why_not_disruptable`); empty where it may move."""
    gpus: int = 0
    groups: int = 1


class _Room(msgspec.Struct, frozen=True):
    """One option on one node."""

    node: str
    moved: tuple[tuple[DisruptionCost, str], ...]
    """With the node that each goes to."""

    @property
    def price_gpu_ms(self) -> int:
        return sum(one.price_gpu_ms for one, _ in self.moved)

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The cheapest, then the fewest moves, then the youngest pods."""
        return self.price_gpu_ms, len(self.moved), -min(one.created_s for one, _ in self.moved), self.node


def advise(engine: Engine, goal: Goal, now: float, most_gpu_seconds: int = 0) -> Steps[Advice]:
    """`now`: seconds since 1970. `most_gpu_seconds`: the limit of what may be disturbed, 0 for none. The engine's book
    must not change meanwhile (`trial.undisturbed`)."""
    if goal.states:
        return (yield from _for_pods(engine, goal, now, most_gpu_seconds))
    plan = _Plan(engine, goal, now, most_gpu_seconds)
    before = 0
    while plan.world.place(plan.world.book.add(placeholder_pod(goal.gpus, before))) is not None:
        before += 1
        yield
    after = before
    while after < before + goal.groups:
        made = yield from plan.make_room(plan.world.book.add(placeholder_pod(goal.gpus, after)))
        if not made:
            break
        after += 1
    of = f"of {goal.gpus} idle GPU{'s' if goal.gpus > 1 else ''}"
    words = (
        f"would make {after - before} more group{'s' if after - before > 1 else ''} {of}"
        if plan.done
        else f"no moves were found that would make one more group {of}"
    )
    return msgspec.structs.replace(plan.told(words), places_before=before, places_after=after)


def _for_pods(engine: Engine, goal: Goal, now: float, most_gpu_seconds: int) -> Steps[Advice]:
    if any(state.never_preempts for state in goal.states):
        return Advice(sentence="its preemptionPolicy is Never: no pod is moved for it")
    best: _Plan | None = None
    plan = _Plan(engine, goal, now, most_gpu_seconds)
    for area in _areas(engine.book, goal.within, goal.begun):
        plan = _Plan(engine, goal, now, most_gpu_seconds, area)
        made = yield from plan.make_room_for_all()
        if made and (best is None or plan.price_gpu_ms < best.price_gpu_ms):
            best = plan
        if best is not None and not best.done:
            return Advice(
                sentence=f"all of {goal.gang} fit without any move" if goal.gang else "it fits without any move"
            )
    beneficiary = f"{len(goal.states)} pods of gang {goal.gang}" if goal.gang else "it"
    if best is None:
        plan.done.clear()  # capacity was freed for some of them, and not for all
        return plan.told(f"no moves were found that would free enough capacity for {beneficiary}")
    nodes = sorted({place.node for place in best.places})
    told = best.told(f"would free enough capacity for {beneficiary} on {', '.join(nodes)}")
    return msgspec.structs.replace(told, node="" if goal.gang else nodes[0], places=tuple(best.places))


def _areas(book: Book, label: str, begun: frozenset[str]) -> list[tuple[str, str] | None]:
    """Where all the nodes of a goal must be, the emptiest first; None for anywhere."""
    if not label:
        return [None]
    idle: Counter[str] = Counter()
    for name, node in book.nodes.items():
        value = value_on(book, name, label)
        if value and node.gpus and (not begun or value in begun):
            idle[value] += sum(max(0, room.free_milli) for room in node.gpus)
    return [(label, value) for value, _ in sorted(idle.items(), key=lambda item: (-item[1], item[0]))[:_AREAS_TRIED]]


class _Plan:
    """The moves so far, carried out in `world`."""

    def __init__(
        self, engine: Engine, goal: Goal, now: float, most_gpu_seconds: int, area: tuple[str, str] | None = None
    ) -> None:
        self.engine, self.goal, self.now = engine, goal, now
        self.world = Trial(engine)
        self.left_gpu_ms = most_gpu_seconds * 1000 if most_gpu_seconds else None
        self.price_gpu_ms = 0
        self.done: list[tuple[DisruptionCost, str]] = []
        self.places: list[AdvisedPlace] = []
        self.kept: Counter[str] = Counter()
        self._rows = self._where(area)

    def make_room_for_all(self) -> Steps[bool]:
        """The largest request first, as when a gang is placed."""
        for given in sorted(
            self.goal.states, key=lambda s: s.request.hardest.hardness if s.request else (), reverse=True
        ):
            state = self.world.book.add(given)
            place = self.world.place(state, self._rows)
            node = place.node if place is not None else (yield from self.make_room(state))
            if not node:
                return False
            self.places.append(
                AdvisedPlace(namespace=state.pod.metadata.namespace, name=state.pod.metadata.name, node=node)
            )
            yield
        return True

    def make_room(self, state: PodState) -> Steps[str]:
        """The cheapest of the ways that were tried, for one more pod. Returns its node; empty where there is none."""
        best: _Room | None = None
        row = self.world.engine.row(state)
        row.refresh()
        self.kept.clear()
        guesses = []
        for count, node in enumerate(list(self.world.book.nodes.values())):
            if (
                row.passes[node.row]
                and (self._rows is None or self._rows[node.row])
                and (guess := self._guess(state, node))
            ):
                guesses.append((sum(one.price_gpu_ms for one in guess), node.name, guess))
            if count % _NODES_A_STEP == 0:
                yield
        for _, name, guess in sorted(guesses, key=lambda g: g[:2])[:_NODES_TRIED]:
            room = self._try(state, name, guess)
            if room is not None and (best is None or room.order < best.order):
                best = room
            yield
        if best is None:
            return ""
        self._carry_out(state, best)
        return best.node

    def _where(self, area: tuple[str, str] | None) -> Bools | None:
        """The rows of the nodes that may be looked at; None for all."""
        if area is None and not self.goal.busy:
            return None
        book = self.world.book
        rows = np.zeros(book.arrays.rows, np.bool_)
        for name, node in book.nodes.items():
            rows[node.row] = name not in self.goal.busy and (area is None or value_on(book, name, area[0]) == area[1])
        return rows

    def _guess(self, state: PodState, node: NodeState) -> list[DisruptionCost]:
        """Pods of a node that may move, in the order in which to lift them until there is room; empty where all would
        not do."""
        book, moved, movable = self.world.book, {one.uid for one, _ in self.done}, list[DisruptionCost]()
        going = set(moved)
        for other in sorted(node.pods.values(), key=_came, reverse=True):
            spare = other.gang is not None and self.goal.can_spare is not None and self.goal.can_spare(other.uid, going)
            reason = (
                "moved already"
                if other.uid in moved
                else why_not_disruptable(other, book, self.now, priority=state.pod.spec.priority, spare=spare)
            )
            if not reason and self.goal.spared is not None:
                reason = self.goal.spared(other)
            if not reason:
                movable.append(price_of(other, book, self.now))
                going.add(other.uid)
            elif other.ours and other.pod.metadata.namespace != NAMESPACE:
                self.kept[reason] += 1
        if not opens(state, node, [node.pods[one.uid] for one in movable], book):
            return []
        ask = largest_ask(state)
        if ask is None or not ask.whole:
            return sorted(movable, key=lambda one: one.order)
        return _by_gpu(node, {one.uid: one for one in movable})

    def _try(self, state: PodState, name: str, guess: Sequence[DisruptionCost]) -> _Room | None:
        trial = Trial(self.world.engine)
        leaving = ChangeList[DisruptionCost](trial.transaction, lambda one: trial.transaction.lift(one.uid))

        def is_enough(lifted: Sequence[DisruptionCost]) -> bool:
            leaving.set(lifted)
            return bool(lifted) and trial.could_go(trial.book.pods[state.uid], name)

        enough = add_until_enough(guess, lambda one, _: [one], is_enough)
        if enough is None:
            return None
        dearest_first = sorted(enough, key=lambda one: one.order, reverse=True)
        lifted = put_back_unneeded(enough, [{one.uid} for one in dearest_first], is_enough)
        leaving.set(lifted)
        price_gpu_ms = sum(one.price_gpu_ms for one in lifted)
        together = [self.engine.book.pods[one.uid] for one in (*(one for one, _ in self.done), *lifted)]
        if (self.left_gpu_ms is not None and price_gpu_ms > self.left_gpu_ms) or not disruptions_fit(
            together, self.engine.book
        ):
            return None
        trial.place_on(trial.book.pods[state.uid], name)
        moved: list[tuple[DisruptionCost, str]] = []
        for one in sorted(lifted, key=lambda one: (-one.gpu_milli, one.uid)):
            place = trial.place(trial.book.pods[one.uid])
            if place is None or (place.node == name and not self._may_stay(one, place)):
                return None
            moved.append((one, place.node))
        return _Room(name, tuple(moved))

    def _may_stay(self, one: DisruptionCost, place: Place) -> bool:
        """Whether a pod may move to other GPUs of its node: only if the pod that replaces it is there before it comes
        again. No pod moves to where it is."""
        held = self.engine.book.grants.get(self.engine.book.pods[one.uid].grant_id)
        return self.goal.waits and (held is None or held.grant.containers != place.containers)

    def _carry_out(self, state: PodState, room: _Room) -> None:
        for one, _ in room.moved:
            self.world.book.lift(one.uid)
        self.world.place_on(state, room.node)
        for one, target in room.moved:
            self.world.place_on(self.world.book.pods[one.uid], target)
        self.done += room.moved
        self.price_gpu_ms += room.price_gpu_ms
        self.left_gpu_ms = None if self.left_gpu_ms is None else self.left_gpu_ms - room.price_gpu_ms

    def told(self, words: str) -> Advice:
        moves = tuple(as_move(one, target, self.engine.book) for one, target in self.done)
        disturbed = sum(move.disturbed_gpu_seconds for move in moves)
        sentence = (
            f"{len(moves)} move{'' if len(moves) == 1 else 's'} {words}, for {disturbed} disturbed GPU-seconds"
            if moves
            else words
        )
        kept = tuple(f"{count} pod{'' if count == 1 else 's'}: {reason}" for reason, count in self.kept.most_common())
        return Advice(sentence=sentence, moves=moves, disturbed_gpu_seconds=disturbed, kept=kept)


def _came(state: PodState) -> tuple[str, str]:
    return state.pod.metadata.creation_timestamp, state.pod.metadata.name


def _by_gpu(node: NodeState, movable: dict[str, DisruptionCost]) -> list[DisruptionCost]:
    """Whole GPUs: the cheapest to empty first, then those with the youngest pods, each emptied before the next; then
    pods without GPUs."""
    on: dict[str, list[str]] = {room.uuid: [] for room in node.gpus if room.usable and room.mig is None}
    for held in node.grants.values():
        for uuid in {share.uuid for container in held.grant.containers.values() for share in container.gpus}:
            if uuid in on:
                on[uuid].append(held.uid)
    emptied = [uids for uids in on.values() if uids and all(uid in movable for uid in uids)]
    emptied.sort(
        key=lambda uids: (sum(movable[uid].price_gpu_ms for uid in uids), -min(movable[uid].created_s for uid in uids))
    )
    ordered = [movable[uid] for uid in dict.fromkeys(uid for uids in emptied for uid in uids)]
    return ordered + sorted((one for one in movable.values() if one.gpu_milli == 0), key=lambda one: one.order)
