"""Whom a pod may displace, who goes with them, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from services.preemptor.actions.base import SuspensionAction
from services.preemptor.budgets import Budgets, Left
from services.preemptor.candidate import Candidate, Last
from services.preemptor.emptying_cost import EmptyingCost, emptied, emptying_costs
from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.disruption_cost import budgets_of, price_of, why_not
from shared.book.gangs import Gangs
from shared.book.states import GrantState, NodeState, PodState
from shared.model.grant import GpuShare
from shared.model.life import STUCK_S, ends_by
from shared.model.objects import Pod
from shared.model.suspension import SuspendAction, can_suspend

KNOWN_S = 10.0
"""The prices of a node's pods that are older are reckoned anew."""
MAX_NODES_BUILT = 300
"""Nodes whose candidates are made in one tick, for the first time or because their pods have changed: on 15,000 at once it takes as
long as a leadership."""
MAX_NODES_RENEWED = 20
"""Nodes a tick on which they are made anew without need, where nothing but the time may have changed."""
MAX_NODES_PASSED = 1_000
"""Nodes that are passed in one tick in search of those."""
IsExempt = Callable[[PodState], bool]
"""Whether a pod is left alone for a while, for it has just made room for somebody."""
Uses = Callable[[str], int | None]
"""What a pod, by its uid, has allocated of one GPU at the most; None where that is not known."""


class Precedes(Protocol):
    """As `shared.queues.preemption_policy.PreemptionPolicy`."""

    @property
    def by_priority_alone(self) -> bool: ...
    def may_preempt(self, beneficiary: PodState, victim: PodState) -> bool: ...
    def preemption_class(self, victim: PodState) -> tuple[str, int, bool]: ...
    def refuses(
        self, beneficiaries: Sequence[PodState], victims: Sequence[PodState], *, stay: Collection[str] = ()
    ) -> str: ...
    def quota_exceeded(self, beneficiaries: Sequence[PodState], victims: Sequence[PodState]) -> str: ...


class _Known(msgspec.Struct):
    pods: list[Pod]
    """What the node's candidates were made from."""
    candidates: tuple[Candidate, ...]
    since: float
    clearing: dict[str, EmptyingCost]
    budgets: frozenset[str] = frozenset()
    """That they are under."""
    spent: frozenset[str] = frozenset()
    """Those of them that allowed nobody to go when `able` and `clearing` were made."""
    able: tuple[Candidate, ...] = ()
    """The candidates as their budgets are."""
    leaving: tuple[Candidate, ...] = ()
    """As of this round, as are: """
    kinds: tuple[tuple[str, int, bool], ...] = ()
    emptied: dict[int, list[EmptyingCost]] = {}
    """By how many GPUs: as `clearing.emptied` says, until the node's room changes."""


