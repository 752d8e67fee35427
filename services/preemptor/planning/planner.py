"""Finds the cheapest set of victims that lets a pod or a gang fit. Pure.

A fast pre-check on GPUs, CPU and memory: placement runs all filters and has the final say, and refuses a plan that
breaks one. The least disruptive action that is enough comes first: actions that a pod survives, then eviction.
Victims are chosen by lowest priority, then by least lost work. A set of victims is minimal: each victim that turns
out to be unnecessary is put back, the most expensive first. A gang loses as many members as it can spare, or all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import msgspec

from services.preemptor.planning.actions import evict, move
from services.preemptor.planning.actions.checkpoint import fitting_on_host
from services.preemptor.planning.alternatives import Alternatives
from services.preemptor.planning.areas import Areas
from services.preemptor.planning.attempt import Attempt
from services.preemptor.planning.beside import Beside, book_as_it_is, book_as_it_will_be
from services.preemptor.planning.bounds import Bounds, Cost, cost_of
from services.preemptor.planning.candidate import Bound, Candidate
from services.preemptor.planning.fitting import admits, fit, has_room
from services.preemptor.planning.victims import Candidates
from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.states import NodeState, PodState
from shared.contracts.preemption import Alternative
from shared.model.grant import Grant
from shared.scheduling.minimal_sets import add_until_enough, put_back_unneeded
from shared.scheduling.transaction import Transaction

MAX_AREAS = 32
"""The maximum of areas that are tried for one plan, those with the lowest bounds first."""
MAX_OTHER_NODES = 4
"""The maximum of nodes that are recorded as alternatives by their bounds after the best option is found."""
ShouldWait = Callable[[Collection[str]], bool]
"""Whether to wait for these terminating pods, by uid, before other pods are preempted."""


def _never_wait(_: Collection[str]) -> bool:
    return False


class Option(msgspec.Struct, frozen=True):
    """The place of one member, and the victims that it needs."""

    node: str
    victims: tuple[Candidate, ...]
    grant: Grant

    @property
    def cost(self) -> Cost:
        return cost_of(self.victims, self.node)


class _Solution(msgspec.Struct, frozen=True):
    """An option for each member, in one area."""

    cost: Cost
    options: dict[str, Option]
    gone: dict[str, Candidate]


class Planner:
    """Plans for one round, during which the book does not change. Plans of one round do not share nodes."""

    def __init__(
        self,
        book: Book,
        candidates: Candidates,
        areas: Areas,
        busy: set[str],
        others: Sequence[Beside] = (),
    ) -> None:
        """`busy`: nodes on which nothing can be planned now. `others`: plans in progress, on none of these nodes."""
        self._book, self._candidates, self._areas, self._busy = book, candidates, areas, busy
        self._beside = others
        self._nodes_beside = {place.node for other in others for _, place in other.places}
        self.exhausted: frozenset[str] = frozenset()
        """Nodes of the areas that were tried without success for the last plan, if other areas are left to try."""
        self.pending_releases: frozenset[str] = frozenset()
        """uids of terminating pods without whose release the last options do not hold: no plan until they are gone."""
        self._gone: dict[str, Candidate] = {}
        """The victims so far of the solution that is being built, by uid."""
        self._placed: list[PodState] = []
        """Of that solution, the members with places."""
        self._planned: set[str] = set()
        """Of that solution, the nodes of members with places and of victims."""
        self._left: set[str] = set()
        """Nodes whose terminating pods have left in the trial."""
        self._others = Alternatives()
        self.alternatives: tuple[Alternative, ...] = ()
        """The alternatives to the last plan."""

    @cached_property
    def _trial(self) -> Transaction:
        """Where victims leave and members get places. Rolled back after each solution. Made when first needed."""
        return Transaction(book_as_it_is(self._book, self._beside))

    @cached_property
    def _afterwards(self) -> Transaction:
        """The same when the other plans in progress are done."""
        return Transaction(book_as_it_will_be(self._book, self._beside))

    def add(self, state: PodState) -> None:
        """Lets `plan` be asked about a pod that is not in the book."""
        fork = self._trial.book
        assert isinstance(fork, Fork)  # noqa: S101 - made above
        fork.add(state)

    def plan(
        self,
        members: Sequence[PodState],
        excluded: frozenset[str] = frozenset(),
        *,
        should_wait: ShouldWait = _never_wait,
    ) -> list[Option] | None:
        """Returns an option for each member, all in one area; None if there is none.

        An option has no victims if the member fits without preemption. Capacity that is being returned counts as free
        if it is enough. If other pods would have to be preempted too, `should_wait` says whether the members wait for
        the terminating pods first (`pending_releases`); otherwise their capacity does not count, because placement
        reserves nothing that depends on them. `excluded`: nodes that placement has refused for the members.
        """
        best = self._cheapest_solution(members, excluded, wait_for_release=True)
        self.pending_releases = frozenset() if best is None or not best.gone else self._required_releases(best)
        if self.pending_releases and not should_wait(self.pending_releases):
            best, self.pending_releases = (
                self._cheapest_solution(members, excluded, wait_for_release=False),
                frozenset(),
            )
        if best is None:
            return None
        self.alternatives = self._others.other_than(
            {option.node for option in best.options.values()}, best.gone.values()
        )
        self._candidates.promise(list(best.gone.values()))
        self._busy |= {option.node for option in best.options.values()}
        return [best.options[state.uid] for state in members]

    def _required_releases(self, found: _Solution) -> frozenset[str]:
        """Returns the terminating pods on the nodes where the members do not fit before these are gone."""
        nodes = {option.node for option in found.options.values()}
        ends = {name: self._candidates.leaving(self._book.nodes[name]) for name in nodes}
        required = [name for name in nodes if ends[name] and not self._fit_at_once(found, name)]
        return frozenset(leaving.uid for name in required for leaving in ends[name])

    def _fit_at_once(self, found: _Solution, name: str) -> bool:
        """Whether the members on a node fit there while its terminating pods are still there."""
        mark = self._trial.mark
        for victim in found.gone.values():
            if victim.node == name:
                victim.leave(self._trial)
        fitting = self._place_all(found.options, {name})
        self._trial.roll_back(mark)
        return fitting is not None

    def _cheapest_solution(
        self, members: Sequence[PodState], excluded: frozenset[str], *, wait_for_release: bool
    ) -> _Solution | None:
        self._wait_for_release, self._members = wait_for_release, members
        self.exhausted, self._others, self.alternatives = frozenset(), Alternatives(), ()
        best: _Solution | None = None
        areas = self._areas_by_bound(members, excluded)
        for least, _, bounds in areas[:MAX_AREAS]:
            if best is not None and least >= best.cost[:6]:
                break
            found = self._solve_area(bounds, members, best)
            if found is not None:
                self._others.add_option({option.node for option in found.options.values()}, found.gone.values())
                best = found
        if best is None and len(areas) > MAX_AREAS:
            self.exhausted = frozenset(node.name for _, _, bounds in areas[:MAX_AREAS] for node in bounds.area)
        return best

    def _areas_by_bound(self, members: Sequence[PodState], excluded: frozenset[str]) -> list[tuple[Bound, str, Bounds]]:
        """Returns the areas, sorted by the lower bound of placing all members there."""
        found, areas = [], self._areas.of(members, self._busy | excluded)
        for area in areas:
            nodes = [node for node in area.nodes if node.name not in self._busy and node.name not in excluded]
            bounds = Bounds(self._candidates, nodes, area.name, wait_for_release=self._wait_for_release)
            least = bounds.least_for_group(members, tells_areas_apart=len(areas) > 1)
            if least is not None:
                found.append((least, area.name, bounds))
        return sorted(found, key=lambda item: item[:2])

    def _solve_area(self, bounds: Bounds, members: Sequence[PodState], best: _Solution | None) -> _Solution | None:
        """Returns the options in one area if they cost less than the best so far."""
        self._gone, self._planned, self._left, self._bounds = {}, set(), set(), bounds
        mark = self._trial.mark
        found = self._place_members(bounds, members, best)
        self._trial.roll_back(mark)
        return found

    def _place_members(self, bounds: Bounds, members: Sequence[PodState], best: _Solution | None) -> _Solution | None:
        """Places the members in the trial, the largest first. Stops as soon as they cost no less than the best."""
        options: dict[str, Option] = {}
        self._placed = []
        for state in sorted(members, key=lambda s: s.request.hardest.hardness if s.request else (), reverse=True):
            option = self._best_option(state)
            if option is None:
                return None
            options[state.uid] = option
            self._placed.append(state)
            for victim in option.victims:
                victim.leave(self._trial)
                self._gone[victim.uid] = victim
            self._trial.hold(state.uid, option.node, option.grant)
            self._planned |= {option.node, *(victim.node for victim in option.victims)}
            if best is not None and cost_of(self._gone.values(), bounds.name) >= best.cost:
                return None
        options = self._minimize_group(members, options)
        if not self._candidates.within_quota(list(self._gone.values()), members):
            return None
        return _Solution(cost_of(self._gone.values(), bounds.name), options, self._gone)

    def _minimize_group(self, members: Sequence[PodState], options: dict[str, Option]) -> dict[str, Option]:
        """Puts back unnecessary victims: what was freed for a later member may be enough for an earlier one."""
        if len(members) < 2 or len(self._gone) < 2:
            return options
        for back in self._restorable(list(self._gone.values())):
            returning = [victim for uid, victim in self._gone.items() if uid in back]
            without = {uid: victim for uid, victim in self._gone.items() if uid not in back}
            mark = self._trial.mark
            again = self._place_without(returning, options)
            if again is not None and self._candidates.may_preempt(list(without.values()), members):
                self._gone, options = without, options | again
            else:
                self._trial.roll_back(mark)
        first = next(iter(options))
        return {
            uid: Option(option.node, tuple(self._gone.values()) if uid == first else (), option.grant)
            for uid, option in options.items()
        }

    def _place_without(self, returning: Sequence[Candidate], options: dict[str, Option]) -> dict[str, Option] | None:
        """Places the members on the nodes of these victims again, after the victims have returned.

        None if one does not fit, or if there is nothing to return.
        """
        nodes = {victim.node for victim in returning}
        for uid, option in options.items():
            if option.node in nodes:
                self._trial.unhold(uid)
        for victim in returning:
            victim.stay(self._trial)
        return self._place_all(options, nodes) if returning else None

    def _place_all(self, options: dict[str, Option], nodes: set[str]) -> dict[str, Option] | None:
        """Places the members that have options on these nodes, in their order; None if one does not fit."""
        found: dict[str, Option] = {}
        for uid, option in options.items():
            if option.node in nodes:
                # The trial's own, for only the trial has a pod that need not exist (`add`).
                grant = fit(self._trial.book.pods[uid], self._trial.book, option.node)
                if grant is None:
                    return None
                found[uid] = Option(option.node, (), grant)
                self._trial.hold(uid, option.node, grant)
        return found

    def migration_targets(self, options: Sequence[Option]) -> dict[str, str]:
        """Returns target nodes for victims that are evicted (`actions.move`), by uid.

        The options themselves use none of these nodes. Where the members are not admitted while the victims run, none
        has a target: it would come back into the same quota.
        """
        if not self._candidates.within_quota((), self._members):
            return {}
        taken = {option.node for option in options} | {v.node for option in options for v in option.victims}
        free = [
            node
            for name, node in sorted(self._book.nodes.items())
            if name not in self._busy and name not in taken and any(room.free_mib > 0 for room in node.gpus)
        ]
        mark = self._trial.mark
        found = move.find_targets(
            [victim for option in options for victim in option.victims], self._book.pods, free, self._taker
        )
        self._trial.roll_back(mark)
        self._busy |= set(found.values())
        return found

    def _taker(self, state: PodState) -> Callable[[NodeState], bool]:
        """Returns a check of nodes: whether a victim fits there; if so, it holds the capacity in the trial."""
        is_admitted = admits(state, self._book)

        def take(node: NodeState) -> bool:
            if not has_room(state, node) or not is_admitted(node):
                return False
            grant = fit(state, self._trial.book, node.name)
            if grant is not None:
                self._trial.lift(state.uid)
                self._trial.hold(state.uid, node.name, grant)
            return grant is not None

        return take

    def _best_option(self, state: PodState) -> Option | None:
        best: Option | None = None
        alone, checked, is_admitted = len(self._members) == 1, 0, admits(state, self._book)
        for bound, node in self._bounds.nodes(state, self._planned):
            if best is not None and best.cost[:6] <= bound:
                if not alone or checked == MAX_OTHER_NODES or not best.victims:
                    break
                if is_admitted(node):
                    self._others.add_bound(node.name, bound)
                checked += 1
                continue
            if not is_admitted(node):
                continue
            option = self._option_on(state, node)
            if alone and option is not None:
                self._others.add_option((node.name,), option.victims)
            if option is not None and (best is None or option.cost < best.cost):
                best = option
        return best

    def _option_on(self, state: PodState, node: NodeState) -> Option | None:
        """Returns the cheapest option on this node, with a minimal set of victims; None if there is none."""
        is_beside = node.name in self._nodes_beside
        if is_beside and (len(self._members) > 1 or state.attracted):
            return None  # placement refuses the latter, and what a gang needs is not known member by member
        leaving = self._candidates.leaving(node) if self._wait_for_release else ()
        if node.name not in self._left:
            self._left.add(node.name)
            for candidate in leaving:
                candidate.leave(self._trial)
        gone = list(self._gone.values())
        attempt = Attempt(
            self._trial,
            self._candidates,
            state,
            node,
            before=[*gone, *leaving],
            gone=gone,
            beneficiaries=self._members,
            placed=self._placed,
        )
        option = self._with_victims(attempt, state)
        attempt.end()
        return None if option is not None and is_beside and not self._needs_all(option, state) else option

    def _needs_all(self, option: Option, state: PodState) -> bool:
        """Whether the pod needs all of these victims also when the other plans in progress are done."""
        after, mark = self._afterwards, self._afterwards.mark
        for back in self._restorable(option.victims):
            rest = [victim for victim in option.victims if victim.uid not in back]
            for victim in rest:
                victim.leave(after)
            fits = fit(state, after.book, option.node) is not None
            after.roll_back(mark)
            if fits and self._candidates.may_preempt(rest, [state]):
                return False
        return True

    def _with_victims(self, attempt: Attempt, state: PodState) -> Option | None:
        grant = attempt.fits(())
        if grant is not None:
            return Option(attempt.node.name, (), grant)
        if state.request is None:
            return None  # no pod is preempted for CPU; what the other members' victims leave is free already
        candidates = [c for c in self._candidates.on(attempt.node, state) if c.uid not in self._gone]
        for action in self._candidates.non_disruptive:
            suspended = [one for c in candidates if action.name in c.suspends and (one := action.apply(c)) is not None]
            if action.name == "checkpoint":
                suspended = fitting_on_host(suspended, self._trial.book)
            option = self._suspension_option(attempt, suspended)
            if option is not None:
                return option
        return self._eviction_option(attempt, candidates)

    def _suspension_option(self, attempt: Attempt, suspended: list[Candidate]) -> Option | None:
        if not suspended or attempt.fits(suspended) is None:
            return None
        victims = add_until_enough(
            suspended,
            lambda candidate, others: [candidate] if attempt.may_preempt([*others, candidate]) else None,
            lambda victims: attempt.fits(victims) is not None,
        )
        return None if victims is None else self._minimize(attempt, victims)

    def _eviction_option(self, attempt: Attempt, candidates: list[Candidate]) -> Option | None:
        """Returns the cheapest option by eviction; None if there is none.

        Either the cheapest candidates one by one until the pod fits, or a single sufficient one.
        """
        victims = evict.cheapest(candidates, attempt)
        if victims is None:
            return None
        option = self._minimize(attempt, victims)
        if len(option.victims) < 2:
            return option
        options = (option, *(_option_with(attempt, unit) for unit in evict.single_victims(candidates, attempt)))
        for other in options if len(self._members) == 1 else ():
            self._others.add_option((other.node,), other.victims)
        return min(options, key=lambda w: w.cost)

    def _minimize(self, attempt: Attempt, victims: list[Candidate]) -> Option:
        """Puts back victims that are not needed, the most expensive first."""
        needed = put_back_unneeded(
            victims,
            self._restorable(victims),
            lambda rest: attempt.fits(rest) is not None and attempt.may_preempt(rest),
        )
        return _option_with(attempt, needed)

    def _restorable(self, victims: Sequence[Candidate]) -> list[set[str]]:
        """Returns sets of victims that may be unnecessary: single pods, and all of a gang or of its subgroups.

        The most expensive first.
        """
        alone = [(victim.cost, {victim.uid}) for victim in victims]
        cost = {victim.uid: victim.cost for victim in victims}
        whole = [(max(cost[uid] for uid in of), of) for of in self._candidates.together_among(cost)]
        return [back for _, back in sorted([*whole, *alone], key=lambda item: item[0], reverse=True)]


def _option_with(attempt: Attempt, victims: list[Candidate]) -> Option:
    """Returns the option with these victims, which are known to be enough."""
    grant = attempt.fits(victims)
    if grant is None:
        raise ValueError(f"{len(victims)} victims on {attempt.node.name} are not enough")
    return Option(attempt.node.name, tuple(victims), grant)
