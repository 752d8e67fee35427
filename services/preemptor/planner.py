"""The gentlest way to make room: whose leaving lets a pod, or all of a gang, in at the least cost. Pure.

A first word, by what GPUs, CPU and memory a node has: placement has the last one, and refuses a plan that does not hold
against every filter. The gentlest action that will do: first what a pod can give up and go on, then its end. Least important victims first, then the least lost; a set of victims is minimal, for each one of it
that need not go is put back, the dearest first. Of a gang as many go as it can spare, or all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.preemptor.fitting import admits, assign, give, has_room, take
from services.preemptor.victims import Candidate, Candidates, Last
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.preemption import Action
from shared.model.grant import GpuShare
from shared.model.parked import PARKINGS

Bound = tuple[int, int, int, int, int, Last]
_HARDNESS: dict[Action, int] = {"throttle": 1, "pause": 2, "shrink": 3, "move": 4, "checkpoint": 5, "evict": 6}
_NOBODY = -(1 << 31)
_FIRST = Last(("~", "~"))
"""Sorts before whoever came last."""


class Way(msgspec.Struct, frozen=True):
    """One member's place, and who has to go for it."""

    node: str
    victims: tuple[Candidate, ...]
    takes: tuple[GpuShare, ...]

    @property
    def cost(self) -> tuple[int, int, int, int, int, Last, str]:
        """The gentlest action, the least important victims, the least lost, the fewest GPUs, the fewest pods; of equals those who
        came last."""
        victims = self.victims
        oldest = max((victim.last for victim in victims), default=_FIRST)
        milli = sum(v.gpu_milli for v in victims)
        hardest = max((_HARDNESS[v.action] for v in victims), default=0)
        return hardest, max((v.priority for v in victims), default=_NOBODY), sum(v.price_gpu_ms for v in victims), milli, len(victims), oldest, self.node