class Candidates:
    """By node, the least first. What has no GPU is left alone: nobody is displaced for CPU.

    A node's are made anew when its pods have changed, or after a while: prices grow with the time.
    """

    def __init__(
        self,
        book: Book,
        gangs: Gangs,
        preemption_policy: Precedes,
        immune: IsExempt,
        *,
        left: Left,
        gentle: Sequence[SuspensionAction],
        uses_mib: Uses,
        leaving_s: float,
    ) -> None:
        """`gentle`: what may be asked of those who need not end. `leaving_s`: how long a slice is waited for that outlives its pod."""
        self._book, self._gangs, self._preemption_policy, self._immune, self._now = (
            book,
            gangs,
            preemption_policy,
            immune,
            0.0,
        )
        self.gentle, self._uses_mib = tuple(gentle), uses_mib
        self._cannot: dict[str, float] = {}
        """Pods whose nodes could not make them give something up, by uid, and until when they are not asked again."""
        self._of: dict[str, _Known] = {}
        self._round: list[str] = []
        """Nodes that are to be passed yet before it begins anew."""
        self._made = 0
        """Nodes whose candidates were made in this tick."""
        self.partial = False
        """Some nodes have been left out in this round: too many have changed at once."""
        self._looked: set[str] = set()
        """Nodes that have been looked at in this round: the book stands still."""
        self._left_alone: dict[str, bool] = {}
        """In this round, whether a pod is immune: of a gang's victims it is asked at each one more."""
        self._may: dict[str, dict[tuple[str, int, bool], bool]] = {}
        """In this round, by the taker's uid, whom it may ask by their kind."""
        self._promised: frozenset[str] = frozenset()
        self._budgets = Budgets(book, left)
        self._seen = book.arrays.cursor
        """Of the book's changes."""
        self._leaving_s = leaving_s
        self._alone: dict[str, float] = {}
        """Slices that outlive their pods, by their grant's id, and since when, as far as anybody has looked."""

    def tick(self, now: float) -> bool:
        """Makes candidates beforehand, so that a plan finds them: a part of those that are lacking, and then some of those that have
        changed or are old. Whether none is lacking: before that no plan is the cheapest."""
        self._now, self._made, nodes = now, 0, self._book.nodes
        for name in [name for name in self._of if name not in nodes]:
            del self._of[name]
        lacking = [node for name, node in nodes.items() if name not in self._of and node.gpus]
        for node in lacking[:MAX_NODES_BUILT]:
            self._make(node)
        self._made = min(len(lacking), MAX_NODES_BUILT)
        elsewhere = self._budgets.elsewhere()
        for known in self._of.values() if elsewhere else ():
            if any(pod.metadata.namespace in elsewhere for pod in known.pods):
                known.pods = []
        if not lacking:
            self._renew(now)
        return len(lacking) <= MAX_NODES_BUILT

    def _renew(self, now: float) -> None:
        if not self._round:
            self._round = sorted(self._of)
        passed, self._round = self._round[:MAX_NODES_PASSED], self._round[MAX_NODES_PASSED:]
        for at, name in enumerate(passed):
            known = self._of.get(name)
            if known is None or (now - known.since < KNOWN_S and known.pods == _pods(self._book.nodes[name])):
                continue
            if self._made == MAX_NODES_RENEWED:
                self._round = passed[at:] + self._round
                return
            self._make(self._book.nodes[name])
            self._made += 1

    def begin(self, now: float, promised: Iterable[str] = ()) -> Candidates:
        """A round of planning, on a book that stands still. `promised`: pods that go by other plans, and that the budgets'
        statuses do not count yet."""
        self._now, pods, self.partial = now, self._book.pods, False
        self._forget_changed()
        self._looked.clear()
        self._may.clear()
        self._left_alone.clear()
        self._cannot = {uid: until for uid, until in self._cannot.items() if until > now and uid in pods}
        self._promised = frozenset(promised)
        self._alone = {grant_id: since for grant_id, since in self._alone.items() if grant_id in self._book.grants}
        self._budgets.begin(self._promised)
        return self

    def on(self, node: NodeState, beneficiary: PodState) -> list[Candidate]:
        """Those that may be asked to give way to it."""
        known, below = self._look(node), beneficiary.pod.spec.priority
        # With thousands of candidates a question each takes longer than all the rest.
        if self._preemption_policy.by_priority_alone:
            return [c for c in known.able if c.priority < below and c.uid not in self._promised]
        may = self._may.setdefault(beneficiary.uid, {})
        for candidate, kind in zip(known.able, known.kinds, strict=True):
            if kind not in may:
                may[kind] = self._preemption_policy.may_preempt(beneficiary, self._book.pods[candidate.uid])
        return [c for c, kind in zip(known.able, known.kinds, strict=True) if may[kind] and c.uid not in self._promised]

    def leaving(self, node: NodeState) -> tuple[Candidate, ...]:
        """Who gives back there without being asked: pods that end, for as long as they have to and a little longer, and slices that
        outlive their pods, for a while."""
        return self._look(node).leaving

    def emptied(self, count: int, node: NodeState) -> list[EmptyingCost]:
        """What it costs at the least to have nobody on so many of its GPUs, on as many again, and so on. Each plan asks of every
        node, and little of it changes from plan to plan."""
        known = self._look(node)
        if count not in known.emptied:
            known.emptied[count] = emptied(count, node, known.clearing)
        return known.emptied[count]

    def _forget_changed(self) -> None:
        arrays = self._book.arrays
        changed, self._seen = arrays.since(self._seen), arrays.cursor
        names = self._of.keys() if changed is None else (self._book.row_names[row] for row in changed)
        for known in (self._of[name] for name in names if name in self._of):
            known.emptied = {}

    def preemption_class(self, beneficiary: PodState) -> tuple[str, int, bool]:
        """Of two takers of one kind that ask for the same each may ask whom the other may."""
        return self._preemption_policy.preemption_class(beneficiary)

    def _look(self, node: NodeState) -> _Known:
        if node.name in self._looked:
            return self._of[node.name]
        self._looked.add(node.name)
        known = self._of.get(node.name)
        if known is None or known.pods != _pods(node):
            if self._made < MAX_NODES_BUILT:
                known = self._make(node)
                self._made += 1
            else:
                self.partial, known = True, _Known([], (), self._now, {})
                self._of[node.name] = known
        spent = known.budgets & self._budgets.spent
        if spent != known.spent:
            known.spent = spent
            able = (
                msgspec.structs.replace(c, may_end=False) if not spent.isdisjoint(c.budgets) else c
                for c in known.candidates
            )
            known.able = tuple(c for c in able if c.may_end or c.suspends)
            known.clearing = emptying_costs(known.able)
            known.emptied = {}
        known.leaving = self._leave(node)
        if not self._preemption_policy.by_priority_alone:
            known.kinds = tuple(self._preemption_policy.preemption_class(self._book.pods[c.uid]) for c in known.able)
        return known

    def _make(self, node: NodeState) -> _Known:
        made = (
            self._candidate(s, node.name)
            for s in node.pods.values()
            if s.grant_id and not why_not(s, self._book, self._now, stays=True)
        )
        candidates = tuple(sorted((c for c in made if c.may_end or c.suspends), key=lambda c: c.cost))
        known = self._of[node.name] = _Known(
            _pods(node),
            candidates,
            self._now,
            emptying_costs(candidates),
            budgets=frozenset(name for c in candidates for name in c.budgets),
            able=candidates,
        )
        return known

    def _leave(self, node: NodeState) -> tuple[Candidate, ...]:
        ending = [
            s
            for s in node.pods.values()
            if s.grant_id and (by := ends_by(s.pod)) is not None and self._now < by + STUCK_S
        ]
        left = [
            held
            for held in node.grants.values()
            if held.phase == "leaving"
            and held.uid not in node.pods
            and self._now - self._alone.setdefault(held.grant_id, self._now) < self._leaving_s
        ]
        return (*(self._candidate(state, node.name) for state in ending), *(_slice(held, node.name) for held in left))

    def unit(self, candidate: Candidate, gone: Collection[str], beneficiary: PodState) -> list[Candidate] | None:
        """Who goes if this one does, beside those who go anyway: itself, or all that is left of its gang. None: one of them may
        not."""
        found = [candidate]
        for uid in self._gangs.goes_with(candidate.uid, gone):
            state = self._book.pods[uid]
            if uid == candidate.uid:
                continue
            if (
                uid in self._promised
                or not state.grant_id
                or self._spared(state)
                or not self._preemption_policy.may_preempt(beneficiary, state)
            ):
                return None
            found.append(self._candidate(state, state.charged))
        return found

    def gang_of(self, candidate: Candidate) -> str:
        gang = self._gangs.of(candidate.uid)
        return "" if gang is None else gang.key

    def may_preempt(self, victims: Sequence[Candidate], beneficiaries: Sequence[PodState]) -> bool:
        """Whether all of these may go together as things are now, after all that were promised before."""
        pods = self._book.pods
        for victim in victims:
            if victim.uid not in self._left_alone:
                self._left_alone[victim.uid] = self._immune(pods[victim.uid])
        if any(victim.action == "evict" and self._left_alone[victim.uid] for victim in victims):
            return False
        stay = [victim.uid for victim in victims if victim.action != "evict"]
        return self._budgets.allow_evictions(victims) and not self._preemption_policy.refuses(
            beneficiaries, [pods[victim.uid] for victim in victims], stay=stay
        )

    def within_quota(self, victims: Sequence[Candidate], beneficiaries: Sequence[PodState]) -> bool:
        """Whether the takers' queue lets them have so much when these are gone."""
        return not self._preemption_policy.quota_exceeded(
            beneficiaries, [self._book.pods[victim.uid] for victim in victims if victim.action == "evict"]
        )

    def note_suspension_failed(self, uids: Iterable[str], until: float) -> None:
        """A plan by which these were to give something up came to nothing."""
        for uid in uids:
            self._cannot[uid] = until
            state = self._book.pods.get(uid)
            self._of.pop("" if state is None else state.charged, None)

    def promise(self, victims: Sequence[Candidate]) -> None:
        """These go by a plan of this round."""
        self._promised |= {victim.uid for victim in victims}
        self._budgets.promise(victims)

    def _spared(self, state: PodState, *, budgets: bool = True) -> bool:
        return bool(why_not(state, self._book, self._now, leaves=True, budgets=budgets)) or self._immune(state)

    def _candidate(self, state: PodState, node: str) -> Candidate:
        shares = _shares(self._book.grants[state.grant_id], node)
        pods = self._book.pods
        price = price_of(state, self._book, self._now)
        least = sum(price_of(pods[uid], self._book, self._now).price_gpu_ms for uid in self._gangs.goes_with(state.uid))
        meta = state.pod.metadata
        return Candidate(
            state.pod.spec.priority,
            price.price_gpu_ms,
            least,
            price.gpu_milli,
            Last((meta.creation_timestamp, meta.name)),
            state.uid,
            node,
            state.demand,
            shares,
            tuple(budgets_of(state, self._book)),
            self._suspends(state),
            not self._spared(state, budgets=False),
            self._uses_mib(state.uid),
        )

    def _suspends(self, state: PodState) -> tuple[SuspendAction, ...]:
        """Nothing of one that is suspended already: what it has left is little, and two orders at once are none."""
        held = self._book.grants[state.grant_id]
        one_node = len({share.node for part in held.given.containers.values() for share in part.gpus}) == 1
        if state.uid in self._cannot or state.suspension is not None or held.suspension is not None or not one_node:
            return ()
        return tuple(action.name for action in self.gentle if can_suspend(action.name, held.given.containers.values()))


def _shares(held: GrantState, node: str) -> tuple[GpuShare, ...]:
    return tuple(share for part in held.grant.containers.values() for share in part.gpus if share.node == node)


def _slice(held: GrantState, node: str) -> Candidate:
    return Candidate(0, 0, 0, 0, Last(("", held.name)), held.uid, node, Demand(), _shares(held, node))


def _pods(node: NodeState) -> list[Pod]:
    return [state.pod for state in node.pods.values()]
