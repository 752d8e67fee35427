"""Finds the cheapest set of victims that lets a pod or a gang fit. Pure.

A fast pre-check on GPUs, CPU and memory: placement runs all filters and has the final say, and refuses a plan that breaks one.
The least disruptive action that is enough comes first: actions that a pod survives, then eviction. Victims are chosen by lowest
priority, then by least lost work. A set of victims is minimal: each victim that turns out to be unnecessary is put back, the most
expensive first. A gang loses as many members as it can spare, or all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from services.preemptor.actions import evict, move
from services.preemptor.alternatives import Alternatives
from services.preemptor.areas import Areas
from services.preemptor.bounds import Bound, Bounds, Cost, cost_of
from services.preemptor.candidate import Candidate
from services.preemptor.fitting import admits, assign, give, has_room, take
from services.preemptor.trying import Trying
from services.preemptor.victims import Candidates
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.preemption import Alternative
from shared.model.grant import GpuShare

AREAS_MOST = 32
"""A plan is tried in so many areas at once, the cheapest by what is known beforehand first."""
OTHERS_MOST = 4
"""Nodes that are noted as other ways, by their bounds, when the best is known."""
Waits = Callable[[Collection[str]], bool]
"""Whether these, by uid, who end already, are waited for before anybody else is asked."""


def _never(_: Collection[str]) -> bool:
    return False


class Way(msgspec.Struct, frozen=True):
    """One member's place, and who has to go for it."""

    node: str
    victims: tuple[Candidate, ...]
    takes: tuple[GpuShare, ...]

    @property
    def cost(self) -> Cost:
        return cost_of(self.victims, self.node)


class _Found(msgspec.Struct, frozen=True):
    """A way for each member, in one area."""

    cost: Cost
    ways: dict[str, Way]
    gone: dict[str, Candidate]
    taken: dict[str, list[GpuShare]]
    used: dict[str, list[PodState]]