class Planner:
    """One round on a book that stands still. Plans of one round do not share nodes."""

    def __init__(self, book: Book, candidates: Candidates, busy: set[str]) -> None:
        """`busy`: nodes on which a plan is under way."""
        self._book, self._candidates, self._busy = book, candidates, busy

    def plan(self, members: Sequence[PodState], shunned: frozenset[str] = frozenset(), *, patient: bool = True) -> list[Way] | None:
        """A way for each of them, all at once, without victims where nobody need go; None where there is none. `shunned`: nodes
        that placement has refused for them. `patient`: what is being given back is as good as free."""
        self._patient = patient
        self._gone: dict[str, Candidate] = {}
        self._taken: dict[str, list[GpuShare]] = {}
        self._used: dict[str, list[PodState]] = {}
        self._takers = members
        ways: dict[str, Way] = {}
        for state in sorted(members, key=lambda s: s.request.hardest.hardness if s.request else (), reverse=True):
            way = self._best(state, shunned)
            if way is None:
                return None
            ways[state.uid] = way
            self._gone |= {victim.uid: victim for victim in way.victims}
            self._taken.setdefault(way.node, []).extend(way.takes)
            self._used.setdefault(way.node, []).append(state)
        ways = self._fewest_of_all(members, ways)
        if not self._candidates.let_in(list(self._gone.values()), members):
            return None
        self._candidates.promise(list(self._gone.values()))
        self._busy |= {way.node for way in ways.values()}
        return [ways[state.uid] for state in members]

    def _fewest_of_all(self, members: Sequence[PodState], ways: dict[str, Way]) -> dict[str, Way]:
        """What was freed for a later member may be enough for an earlier one: whoever need not go is put back."""
        if len(members) < 2 or len(self._gone) < 2:
            return ways
        for back in self._put_back(list(self._gone.values())):
            without = {uid: victim for uid, victim in self._gone.items() if uid not in back}
            if len(without) == len(self._gone) or not self._candidates.lets_go(list(without.values()), members):
                continue
            again = self._all_with(members, ways, list(without.values()))
            if again is not None:
                self._gone, ways = without, again
        return ways

    def _all_with(self, members: Sequence[PodState], ways: dict[str, Way], victims: list[Candidate]) -> dict[str, Way] | None:
        """The members on the same nodes with these victims alone, which stand with the first of them."""
        kept = self._taken, self._used
        self._taken, self._used = {}, {}
        found: dict[str, Way] = {}
        for uid in ways:  # in the order in which they were placed
            state = next(s for s in members if s.uid == uid)
            node = self._book.nodes[ways[uid].node]
            takes = self._place(state, node, [*victims, *(self._candidates.leaving(node) if self._patient else ())])
            if takes is None:
                self._taken, self._used = kept
                return None
            found[uid] = Way(node.name, () if found else tuple(victims), takes)
            self._taken.setdefault(node.name, []).extend(takes)
            self._used.setdefault(node.name, []).append(state)
        return found

    def elsewhere(self, ways: Sequence[Way]) -> dict[str, str]:
        """Nodes on which there is room for victims that their controllers make anew, by uid: room that none of these ways needs.
        Those that run for longest first."""
        taken = {way.node for way in ways}
        free = [node for name, node in sorted(self._book.nodes.items()) if name not in self._busy | taken and node.gpus]
        found: dict[str, str] = {}
        for victim in sorted((v for way in ways for v in way.victims if v.action == "evict"), key=lambda v: v.price_gpu_ms, reverse=True):
            state = self._book.pods[victim.uid]
            if state.gang is not None or state.request is None or state.controller is None:
                continue
            for node in free:
                takes = self._place(state, node, ()) if admits(state, node) and has_room(state, node) else None
                if takes is not None:
                    found[victim.uid] = node.name
                    self._taken.setdefault(node.name, []).extend(takes)
                    self._used.setdefault(node.name, []).append(state)
                    break
        self._busy |= set(found.values())
        return found

    def _best(self, state: PodState, shunned: frozenset[str]) -> Way | None:
        best: Way | None = None
        for bound, node in self._by_bound(state):
            if best is not None and best.cost[:6] <= bound:
                break
            if node.name in shunned or not admits(state, node):
                continue
            way = self._way(state, node)
            if way is not None and (best is None or way.cost < best.cost):
                best = way
        return best

    def _by_bound(self, state: PodState) -> list[tuple[Bound, NodeState]]:
        """Nodes with the least that a way on them can cost: nothing where this plan's victims have made room already, or there
        is room that placement has not used yet."""
        found: list[tuple[Bound, NodeState]] = []
        cleared = self._taken.keys() | {victim.node for victim in self._gone.values()}
        for name, node in self._book.nodes.items():
            if name in self._busy or not node.gpus:
                continue
            if name in cleared or has_room(state, node) or (self._patient and self._candidates.leaving(node)):
                found.append(((0, _NOBODY, 0, 0, 0, _FIRST), node))
            elif candidates := self._candidates.on(node, state):
                first, parks = candidates[0], [_HARDNESS[c.parks[0]] for c in candidates if c.parks]
                found.append(((min(parks), _NOBODY, 0, 0, 0, _FIRST) if parks else (_HARDNESS["evict"], first.priority, first.least_gpu_ms, first.gpu_milli, 1, first.last), node))
        found.sort(key=lambda item: (item[0], item[1].name))
        return found

    def _way(self, state: PodState, node: NodeState) -> Way | None:
        """The cheapest victims on this node, none more than it takes."""
        before = [*self._gone.values(), *(self._candidates.leaving(node) if self._patient else ())]
        takes = self._place(state, node, before)
        if takes is not None:
            return Way(node.name, (), takes)
        candidates = [c for c in self._candidates.on(node, state) if c.uid not in self._gone]
        for action in PARKINGS:
            way = self._parking(state, node, [c.parked(action) for c in candidates if action in c.parks], before)
            if way is not None:
                return way
        return self._evicting(state, node, candidates, before)

    def _parking(self, state: PodState, node: NodeState, parked: list[Candidate], before: list[Candidate]) -> Way | None:
        if not parked or self._place(state, node, [*before, *parked]) is None:
            return None
        victims: list[Candidate] = []
        for candidate in parked:
            if self._candidates.lets_go([*self._gone.values(), *victims, candidate], self._takers):
                victims.append(candidate)
                if (takes := self._place(state, node, [*before, *victims])) is not None:
                    return self._fewest(state, node, victims, takes, before)
        return None

    def _evicting(self, state: PodState, node: NodeState, candidates: list[Candidate], before: list[Candidate]) -> Way | None:
        """Those that cost the least one by one, until it fits; or one alone, where that costs less than several."""
        victims: list[Candidate] = []
        for candidate in candidates:
            going = {victim.uid for victim in (*before, *victims)}
            unit = self._unit(state, candidate, going)
            if unit is None or not self._candidates.lets_go([*self._gone.values(), *victims, *unit], self._takers):
                continue
            victims += unit
            if (takes := self._place(state, node, [*before, *victims])) is not None:
                way = self._fewest(state, node, victims, takes, before)
                return way if len(way.victims) < 2 else min((way, *self._alone(state, node, candidates, before)), key=lambda w: w.cost)
        return None

    def _alone(self, state: PodState, node: NodeState, candidates: list[Candidate], before: list[Candidate]) -> list[Way]:
        going, found = {victim.uid for victim in before}, []
        for candidate in candidates:
            unit = self._unit(state, candidate, going)
            takes = None if unit is None else self._place(state, node, [*before, *unit])
            if unit is not None and takes is not None and self._candidates.lets_go([*self._gone.values(), *unit], self._takers):
                found.append(Way(node.name, tuple(unit), takes))
        return found

    def _unit(self, state: PodState, candidate: Candidate, going: set[str]) -> list[Candidate] | None:
        return self._candidates.unit(candidate, going, state) if candidate.may_end and candidate.uid not in going else None

    def _fewest(self, state: PodState, node: NodeState, victims: list[Candidate], takes: tuple[GpuShare, ...], before: list[Candidate]) -> Way:
        """Whoever need not go, the dearest first, is put back."""
        for back in self._put_back(victims):
            without = [victim for victim in victims if victim.uid not in back]
            again = self._place(state, node, [*before, *without])
            if again is not None and self._candidates.lets_go([*self._gone.values(), *without], self._takers):
                victims, takes = without, again
        return Way(node.name, tuple(victims), takes)

    def _put_back(self, victims: Sequence[Candidate]) -> list[set[str]]:
        """Who need not go, perhaps: each by itself, and each gang as a whole; the dearest first."""
        alone = [(victim.cost, {victim.uid}) for victim in victims]
        gangs: dict[str, list[Candidate]] = {}
        for victim in victims:
            gangs.setdefault(self._candidates.gang_of(victim), []).append(victim)
        whole = [(max(v.cost for v in of), {v.uid for v in of}) for name, of in gangs.items() if name and len(of) > 1]
        return [back for _, back in sorted([*whole, *alone], key=lambda item: item[0], reverse=True)]

    def _place(self, state: PodState, node: NodeState, gone: Sequence[Candidate]) -> tuple[GpuShare, ...] | None:
        """The parts of GPUs that it would get, were these gone; None where it does not fit."""
        gone = [candidate for candidate in gone if candidate.node == node.name]
        ends = [candidate for candidate in gone if candidate.action == "evict"]
        others = self._used.get(node.name, [])
        demands = [state.demand, *(other.demand for other in others)]
        if node.cpu_used - sum(c.demand.cpu_milli for c in ends) + sum(d.cpu_milli for d in demands) > node.cpu_total:
            return None
        if node.memory_used - sum(c.demand.memory_bytes for c in ends) + sum(d.memory_bytes for d in demands) > node.memory_total:
            return None
        if len(node.pods) - len(ends) + len(demands) > node.pods_total:
            return None
        rooms = [room.copy() for room in node.gpus]
        by_uuid = {room.uuid: room for room in rooms}
        for candidate in gone:
            for share in candidate.shares:
                if share.uuid in by_uuid:
                    give(by_uuid[share.uuid], share, ends=candidate.action == "evict")
        for share in self._taken.get(node.name, ()):
            take(by_uuid[share.uuid], share)
        return assign(state, node, rooms)
