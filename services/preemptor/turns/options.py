"""Finds the cheapest set of running jobs whose turn ends for a waiting job. Pure.

A pending pod is placed on one node, a gang on the nodes of one area, and suspended pods come back to their nodes. The
cheapest set disturbs the least GPU milli; of equal ones those of the highest level yield. It is
minimal: each job that turns out to be unneeded keeps its turn, the best in rank first. All victims are paused where
that is enough, because their memory fits beside; otherwise they are checkpointed, where the host has room for it. On
GPUs where memory of paused jobs is in an overdue job's way they are not paused if they can be checkpointed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from services.preemptor.planning.areas import Areas
from services.preemptor.planning.fitting import admits, fit, has_room
from services.preemptor.turns.circles import TurnJob
from services.preemptor.turns.copies import Copies
from services.preemptor.turns.freed import Freed
from services.preemptor.turns.host_room import HostRoom
from services.preemptor.turns.watchdogs import Watchdogs
from shared.book.book import Book
from shared.book.disruption_cost import gpu_milli
from shared.book.fork import Fork
from shared.book.states import GrantState, NodeState, PodState
from shared.model.grant import sum_shares
from shared.model.moves import on_gpus
from shared.model.suspension import SuspendAction, Suspension, can_suspend
from shared.scheduling.minimal_sets import put_back_unneeded
from shared.scheduling.moving import is_movable, other_gpus
from shared.scheduling.transaction import Transaction
from shared.turns.rules import DUE_BACK

MAX_NODES = 16
"""The maximum of nodes that are tried for one pod, of those on which jobs that could yield have what it needs; those
where the jobs of the highest levels run come first."""
MAX_LOOKED_AT = 1024
"""The maximum of nodes of which that is asked for one pod."""
MAX_YIELDING = 64
"""How many running jobs are tried first for one waiting job on one node or area, the worst in rank first. All are
tried if these are not enough."""
_ACTIONS: tuple[SuspendAction, ...] = ("pause", "checkpoint")


Rank = tuple[int, int, float, str]


class Yielding(msgspec.Struct, frozen=True):
    """A running job whose turn may end."""

    uid: str
    """The key of the job."""
    job: TurnJob
    level: int
    gpu_milli: int
    behind: int = 0
    """How many suspended pods wait for the same GPUs that come back to no others."""

    @property
    def worst(self) -> Rank:
        """The smallest yields first: the highest level, then GPUs for which few wait, then the longest turn."""
        return (-self.level, self.behind, self.job.known.since, self.uid)


class Turn(msgspec.Struct, frozen=True):
    """What a plan says: the node of each member, and the jobs that yield."""

    nodes: tuple[str, ...]
    victims: tuple[Yielding, ...]
    action: SuspendAction
    gpus: dict[str, dict[str, str]] = {}
    """By uid of suspended pods that resume on other GPUs: the new one by the one that they had."""

    @property
    def cost(self) -> tuple[int, list[Rank]]:
        return sum(victim.gpu_milli for victim in self.victims), sorted(victim.worst for victim in self.victims)

    def is_cheaper(self, other: Turn) -> bool:
        """Whether it costs less. Other GPUs are left alone for a turn that is only longer than that on its own."""
        if not self.gpus or other.gpus:
            return self.cost < other.cost
        (mine, ranks), (its, others) = self.cost, other.cost
        return (mine, [rank[:2] for rank in ranks]) < (its, [rank[:2] for rank in others])


class Options:
    """For one round, in which the book does not change."""

    def __init__(
        self,
        book: Book,
        areas: Areas,
        copies: Copies,
        able: Iterable[Yielding],
        *,
        busy: Collection[str],
        parking: Callable[[], Iterable[GrantState]],
        own_alone: Collection[str] = (),
        paused: Iterable[Yielding] = (),
        refused_on: Callable[[Sequence[PodState]], Collection[str]] = lambda _: (),
        watchdogs: Watchdogs,
        stays: Callable[[str, SuspendAction], bool],
    ) -> None:
        """`able`: running jobs that have run for long enough. `busy`: nodes on which a plan is in progress. `parking`:
        grants that plans in progress checkpoint, which the book may not show yet. `own_alone`: by uid, suspended pods
        that come back to no other GPUs, although their grants say so. `paused`: jobs that are, with their memory on the
        GPU. `refused_on`: nodes on which placement has refused a plan for these pending pods: others come first.
        `stays`: whether a pod, by uid, is not suspended so now.
        """
        self._refused_on = refused_on
        self._admits: dict[str, Callable[[NodeState], bool]] = {}
        """By uid of a pending pod."""
        self._own_alone, self._watchdogs, self._stays = own_alone, watchdogs, stays
        self._reserving: TurnJob | None = None
        """The job in hand, if it leaves on hosts what others need to come back for their watchdogs. None: it comes back
        for its own, whatever that costs."""
        self._book, self._areas, self._copies = book, areas, copies
        self._busy = busy
        self._host = HostRoom(book, parking)
        self._freed = Freed(book, self._moves)
        self._able = sorted(able, key=lambda one: one.worst)
        self._by_node: dict[str, list[Yielding]] = {}
        for one in self._able:
            for name in {member.charged for member in one.job.members}:
                self._by_node.setdefault(name, []).append(one)
        self._made: Transaction | None = None
        self._gpus: dict[str, set[tuple[str, str]]] = {}
        self._able_to: dict[tuple[str, SuspendAction], bool] = {}
        """By jobs that run, what is looked up again and again."""
        self._highest_on: dict[tuple[str, str], int] = {}
        """By GPU, the highest level of the jobs on it."""
        for one in self._able:
            for gpu in self._gpus_under(one):
                self._highest_on[gpu] = max(one.level, self._highest_on.get(gpu, one.level))
        self._kept: set[str] = set()
        """Jobs whose turn goes on until it was worth the copies of an overdue one: no job behind that one ends it."""
        self._no_room: set[str] = set()
        """Jobs for which the host has no room."""
        self._too_short: list[Yielding] = []
        """Of the job in hand: whose turns were enough, but not yet worth its copies, on the first place."""
        self._moved: dict[str, dict[str, str]] = {}
        """By uid, of the pods that were placed last: where to they moved."""
        self._paused = list(paused)
        self._in_the_way: set[tuple[str, str]] = set()
        """GPUs where an overdue job would fit but for memory of paused jobs. Whichever of these runs next, the one
        before it is checkpointed and not paused: else they would take turns in the overdue one's way for ever."""

    def could_resume(self, waiting: TurnJob, at: int) -> bool:
        """Returns whether any job that could yield is on the GPUs of a suspended one; if it may move, on its nodes."""
        if any(self._moves(member) for member in waiting.members):
            return any(one.level > at for member in waiting.members for one in self._by_node.get(member.charged, ()))
        return any(self._highest_on.get(gpu, at) > at for gpu in self._gpus_of(waiting))

    def cheapest(self, waiting: TurnJob, at: int, turn_s: float, *, overdue_at: float | None = None) -> Turn | None:
        """Returns the cheapest turn for the job; None if there is none whose copies are worth it.

        `at`: the level at which it is served; jobs of higher ones yield. `turn_s`: how long it will run at least.
        `overdue_at`: the present time, if the job is overdue: then the copies may also be worth the turns that they
        end. So it waits no longer than for turns that are long enough, however much it copies.
        """
        own = self._gpus_of(waiting) if waiting.resumes else set()
        self._too_short, self._reserving = [], None if at == DUE_BACK else waiting
        refused = () if waiting.resumes else self._refused_on(waiting.members)
        best = self._cheapest_on(self._places(waiting, at, refused), own, waiting, at, turn_s, overdue_at)
        if best is None and refused:  # what placement has refused there may have changed
            best = self._cheapest_on(self._places(waiting, at), own, waiting, at, turn_s, overdue_at)
        if best is None and overdue_at is not None:
            self._kept |= {one.uid for one in self._too_short}
        return best

    def _cheapest_on(  # noqa: PLR0917 - all that the search knows
        self,
        places: Iterable[Sequence[NodeState]],
        own: set[tuple[str, str]],
        waiting: TurnJob,
        at: int,
        turn_s: float,
        overdue_at: float | None,
    ) -> Turn | None:
        best: Turn | None = None
        for nodes in places:
            near = self._near(nodes, at)
            if not waiting.resumes:
                near = [one for one in near if not self._watchdogs.is_crowded(waiting, one.job)]
            tried = [near]
            if own:  # what other GPUs could give is of no use to it, unless it may move; its own are preferred
                tried = [[one for one in near if not own.isdisjoint(self._gpus_under(one))]]
                tried += [near] if any(self._moves(member) for member in waiting.members) else []
            for those in tried:
                found = self._on(waiting, nodes, those[:MAX_YIELDING], turn_s, overdue_at) if those else None
                if found is None and len(those) > MAX_YIELDING:
                    found = self._on(waiting, nodes, those, turn_s, overdue_at)
                if found is not None and (best is None or found.is_cheaper(best)):
                    best = found
        return best

    def note_in_the_way(self, overdue: TurnJob, at: int) -> None:
        """Notes the GPUs where an overdue job would fit if those were checkpointed too that are paused there. Called
        for all overdue jobs before a turn is looked for."""
        for nodes in self._places(overdue, at) if self._paused else ():
            names = {node.name for node in nodes}
            able = [one for one in self._near(nodes, at) if self._can(one, "checkpoint")]
            near = [one for one in self._paused if names.intersection(member.charged for member in one.job.members)]
            paused = [one for one in near if self._can(one, "checkpoint")]
            if self._place(overdue, nodes, [*able, *paused], "checkpoint") is None:
                continue
            needed = self._minimal(overdue, nodes, [*able, *paused], "checkpoint")
            if self._has_host_memory(needed):
                self._in_the_way |= set().union(*map(self._gpus_under, needed))
            return

    def _stays_in_the_way(self, victims: Iterable[Yielding]) -> bool:
        return any(not self._in_the_way.isdisjoint(self._gpus_under(one)) for one in victims)

    def _moves(self, state: PodState) -> bool:
        """Whether a suspended pod may resume on other GPUs of its node."""
        held = self._book.grants.get(state.grant_id)
        return held is not None and is_movable(held) and state.uid not in self._own_alone

    def _near(self, nodes: Sequence[NodeState], at: int) -> list[Yielding]:
        """Returns the jobs with pods on these nodes that yield, the worst in rank first."""
        if len(nodes) == 1:
            return [one for one in self._by_node.get(nodes[0].name, ()) if one.level > at and self._is_free(one)]
        found = {one.uid: one for node in nodes for one in self._by_node.get(node.name, ()) if one.level > at}
        return sorted((one for one in found.values() if self._is_free(one)), key=lambda one: one.worst)

    def _gpus_under(self, one: Yielding) -> set[tuple[str, str]]:
        if one.uid not in self._gpus:
            self._gpus[one.uid] = self._gpus_of(one.job)
        return self._gpus[one.uid]

    def _gpus_of(self, job: TurnJob) -> set[tuple[str, str]]:
        return set(sum_shares([self._book.grants[member.grant_id].given for member in job.members]))

    def _is_free(self, one: Yielding) -> bool:
        return one.uid not in self._kept and all(member.charged not in self._busy for member in one.job.members)

    def _places(self, waiting: TurnJob, at: int, refused: Collection[str] = ()) -> list[list[NodeState]]:
        """Returns the sets of nodes that are tried, for a pending job without those `refused`."""
        nodes = self._book.nodes
        if waiting.resumes:
            names = {member.charged for member in waiting.members}
            return [] if any(name in self._busy or name not in nodes for name in names) else [[nodes[n] for n in names]]
        if len(waiting.members) == 1:
            return [[nodes[name]] for name in self._nodes_of_worst(waiting, at, refused)]
        found = []
        closed = {*self._busy, *refused}
        for area in self._areas.of(waiting.members, closed):
            inside = [node for node in area.nodes if node.name not in closed]
            if any(node.name in self._by_node for node in inside):
                found.append(sorted(inside, key=lambda node: node.name not in self._by_node))
        return found

    def _nodes_of_worst(self, waiting: TurnJob, at: int, refused: Collection[str]) -> list[str]:
        found: list[str] = []
        looked_at = 0
        closed = {*self._busy, *refused}
        above = (one for one in self._able if one.level > at)
        for name in dict.fromkeys(member.charged for one in above for member in one.job.members):
            if len(found) >= MAX_NODES or looked_at >= MAX_LOOKED_AT:
                break
            node = self._book.nodes.get(name)
            if node is None or name in closed or not self._is_admitted(waiting.members[0], node):
                continue
            looked_at += 1
            near = self._near([node], at)
            if any(self._may_be_enough(waiting, [node], near, action) for action in _ACTIONS):
                found.append(name)
        return found

    def _is_admitted(self, state: PodState, node: NodeState) -> bool:
        """Whether a pending pod could be placed on the node if that were empty."""
        if state.uid not in self._admits:
            self._admits[state.uid] = admits(state, self._book)
        return self._admits[state.uid](node)

    def _may_be_enough(
        self, waiting: TurnJob, nodes: Sequence[NodeState], able: Sequence[Yielding], action: SuspendAction
    ) -> bool:
        """False only if a search is in vain, with any of these jobs that can be suspended so."""
        those = [one for one in able if self._can(one, action)]
        if action == "checkpoint":
            those = [one for one in those if self._has_room_on_host(one)]
        return bool(those) and self._may_fit(waiting, nodes, those, action)

    def _on(
        self,
        waiting: TurnJob,
        nodes: Sequence[NodeState],
        able: Sequence[Yielding],
        turn_s: float,
        overdue_at: float | None,
    ) -> Turn | None:
        """Returns the cheapest turn on these nodes with the first of these jobs that are enough."""
        paused: Turn | None = None
        for action in _ACTIONS:
            if not self._may_be_enough(waiting, nodes, able, action):
                continue
            can = [one for one in able if self._can(one, action)]
            if self._place(waiting, nodes, can, action) is None:
                continue
            victims = self._minimal(waiting, nodes, can, action)
            if action == "checkpoint" and not self._has_host_memory(victims):
                victims = self._within_host_memory(waiting, nodes, can)
            placed = self._place(waiting, nodes, victims, action) if victims else None
            worth_s = turn_s
            if overdue_at is not None and victims:
                worth_s = max(turn_s, overdue_at - max(one.job.known.since for one in victims))
            copied_s = self._copies.both_ways_s(waiting, [one.job for one in victims], action)
            # Copies that also make room for an overdue job are worth it.
            worth_it = self._reserving is None or paused is not None or copied_s <= worth_s * self._copies.max_part
            if placed and worth_it:
                turn = Turn(tuple(placed), tuple(victims), action, dict(self._moved))
                if action == "checkpoint" or not self._stays_in_the_way(victims):
                    return turn
                paused = turn
            if placed and not worth_it and not self._too_short:
                self._too_short = victims
        return paused

    def _minimal(
        self, waiting: TurnJob, nodes: Sequence[NodeState], able: Sequence[Yielding], action: SuspendAction
    ) -> list[Yielding]:
        """Returns the fewest of the first ones that are enough, without those of them that are not needed. More of them
        are never less, so that a search by halves finds how many."""
        low, high = 0, len(able)
        while low < high:
            middle = (low + high) // 2
            if self._place(waiting, nodes, able[:middle], action) is None:
                low = middle + 1
            else:
                high = middle
        return put_back_unneeded(
            able[:low],
            [{one.uid} for one in reversed(able[:low])],
            lambda rest: self._place(waiting, nodes, rest, action) is not None,
        )

    def _within_host_memory(
        self, waiting: TurnJob, nodes: Sequence[NodeState], able: Sequence[Yielding]
    ) -> list[Yielding]:
        """Returns jobs that are enough and have room on the host together: those with the least memory first."""
        fitting = [one for one in able if self._has_host_memory([one])]
        fitting.sort(key=lambda one: (self._copies.mib_of(one.job.members), one.worst))
        if self._place(waiting, nodes, fitting, "checkpoint") is None:
            return []
        victims = self._minimal(waiting, nodes, fitting, "checkpoint")
        return victims if self._has_host_memory(victims) else []

    def _has_room_on_host(self, one: Yielding) -> bool:
        """Whether the host has room for this job. In one round there is never more than before, but for what is kept
        free, which depends on who comes back."""
        if one.uid not in self._no_room and not self._host.has([one.job], {}):
            self._no_room.add(one.uid)
        return one.uid not in self._no_room and self._has_host_memory([one])

    def _has_host_memory(self, victims: Sequence[Yielding]) -> bool:
        jobs = [one.job for one in victims]
        return self._host.has(jobs, self._kept_free(jobs))

    def _kept_free(self, yielding: Sequence[TurnJob]) -> Mapping[str, int]:
        return {} if self._reserving is None else self._watchdogs.kept_free(yielding, self._reserving)

    def _can(self, one: Yielding, action: SuspendAction) -> bool:
        if (one.uid, action) not in self._able_to:
            self._able_to[one.uid, action] = all(
                (held := self._book.grants.get(member.grant_id)) is not None
                and can_suspend(action, held.given.containers.values())
                and not self._stays(member.uid, action)
                for member in one.job.members
            )
        return self._able_to[one.uid, action]

    @property
    def _trial(self) -> Transaction:
        if self._made is None:
            self._made = Transaction(Fork(self._book))
        return self._made

    def _may_fit(
        self, waiting: TurnJob, nodes: Sequence[NodeState], victims: Sequence[Yielding], action: SuspendAction
    ) -> bool:
        return self._freed.may_fit(waiting, nodes, [one.job for one in victims], action)

    def _place(
        self, waiting: TurnJob, nodes: Sequence[NodeState], victims: Sequence[Yielding], action: SuspendAction
    ) -> list[str] | None:
        """Returns a node for each member when these have been suspended; None if one does not fit."""
        self._moved = {}
        if not self._may_fit(waiting, nodes, victims, action):
            return None
        mark = self._trial.mark
        for one in victims:
            for member in one.job.members:
                self._trial.suspend(member.grant_id, Suspension(action=action, plan_id=""))
        found: dict[str, str] = {}
        for state in sorted(
            waiting.members, key=lambda s: s.request.hardest.hardness if s.request else (), reverse=True
        ):
            node = self._resumed_on(state) if waiting.resumes else self._placed_on(state, nodes)
            if node is None:
                break
            found[state.uid] = node
        self._trial.roll_back(mark)
        return [found[state.uid] for state in waiting.members] if len(found) == len(waiting.members) else None

    def _placed_on(self, state: PodState, nodes: Sequence[NodeState]) -> str | None:
        for node in nodes:
            if not has_room(state, self._trial.book.nodes[node.name]) or not self._is_admitted(state, node):
                continue
            grant = fit(state, self._trial.book, node.name)
            if grant is not None:
                self._trial.hold(state.uid, node.name, grant)
                return node.name
        return None

    def _resumed_on(self, state: PodState) -> str | None:
        """Returns the pod's node if all that it has given up is free there, and takes it.

        On its own GPUs, or else on others if it may move.
        """
        held = self._trial.book.grants.get(state.grant_id)
        if held is None:
            return None
        taken = sum_shares((held.grant,))
        for (name, uuid), (mib, milli) in sum_shares((held.given,)).items():
            node = self._trial.book.nodes.get(name)
            room = None if node is None else node.by_uuid.get(uuid)
            now_mib, now_milli = taken.get((name, uuid), (0, 0))
            if room is None or 0 < mib - now_mib > room.free_mib or 0 < milli - now_milli > room.free_milli:
                return self._moved_on(state, held)
        self._trial.suspend(state.grant_id, None)
        return state.charged

    def _moved_on(self, state: PodState, held: GrantState) -> str | None:
        node = self._trial.book.nodes.get(state.charged)
        gpus = other_gpus(state, held, node, {}) if node is not None and self._moves(state) else None
        if gpus is None:
            return None
        self._trial.move(state.grant_id, on_gpus(held.given, gpus))
        self._moved[state.uid] = gpus
        return state.charged


def as_yielding(job: TurnJob, level: int, book: Book, waiting: Mapping[tuple[str, str], int]) -> Yielding:
    """`waiting`: what `suspended_by_gpu` returns."""
    grants = [book.grants[member.grant_id].given for member in job.members]
    behind = max((waiting.get(gpu, 0) for gpu in sum_shares(grants)), default=0)
    disturbed_milli = 0 if job.known.idle else sum(gpu_milli(member, book) for member in job.members)
    return Yielding(job.known.key, job, level, disturbed_milli, behind)


def suspended_by_gpu(book: Book) -> Counter[tuple[str, str]]:
    """Returns how many suspended pods have given up each GPU, by node and uuid, and come back to no other."""
    return Counter(
        gpu
        for held in book.grants.values()
        if held.suspension is not None and not is_movable(held)
        for gpu in sum_shares((held.given,))
    )
