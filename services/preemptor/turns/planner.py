"""Proposes turns. It looks at waiting jobs once a second, and at running ones only when something may have changed.

That is when other jobs wait than before, when a running job has run for the shortest turn or falls a level, when a
waiting one is overdue, when a plan has ended, and every half minute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import inf

import msgspec

from services.preemptor.planning.areas import Areas
from services.preemptor.turns.circles import Circle, Circles, TurnJob
from services.preemptor.turns.copies import Copies
from services.preemptor.turns.options import Options, Turn, Yielding, as_yielding, suspended_by_gpu
from services.preemptor.turns.watchdogs import Watchdogs
from shared.book.book import Book
from shared.book.disruption_cost import gpu_milli
from shared.book.states import GrantState, PodState
from shared.contracts.preemption import Plan
from shared.model.objects import Pod
from shared.model.suspension import SuspendAction
from shared.model.units import WHOLE_GPU_MILLI
from shared.queues.tree import Tree
from shared.queues.turns import TurnPolicy
from shared.scheduling.fields import union, values_of
from shared.scheduling.filters import filters
from shared.turns.rules import TurnRules, changes_at, end_level, is_overdue, level, rank

LOOK_S = 1.0
"""How often the waiting jobs are looked at."""
RECHECK_S = 30.0
"""How often running jobs are looked at although nothing seems to have changed."""
REFUSED_S = 10.0
"""How long a job is left alone whose plan was refused or cancelled."""
ELSEWHERE_S = 300.0
"""How long a pending job gets its turn rather on other nodes than on one where placement has refused it: placement
checks more, such as affinities to other pods and volumes."""
MAX_JOBS = 32
"""The maximum of waiting jobs of one circle for which a search is made at one time, the next in rank first. Of those
that ask for the same only the first one counts: if it finds nothing, the others find nothing either."""
OTHERS_S = 5.0
"""After this time those are tried that were not, because so many others were."""
Proposal = tuple[TurnJob, Turn]
Asked = tuple[bytes, float]
"""All that a search for a pending pod depends on: its shape, and its watchdog."""
_ENCODER = msgspec.json.Encoder(order="deterministic")


class UnderWay(msgspec.Struct):
    """The plans in progress. Proposals are added to `busy`."""

    busy: set[str]
    """The nodes on which they work."""
    planned: Collection[str] = ()
    """By uid, the pods that they are for,"""
    promised: Collection[str] = ()
    """their victims, """
    parking: Collection[str] = ()
    """and those of the victims that are checkpointed, which the book may not show yet."""


class TurnPlanner:
    def __init__(
        self,
        book: Book,
        policy: TurnPolicy,
        circles: Circles,
        copies: Copies,
        *,
        tree: Callable[[], Tree | None],
        areas: Callable[[], Areas],
        stays: Callable[[str, SuspendAction], bool],
    ) -> None:
        """`stays`: whether a pod, by uid, is not suspended so now because that has failed."""
        self._book, self._policy, self._circles, self._copies = book, policy, circles, copies
        self._tree, self._areas, self._stays = tree, areas, stays
        self._own_alone: set[str] = set()
        """By uid, pods of which placement has said that they resume on their own GPUs alone."""
        self._look_at = 0.0
        self._check_at: dict[Circle, float] = {}
        self._changes_at: dict[Circle, float] = {}
        self._waited: dict[Circle, frozenset[str]] = {}
        """The jobs that waited at the last check."""
        self._tried_last: dict[Circle, str] = {}
        """Where a check ended because it had tried as many jobs as it may: the next one begins behind that job."""
        self._not_before: dict[str, float] = {}
        """By uid: until when nothing is planned for a pod whose plan was refused."""
        self._shapes: dict[str, tuple[Pod, bytes]] = {}
        """By uid, for as long as the pod does not change."""
        self._elsewhere: dict[str, dict[str, float]] = {}
        """By uid of such a pod, the nodes of these plans: until when others are preferred."""

    def plan_ended(self, plan: Plan, now: float, *, refused: bool) -> None:
        """Records that a plan is over. `refused`: or cancelled, so that nothing is planned for the same for a while."""
        self._check_at.clear()
        if plan.turn and refused:
            for one in plan.beneficiaries:
                self._not_before[one.uid] = now + REFUSED_S
                self._elsewhere.setdefault(one.uid, {})[one.node] = now + ELSEWHERE_S

    def cannot_move(self, uids: Iterable[str]) -> None:
        """Records pods that resume on their own GPUs alone."""
        self._own_alone = {uid for uid in (*self._own_alone, *uids) if uid in self._book.pods}

    def is_due(self, now: float) -> bool:
        return now >= self._look_at

    @property
    def changes_at(self) -> float:
        """When a turn may end, or a job is overdue, as of the last check; infinite if no job waits."""
        return min((*self._changes_at.values(), *self._not_before.values()), default=inf)

    def proposals(self, under_way: UnderWay, most: int, now: float) -> list[Proposal]:
        """Returns the turns to propose now, at most `most`. No two of them share a node."""
        if most < 1:
            return []
        self._look_at = now + LOOK_S
        self._not_before = {uid: until for uid, until in self._not_before.items() if until > now}
        self._elsewhere = {
            uid: left
            for uid, nodes in self._elsewhere.items()
            if uid in self._book.pods and (left := {node: until for node, until in nodes.items() if until > now})
        }
        rules, found = self._policy.rules, list[Proposal]()
        if len(self._shapes) > 2 * len(self._book.pods) + 1000:
            self._shapes.clear()
        waiting = self._circles.waiting(self._tree(), under_way.planned, now)
        self._check_at = {circle: at for circle, at in self._check_at.items() if circle in waiting}
        self._changes_at = {circle: at for circle, at in self._changes_at.items() if circle in waiting}
        due = {circle: jobs for circle, jobs in waiting.items() if self._is_circle_due(circle, jobs, now)}
        running = self._circles.running(due, now) if due else {}
        behind = suspended_by_gpu(self._book) if due else Counter()
        # The one goes first in which the first job has waited longest: else a circle with many turns would take all
        # that may be proposed.
        for circle, jobs in sorted(due.items(), key=lambda one: rank(one[1][0].known, rules, now)):
            if len(found) >= most:
                break  # the others are looked at next time
            self._waited[circle] = frozenset(job.known.key for job in jobs)
            runs = running.get(circle, [])
            able, self._changes_at[circle] = self._able(runs, jobs, under_way.promised, behind, now)
            self._check_at[circle] = min(now + RECHECK_S, self._changes_at[circle], *self._not_before.values())
            if able:
                paused = self._paused(runs)
                in_order = self._behind_last(circle, jobs)
                served, last = self._serve(in_order, able, paused, under_way, most=most - len(found), now=now)
                found += served
                self._tried_last.pop(circle, None)
                if last:
                    self._tried_last[circle] = last
                    self._check_at[circle] = min(self._check_at[circle], now + OTHERS_S)
        return found

    def _is_circle_due(self, circle: Circle, jobs: list[TurnJob], now: float) -> bool:
        keys = frozenset(job.known.key for job in jobs)
        return now >= self._check_at.get(circle, 0.0) or not keys <= self._waited.get(circle, frozenset())

    def _behind_last(self, circle: Circle, jobs: list[TurnJob]) -> list[TurnJob]:
        """The jobs in their order; those behind the last one tried first, so that many that find nothing, such as those
        on a host without room, keep the search from no other for long."""
        last = self._tried_last.get(circle)
        begin = next((number for number, job in enumerate(jobs, 1) if job.known.key == last), 0)
        return [*jobs[begin:], *jobs[:begin]]

    def _paused(self, running: list[TurnJob]) -> list[Yielding]:
        """Returns those of these jobs that are paused: their memory is on the GPU."""
        jobs = [job for job in running if all(map(_is_paused, job.members))]
        return [as_yielding(job, level(job.known, self._policy.rules), self._book, {}) for job in jobs]

    def _able(
        self,
        running: list[TurnJob],
        waiting: list[TurnJob],
        promised: Collection[str],
        behind: Mapping[tuple[str, str], int],
        now: float,
    ) -> tuple[list[Yielding], float]:
        """Returns the running jobs that may end their turn for one of the waiting, and when to look again."""
        rules = self._policy.rules
        first = rank(waiting[0].known, rules, now)[0]
        able, again = [], inf
        for job in waiting:
            again = min(again, *(_later(at, now) for at in changes_at(job.known, rules)))
        for job in running:
            again = min(again, _later(job.known.since + rules.min_turn_s, now), self._falls_at(job, rules, now))
            at = end_level(job.known, rules)
            if at <= first or (now - job.known.since < rules.min_turn_s and not job.known.idle):
                continue
            if any(member.uid in promised for member in job.members):
                continue
            if not self._policy.why_it_stays(job.members[0], now):
                able.append(as_yielding(job, at, self._book, behind))
        return able, again

    def _falls_at(self, job: TurnJob, rules: TurnRules, now: float) -> float:
        at = level(job.known, rules)
        milli = sum(gpu_milli(member, self._book) for member in job.members)
        if at == len(rules.level_bounds_gpu_s) or not milli:
            return inf
        return now + max(0.0, rules.level_bounds_gpu_s[at] * WHOLE_GPU_MILLI - job.known.attained_gpu_ms) / milli

    def _serve(
        self,
        jobs: list[TurnJob],
        able: list[Yielding],
        paused: list[Yielding],
        under_way: UnderWay,
        *,
        most: int,
        now: float,
    ) -> tuple[list[Proposal], str]:
        """The turns to propose, and the key of the last job that was tried where others were left untried for now."""
        rules, found = self._policy.rules, list[Proposal]()
        parking = self._grants_of(under_way.parking)
        watchdogs = Watchdogs(self._policy, now)
        options = Options(
            self._book,
            self._areas(),
            self._copies,
            able,
            busy=under_way.busy,
            parking=lambda: parking,
            own_alone=self._own_alone,
            paused=paused,
            refused_on=self._refused_on,
            watchdogs=watchdogs,
            stays=self._stays,
        )
        for job in jobs[:MAX_JOBS]:
            if is_overdue(job.known, rules, now):
                options.note_in_the_way(job, rank(job.known, rules, now)[0])
        failed: list[tuple[int, list[Asked]]] = []
        tried, last = 0, ""
        for job in jobs:
            if len(found) >= most:
                break
            if tried >= MAX_JOBS:
                return found, last
            if any(member.uid in self._not_before for member in job.members):
                continue
            at = rank(job.known, rules, now)[0]
            asked = [] if job.resumes else [self._asked(member) for member in job.members]
            if not job.resumes and any(at >= before and asked == others for before, others in failed):
                continue
            if job.resumes and not options.could_resume(job, at):
                continue  # many that cannot must not keep the search from others
            tried, last = tried + 1, job.known.key
            overdue_at = now if at < 0 else None
            turn = options.cheapest(job, at, self._turn_s(job, at, rules), overdue_at=overdue_at)
            if turn is None or self._refused(job, turn, now, watchdogs):
                failed += [] if job.resumes else [(at, asked)]
                continue
            found.append((job, turn))
            victims = [member for one in turn.victims for member in one.job.members]
            under_way.busy |= {*turn.nodes, *(member.charged for member in victims)}
            if turn.action == "checkpoint":
                parking += self._grants_of(member.uid for member in victims)
        return found, ""

    def _refused_on(self, members: Sequence[PodState]) -> set[str]:
        return {node for member in members for node in self._elsewhere.get(member.uid, ())}

    def _asked(self, state: PodState) -> Asked:
        known = self._shapes.get(state.uid)
        if known is None or known[0] is not state.pod:
            known = self._shapes[state.uid] = (state.pod, _ENCODER.encode(values_of(state, _search_fields())))
        return known[1], self._policy.watchdog_s(state)

    def _grants_of(self, uids: Iterable[str]) -> list[GrantState]:
        states = [self._book.pods[uid] for uid in uids if uid in self._book.pods]
        return [self._book.grants[state.grant_id] for state in states if state.grant_id in self._book.grants]

    def _refused(self, job: TurnJob, turn: Turn, now: float, watchdogs: Watchdogs) -> bool:
        """Whether placement would refuse it: it checks with the same rules."""
        victims = [member for one in turn.victims for member in one.job.members]
        actions = {member.uid: turn.action for member in victims}
        return bool(
            self._policy.refuses(job.members, victims, actions, now, watchdogs.loads)
            or self._policy.quota_exceeded(job.members, victims, actions)
        )

    def _turn_s(self, job: TurnJob, at: int, rules: TurnRules) -> float:
        """Returns how long the job keeps its turn: until it falls a level after the shortest turn.

        A job that falls during the shortest turn goes on after it: the next to end it is of an earlier level.
        """
        if at < 0:
            return rules.min_turn_s
        milli = sum(_asked_milli(member) for member in job.members)
        then = job.known.attained_gpu_ms + rules.min_turn_s * milli
        reached = bisect_right(rules.level_bounds_gpu_s, then / WHOLE_GPU_MILLI)
        if reached == len(rules.level_bounds_gpu_s):
            return inf
        left = rules.level_bounds_gpu_s[reached] * WHOLE_GPU_MILLI - job.known.attained_gpu_ms
        return max(rules.min_turn_s, left / max(1, milli))


@cache
def _search_fields() -> tuple[str, ...]:
    return union(("demand", "request"), *(one.reads for one in filters().node))


def _is_paused(state: PodState) -> bool:
    return state.suspension is not None and state.suspension.action == "pause"


def _later(at: float, now: float) -> float:
    return at if at > now else inf


def _asked_milli(state: PodState) -> int:
    """Returns what it asks for, at least one GPU each: a bound that needs no knowledge of the GPU's size."""
    return 0 if state.request is None else sum(ask.count for ask in state.request.asks.values()) * WHOLE_GPU_MILLI
