"""Finds the jobs that wait for a turn and the jobs that run, by circle: those of one queue and priority."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

import msgspec

from services.preemptor.pending_pods import PendingPods
from shared.book.book import Book
from shared.book.states import PodState
from shared.model.objects import Pod
from shared.queues.tree import Tree
from shared.queues.turns import TURN_ACTIONS, TurnPolicy
from shared.turns.rules import Job, rank

Circle = tuple[str, int]


class TurnJob(msgspec.Struct, frozen=True):
    """A pod or a gang: what the rules know of it, and its pods."""

    known: Job
    members: tuple[PodState, ...]

    @property
    def resumes(self) -> bool:
        """Whether it is suspended; otherwise it is pending, or runs."""
        return self.members[0].suspension is not None


class Circles:
    def __init__(self, book: Book, policy: TurnPolicy, pending: PendingPods) -> None:
        self._book, self._policy, self._pending = book, policy, pending
        self._circle_of: dict[str, tuple[Pod, Circle | None]] = {}
        """By uid, for as long as the pod does not change: thousands of pods are looked at, and few of them change."""
        self._tree: Tree | None = None

    def waiting(self, tree: Tree | None, planned: Collection[str], now: float) -> dict[Circle, list[TurnJob]]:
        """Returns the jobs that wait, the next to be served first.

        `planned`: pods that a plan in progress is for. A pod that expects free capacity takes no turn.
        Suspended pods come first: a pending member of their gang would run without them, and keep them from their turn.
        """
        self._begin(tree)
        found: dict[Circle, dict[str, TurnJob]] = {}
        seen: set[str] = set()
        suspended: set[str] = set()
        for state in (*self._suspended_pods(), *self._pending_pods(now)):
            circle = None if state.uid in seen else self._circle(state)
            if circle is None:
                continue
            seen.update(member.uid for member in self._policy.members(state))  # a gang is looked at once
            if not self._policy.takes_turns(state):
                continue
            job = self._policy.job(state, now)
            if state.suspension is not None:
                suspended.add(job.key)
                if job.idle:
                    continue  # it resumes when it wants the GPU
            elif job.key in suspended:
                continue
            members = self._members(state)
            if members and not any(one.uid in planned for one in members):
                found.setdefault(circle, {})[job.key] = TurnJob(job, tuple(members))
        rules = self._policy.rules
        return {
            circle: sorted(jobs.values(), key=lambda job: rank(job.known, rules, now)) for circle, jobs in found.items()
        }

    def running(self, circles: Container[Circle], now: float) -> dict[Circle, list[TurnJob]]:
        """Returns of these circles the jobs of which all pods run."""
        found: dict[Circle, list[TurnJob]] = {}
        seen: set[str] = set()
        for state in self._book.pods.values():
            if not state.seen_bound or state.ended or not state.grant_id or state.uid in seen:
                continue
            circle = self._circle(state)
            if circle is None or circle not in circles:
                continue
            members = [state] if state.gang is None else self._policy.members(state)
            seen.update(member.uid for member in members)
            found.setdefault(circle, []).append(TurnJob(self._policy.job(state, now), tuple(members)))
        return found

    def _begin(self, tree: Tree | None) -> None:
        if tree is not self._tree or len(self._circle_of) > 2 * len(self._book.pods) + 1000:
            self._tree, self._circle_of = tree, {}

    def _circle(self, state: PodState) -> Circle | None:
        """Returns its circle; None if the pod takes no turns."""
        known = self._circle_of.get(state.uid)
        if known is None or known[0] is not state.pod:
            circle = self._policy.circle(state) if self._policy.allows(state) else None
            known = self._circle_of[state.uid] = (state.pod, circle)
        return known[1]

    def _pending_pods(self, now: float) -> Iterable[PodState]:
        for uid, waits in self._pending.items():
            state = self._book.pods.get(uid)
            expects = waits.not_before > now and waits.expected_capacity
            if state is not None and state.wants_place and not expects and not state.refusal and state.request:
                yield state

    def _suspended_pods(self) -> Iterable[PodState]:
        for held in self._book.grants.values():
            if held.suspension is not None and held.suspension.action in TURN_ACTIONS:
                state = self._book.pods.get(held.uid)
                if state is None or state.grant_id != held.grant_id or state.suspension is None:
                    continue
                if state.pod.metadata.deletion_timestamp is None:  # else it comes back no more
                    yield state

    def _members(self, state: PodState) -> list[PodState]:
        members = self._policy.members(state)
        if state.suspension is not None:
            return [one for one in members if one.suspension is not None and one.suspension.action in TURN_ACTIONS]
        return self._pending.oldest_needed([one for one in members if one.uid in self._pending and one.wants_place])