class Planner:
    """One round on a book that stands still. Plans of one round do not share nodes."""

    def __init__(self, book: Book, candidates: Candidates, areas: Areas, busy: set[str]) -> None:
        """`busy`: nodes on which a plan is under way."""
        self._book, self._candidates, self._areas, self._busy = book, candidates, areas, busy
        self.in_vain: frozenset[str] = frozenset()
        """Nodes of the areas that the last plan was tried in, where there was none, and others are left."""
        self.awaits: frozenset[str] = frozenset()
        """uids of who ends already, where the last ways hold only when these are gone too: no plan until then."""
        self._gone: dict[str, Candidate] = {}
        self._taken: dict[str, list[GpuShare]] = {}
        self._used: dict[str, list[PodState]] = {}
        self._others = Alternatives()
        self.alternatives: tuple[Alternative, ...] = ()
        """To the last plan."""

    def plan(
        self, members: Sequence[PodState], excluded: frozenset[str] = frozenset(), *, waits: Waits = _never
    ) -> list[Way] | None:
        """A way for each of them, all at once and in one area, without victims where nobody need go; None where there is none.

        What is being given back is as good as free where it is enough. Where others would have to go too, `waits` says whether the
        members wait for those who end first (`awaits`); else these are left out of account, for placement keeps no place that hangs
        on them. `excluded`: nodes that placement has refused for them."""
        best = self._cheapest(members, excluded, patient=True)
        self.awaits = frozenset() if best is None or not best.gone else self._relied_on(best)
        if self.awaits and not waits(self.awaits):
            best, self.awaits = self._cheapest(members, excluded, patient=False), frozenset()
        if best is None:
            return None
        self._gone, self._taken, self._used = best.gone, best.taken, best.used
        self.alternatives = self._others.beside({way.node for way in best.ways.values()}, best.gone.values())
        self._candidates.promise(list(self._gone.values()))
        self._busy |= {way.node for way in best.ways.values()}
        return [best.ways[state.uid] for state in members]

    def _relied_on(self, found: _Found) -> frozenset[str]:
        """Who ends already on the nodes where the members do not fit without their going."""
        self._gone, self._taken, self._used, self._patient = found.gone, dict(found.taken), dict(found.used), False
        nodes = {way.node for way in found.ways.values()}
        ends = {name: self._candidates.leaving(self._book.nodes[name]) for name in nodes}
        relied = [name for name in nodes if ends[name] and self._placed_again(found.ways, {name}, set()) is None]
        return frozenset(leaving.uid for name in relied for leaving in ends[name])

    def _cheapest(self, members: Sequence[PodState], excluded: frozenset[str], *, patient: bool) -> _Found | None:
        self._patient, self._takers = patient, members
        self.in_vain, self._others, self.alternatives = frozenset(), Alternatives(), ()
        best: _Found | None = None
        areas = self._by_bound(members, excluded)
        for least, _, bounds in areas[:AREAS_MOST]:
            if best is not None and least >= best.cost[:6]:
                break
            found = self._within(bounds, members, best)
            if found is not None:
                self._others.way({way.node for way in found.ways.values()}, found.gone.values())
                best = found
        if best is None and len(areas) > AREAS_MOST:
            self.in_vain = frozenset(node.name for _, _, bounds in areas[:AREAS_MOST] for node in bounds.area)
        return best

    def _by_bound(self, members: Sequence[PodState], excluded: frozenset[str]) -> list[tuple[Bound, str, Bounds]]:
        """The areas, by the least that places for all of them can cost there."""
        found = []
        for area in self._areas.of(members, self._busy | excluded):
            nodes = [node for node in area.nodes if node.name not in self._busy and node.name not in excluded]
            bounds = Bounds(self._candidates, nodes, area.name, patient=self._patient)
            least = bounds.together(members)
            if least is not None:
                found.append((least, area.name, bounds))
        return sorted(found, key=lambda item: item[:2])

    def _within(self, bounds: Bounds, members: Sequence[PodState], best: _Found | None) -> _Found | None:
        """What costs less than the best so far; given up as soon as those who would have to go cost more."""
        self._gone, self._taken, self._used, self._bounds = {}, {}, {}, bounds
        ways: dict[str, Way] = {}
        for state in sorted(members, key=lambda s: s.request.hardest.hardness if s.request else (), reverse=True):
            way = self._best(state)
            if way is None:
                return None
            ways[state.uid] = way
            self._gone |= {victim.uid: victim for victim in way.victims}
            self._settle(state, way.node, way.takes)
            if best is not None and cost_of(self._gone.values(), bounds.name) >= best.cost:
                return None
        ways = self._fewest_of_all(members, ways)
        if not self._candidates.let_in(list(self._gone.values()), members):
            return None
        return _Found(cost_of(self._gone.values(), bounds.name), ways, self._gone, self._taken, self._used)

    def _fewest_of_all(self, members: Sequence[PodState], ways: dict[str, Way]) -> dict[str, Way]:
        """What was freed for a later member may be enough for an earlier one: whoever need not go is put back."""
        if len(members) < 2 or len(self._gone) < 2:
            return ways
        for back in self._put_back(list(self._gone.values())):
            nodes = {self._gone[uid].node for uid in back if uid in self._gone}
            kept = dict(self._taken), dict(self._used)
            again = self._placed_again(ways, nodes, back) if nodes else None
            without = {} if again is None else {uid: victim for uid, victim in self._gone.items() if uid not in back}
            if again is not None and self._candidates.lets_go(list(without.values()), members):
                self._gone, ways = without, ways | again
            else:
                self._taken, self._used = kept
        first = next(iter(ways))
        return {
            uid: Way(way.node, tuple(self._gone.values()) if uid == first else (), way.takes)
            for uid, way in ways.items()
        }

    def _placed_again(self, ways: dict[str, Way], nodes: set[str], back: set[str]) -> dict[str, Way] | None:
        """Those of the members who are on these nodes, without those who are put back."""
        victims = [victim for uid, victim in self._gone.items() if victim.node in nodes and uid not in back]
        for name in nodes:
            self._taken[name], self._used[name] = [], []
        found: dict[str, Way] = {}
        for state in (self._book.pods[uid] for uid, way in ways.items() if way.node in nodes):  # as they were placed
            node = self._book.nodes[ways[state.uid].node]
            takes = self.place(state, node, [*victims, *(self._candidates.leaving(node) if self._patient else ())])
            if takes is None:
                return None
            found[state.uid] = Way(node.name, (), takes)
            self._settle(state, node.name, takes)
        return found

    def elsewhere(self, ways: Sequence[Way]) -> dict[str, str]:
        """Nodes on which there is room for victims that end (`actions.move`), by uid: room that none of these ways needs."""
        taken = {way.node for way in ways}
        free = [
            node
            for name, node in sorted(self._book.nodes.items())
            if name not in self._busy and name not in taken and any(room.free_mib > 0 for room in node.gpus)
        ]
        found = move.elsewhere([victim for way in ways for victim in way.victims], self._book.pods, free, self._take)
        self._busy |= set(found.values())
        return found

    def _take(self, state: PodState, node: NodeState) -> bool:
        """Whether there is room for it, which is counted as taken then."""
        takes = self.place(state, node, ()) if admits(state, node) and has_room(state, node) else None
        if takes is not None:
            self._settle(state, node.name, takes)
        return takes is not None

    def _settle(self, state: PodState, node: str, takes: Sequence[GpuShare]) -> None:
        """It has its place there in this round, and nobody else does."""
        self._taken.setdefault(node, []).extend(takes)
        self._used.setdefault(node, []).append(state)

    def _best(self, state: PodState) -> Way | None:
        best: Way | None = None
        alone, looks = len(self._takers) == 1, 0
        for bound, node in self._bounds.nodes(
            state, self._taken.keys() | {victim.node for victim in self._gone.values()}
        ):
            if best is not None and best.cost[:6] <= bound:
                if not alone or looks == OTHERS_MOST or not best.victims:
                    break
                if admits(state, node):
                    self._others.bound(node.name, bound)
                looks += 1
                continue
            if not admits(state, node):
                continue
            way = self._way(state, node)
            if alone and way is not None:
                self._others.way((node.name,), way.victims)
            if way is not None and (best is None or way.cost < best.cost):
                best = way
        return best

    def _way(self, state: PodState, node: NodeState) -> Way | None:
        """The cheapest victims on this node, none more than it takes."""
        before = [*self._gone.values(), *(self._candidates.leaving(node) if self._patient else ())]
        takes = self.place(state, node, before)
        if takes is not None:
            return Way(node.name, (), takes)
        candidates = [c for c in self._candidates.on(node, state) if c.uid not in self._gone]
        trying = Trying(self.place, self._candidates, state, node, before, list(self._gone.values()), self._takers)
        for action in self._candidates.gentle:
            way = self._suspend_some(
                trying,
                [
                    suspension
                    for c in candidates
                    if action.name in c.suspends and (suspension := action.of(c)) is not None
                ],
            )
            if way is not None:
                return way
        return self._evicting(trying, candidates)

    def _suspend_some(self, trying: Trying, suspension: list[Candidate]) -> Way | None:
        if not suspension or trying.fits(suspension) is None:
            return None
        victims: list[Candidate] = []
        for candidate in suspension:
            if trying.lets_go([*victims, candidate]):
                victims.append(candidate)
                if trying.fits(victims) is not None:
                    return self._fewest(trying, victims)
        return None

    def _evicting(self, trying: Trying, candidates: list[Candidate]) -> Way | None:
        """Those that cost the least one by one, until it fits; or one alone, where that costs less than several."""
        victims = evict.cheapest(candidates, trying)
        if victims is None:
            return None
        way = self._fewest(trying, victims)
        if len(way.victims) < 2:
            return way
        ways = (way, *(self._way_by(trying, unit) for unit in evict.alone(candidates, trying)))
        for other in ways if len(self._takers) == 1 else ():
            self._others.way((other.node,), other.victims)
        return min(ways, key=lambda w: w.cost)

    def _fewest(self, trying: Trying, victims: list[Candidate]) -> Way:
        """Whoever need not go, the dearest first, is put back."""
        for back in self._put_back(victims):
            without = [victim for victim in victims if victim.uid not in back]
            if trying.fits(without) is not None and trying.lets_go(without):
                victims = without
        return self._way_by(trying, victims)

    @staticmethod
    def _way_by(trying: Trying, victims: list[Candidate]) -> Way:
        return Way(trying.node.name, tuple(victims), trying.fits(victims) or ())

    def _put_back(self, victims: Sequence[Candidate]) -> list[set[str]]:
        """Who need not go, perhaps: each by itself, and each gang as a whole; the dearest first."""
        alone = [(victim.cost, {victim.uid}) for victim in victims]
        gangs: dict[str, list[Candidate]] = {}
        for victim in victims:
            gangs.setdefault(self._candidates.gang_of(victim), []).append(victim)
        whole = [(max(v.cost for v in of), {v.uid for v in of}) for name, of in gangs.items() if name and len(of) > 1]
        return [back for _, back in sorted([*whole, *alone], key=lambda item: item[0], reverse=True)]

    def place(self, state: PodState, node: NodeState, gone: Sequence[Candidate]) -> tuple[GpuShare, ...] | None:
        """The parts of GPUs that it would get, were these gone; None where it does not fit."""
        gone = [candidate for candidate in gone if candidate.node == node.name]
        ends = [candidate for candidate in gone if candidate.action == "evict"]
        others = self._used.get(node.name, [])
        demands = [state.demand, *(other.demand for other in others)]
        if node.cpu_used - sum(c.demand.cpu_milli for c in ends) + sum(d.cpu_milli for d in demands) > node.cpu_total:
            return None
        if (
            node.memory_used - sum(c.demand.memory_bytes for c in ends) + sum(d.memory_bytes for d in demands)
            > node.memory_total
        ):
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
