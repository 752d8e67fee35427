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
from services.preemptor.attempt import Attempt
from services.preemptor.bounds import Bound, Bounds, Cost, cost_of
from services.preemptor.candidate import Candidate
from services.preemptor.fitting import admits, assign, give, has_room, take
from services.preemptor.victims import Candidates
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.preemption import Alternative
from shared.model.grant import GpuShare

MAX_AREAS = 32
"""A plan is tried in so many areas at once, the cheapest by what is known beforehand first."""
MAX_OTHER_NODES = 4
"""Nodes that are noted as other ways, by their bounds, when the best is known."""
ShouldWait = Callable[[Collection[str]], bool]
"""Whether these, by uid, who end already, are waited for before anybody else is asked."""


def _never_wait(_: Collection[str]) -> bool:
    return False


class Option(msgspec.Struct, frozen=True):
    """One member's place, and who has to go for it."""

    node: str
    victims: tuple[Candidate, ...]
    takes: tuple[GpuShare, ...]

    @property
    def cost(self) -> Cost:
        return cost_of(self.victims, self.node)


class _Solution(msgspec.Struct, frozen=True):
    """A way for each member, in one area."""

    cost: Cost
    options: dict[str, Option]
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
        self.pending_releases: frozenset[str] = frozenset()
        """uids of who ends already, where the last ways hold only when these are gone too: no plan until then."""
        self._gone: dict[str, Candidate] = {}
        self._taken: dict[str, list[GpuShare]] = {}
        self._used: dict[str, list[PodState]] = {}
        self._others = Alternatives()
        self.alternatives: tuple[Alternative, ...] = ()
        """To the last plan."""

    def plan(
        self, members: Sequence[PodState], excluded: frozenset[str] = frozenset(), *, waits: ShouldWait = _never_wait
    ) -> list[Option] | None:
        """A way for each of them, all at once and in one area, without victims where nobody need go; None where there is none.

        What is being given back is as good as free where it is enough. Where others would have to go too, `waits` says whether the
        members wait for those who end first (`pending_releases`); else these are left out of account, for placement keeps no place that hangs
        on them. `excluded`: nodes that placement has refused for them."""
        best = self._cheapest_solution(members, excluded, wait_for_release=True)
        self.pending_releases = frozenset() if best is None or not best.gone else self._required_releases(best)
        if self.pending_releases and not waits(self.pending_releases):
            best, self.pending_releases = (
                self._cheapest_solution(members, excluded, wait_for_release=False),
                frozenset(),
            )
        if best is None:
            return None
        self._gone, self._taken, self._used = best.gone, best.taken, best.used
        self.alternatives = self._others.beside({option.node for option in best.options.values()}, best.gone.values())
        self._candidates.promise(list(self._gone.values()))
        self._busy |= {option.node for option in best.options.values()}
        return [best.options[state.uid] for state in members]

    def _required_releases(self, found: _Solution) -> frozenset[str]:
        """Who ends already on the nodes where the members do not fit without their going."""
        self._gone, self._taken, self._used, self._wait_for_release = (
            found.gone,
            dict(found.taken),
            dict(found.used),
            False,
        )
        nodes = {option.node for option in found.options.values()}
        ends = {name: self._candidates.leaving(self._book.nodes[name]) for name in nodes}
        relied = [name for name in nodes if ends[name] and self._place_again(found.options, {name}, set()) is None]
        return frozenset(leaving.uid for name in relied for leaving in ends[name])

    def _cheapest_solution(
        self, members: Sequence[PodState], excluded: frozenset[str], *, wait_for_release: bool
    ) -> _Solution | None:
        self._wait_for_release, self._members = wait_for_release, members
        self.in_vain, self._others, self.alternatives = frozenset(), Alternatives(), ()
        best: _Solution | None = None
        areas = self._areas_by_bound(members, excluded)
        for least, _, bounds in areas[:MAX_AREAS]:
            if best is not None and least >= best.cost[:6]:
                break
            found = self._solve_area(bounds, members, best)
            if found is not None:
                self._others.option({option.node for option in found.options.values()}, found.gone.values())
                best = found
        if best is None and len(areas) > MAX_AREAS:
            self.in_vain = frozenset(node.name for _, _, bounds in areas[:MAX_AREAS] for node in bounds.area)
        return best

    def _areas_by_bound(self, members: Sequence[PodState], excluded: frozenset[str]) -> list[tuple[Bound, str, Bounds]]:
        """The areas, by the least that places for all of them can cost there."""
        found = []
        for area in self._areas.of(members, self._busy | excluded):
            nodes = [node for node in area.nodes if node.name not in self._busy and node.name not in excluded]
            bounds = Bounds(self._candidates, nodes, area.name, wait_for_release=self._wait_for_release)
            least = bounds.together(members)
            if least is not None:
                found.append((least, area.name, bounds))
        return sorted(found, key=lambda item: item[:2])

    def _solve_area(self, bounds: Bounds, members: Sequence[PodState], best: _Solution | None) -> _Solution | None:
        """What costs less than the best so far; given up as soon as those who would have to go cost more."""
        self._gone, self._taken, self._used, self._bounds = {}, {}, {}, bounds
        options: dict[str, Option] = {}
        for state in sorted(members, key=lambda s: s.request.hardest.hardness if s.request else (), reverse=True):
            option = self._best_option(state)
            if option is None:
                return None
            options[state.uid] = option
            self._gone |= {victim.uid: victim for victim in option.victims}
            self._settle(state, option.node, option.takes)
            if best is not None and cost_of(self._gone.values(), bounds.name) >= best.cost:
                return None
        options = self._minimize_group(members, options)
        if not self._candidates.within_quota(list(self._gone.values()), members):
            return None
        return _Solution(cost_of(self._gone.values(), bounds.name), options, self._gone, self._taken, self._used)

    def _minimize_group(self, members: Sequence[PodState], options: dict[str, Option]) -> dict[str, Option]:
        """What was freed for a later member may be enough for an earlier one: whoever need not go is put back."""
        if len(members) < 2 or len(self._gone) < 2:
            return options
        for back in self._restorable(list(self._gone.values())):
            nodes = {self._gone[uid].node for uid in back if uid in self._gone}
            kept = dict(self._taken), dict(self._used)
            again = self._place_again(options, nodes, back) if nodes else None
            without = {} if again is None else {uid: victim for uid, victim in self._gone.items() if uid not in back}
            if again is not None and self._candidates.may_preempt(list(without.values()), members):
                self._gone, options = without, options | again
            else:
                self._taken, self._used = kept
        first = next(iter(options))
        return {
            uid: Option(option.node, tuple(self._gone.values()) if uid == first else (), option.takes)
            for uid, option in options.items()
        }

    def _place_again(self, options: dict[str, Option], nodes: set[str], back: set[str]) -> dict[str, Option] | None:
        """Those of the members who are on these nodes, without those who are put back."""
        victims = [victim for uid, victim in self._gone.items() if victim.node in nodes and uid not in back]
        for name in nodes:
            self._taken[name], self._used[name] = [], []
        found: dict[str, Option] = {}
        for state in (
            self._book.pods[uid] for uid, option in options.items() if option.node in nodes
        ):  # as they were placed
            node = self._book.nodes[options[state.uid].node]
            takes = self.place(
                state, node, [*victims, *(self._candidates.leaving(node) if self._wait_for_release else ())]
            )
            if takes is None:
                return None
            found[state.uid] = Option(node.name, (), takes)
            self._settle(state, node.name, takes)
        return found

    def elsewhere(self, options: Sequence[Option]) -> dict[str, str]:
        """Nodes on which there is room for victims that end (`actions.move`), by uid: room that none of these ways needs."""
        taken = {option.node for option in options}
        free = [
            node
            for name, node in sorted(self._book.nodes.items())
            if name not in self._busy and name not in taken and any(room.free_mib > 0 for room in node.gpus)
        ]
        found = move.elsewhere(
            [victim for option in options for victim in option.victims], self._book.pods, free, self._take
        )
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

    def _best_option(self, state: PodState) -> Option | None:
        best: Option | None = None
        alone, checked = len(self._members) == 1, 0
        for bound, node in self._bounds.nodes(
            state, self._taken.keys() | {victim.node for victim in self._gone.values()}
        ):
            if best is not None and best.cost[:6] <= bound:
                if not alone or checked == MAX_OTHER_NODES or not best.victims:
                    break
                if admits(state, node):
                    self._others.bound(node.name, bound)
                checked += 1
                continue
            if not admits(state, node):
                continue
            option = self._option_on(state, node)
            if alone and option is not None:
                self._others.option((node.name,), option.victims)
            if option is not None and (best is None or option.cost < best.cost):
                best = option
        return best

    def _option_on(self, state: PodState, node: NodeState) -> Option | None:
        """The cheapest victims on this node, none more than it takes."""
        before = [*self._gone.values(), *(self._candidates.leaving(node) if self._wait_for_release else ())]
        takes = self.place(state, node, before)
        if takes is not None:
            return Option(node.name, (), takes)
        candidates = [c for c in self._candidates.on(node, state) if c.uid not in self._gone]
        attempt = Attempt(self.place, self._candidates, state, node, before, list(self._gone.values()), self._members)
        for action in self._candidates.gentle:
            option = self._suspension_option(
                attempt,
                [
                    suspension
                    for c in candidates
                    if action.name in c.suspends and (suspension := action.of(c)) is not None
                ],
            )
            if option is not None:
                return option
        return self._eviction_option(attempt, candidates)

    def _suspension_option(self, attempt: Attempt, suspension: list[Candidate]) -> Option | None:
        if not suspension or attempt.fits(suspension) is None:
            return None
        victims: list[Candidate] = []
        for candidate in suspension:
            if attempt.may_preempt([*victims, candidate]):
                victims.append(candidate)
                if attempt.fits(victims) is not None:
                    return self._minimize(attempt, victims)
        return None

    def _eviction_option(self, attempt: Attempt, candidates: list[Candidate]) -> Option | None:
        """Those that cost the least one by one, until it fits; or one alone, where that costs less than several."""
        victims = evict.cheapest(candidates, attempt)
        if victims is None:
            return None
        option = self._minimize(attempt, victims)
        if len(option.victims) < 2:
            return option
        options = (option, *(self._option_with(attempt, unit) for unit in evict.alone(candidates, attempt)))
        for other in options if len(self._members) == 1 else ():
            self._others.option((other.node,), other.victims)
        return min(options, key=lambda w: w.cost)

    def _minimize(self, attempt: Attempt, victims: list[Candidate]) -> Option:
        """Whoever need not go, the dearest first, is put back."""
        for back in self._restorable(victims):
            without = [victim for victim in victims if victim.uid not in back]
            if attempt.fits(without) is not None and attempt.may_preempt(without):
                victims = without
        return self._option_with(attempt, victims)

    @staticmethod
    def _option_with(attempt: Attempt, victims: list[Candidate]) -> Option:
        return Option(attempt.node.name, tuple(victims), attempt.fits(victims) or ())

    def _restorable(self, victims: Sequence[Candidate]) -> list[set[str]]:
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
