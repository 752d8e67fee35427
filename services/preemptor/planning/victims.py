"""Finds the pods that a pod may preempt, those that end with them, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from services.preemptor.planning.actions.base import SuspensionAction
from services.preemptor.planning.budgets import Budgets, EvictionsLeft
from services.preemptor.planning.candidate import Bound, Candidate, Last
from services.preemptor.planning.changed_nodes import ChangedNodes, nodes_of
from services.preemptor.planning.emptying_cost import EmptyingCost, costs_by_gpu, min_emptying_cost, min_emptying_costs
from services.preemptor.planning.gang_prices import GangPrices
from shared.book.book import Book
from shared.book.demand import Demand
from shared.book.disruption_cost import budgets_of, price_of, why_not_disruptable
from shared.book.gangs import Gangs
from shared.book.states import GrantState, NodeState, PodState
from shared.contracts.preemption import Victim
from shared.model.grant import GpuShare
from shared.model.life import STUCK_S, ends_by
from shared.model.objects import Pod
from shared.model.suspension import SUSPEND_ACTIONS, SuspendAction, can_suspend

KNOWN_S = 10.0
"""How long the prices of a node's pods are valid; older ones are computed again."""
MAX_NODES_BUILT = 300
"""The maximum of nodes whose candidates are built in one tick, new nodes or changed ones.

For 15,000 nodes at once it would take as long as the leader lease.
"""
MAX_NODES_RENEWED = 20
"""The maximum of nodes per tick whose candidates are built again in advance."""
MAX_NODES_COMPARED = 1_000
"""The maximum of changed nodes whose pods are compared per tick for that."""
LOOK_S = 1.0
"""How often nodes without candidates, and nodes that are gone, are looked for."""
IsExempt = Callable[[PodState], bool]
"""Whether a pod may not be evicted now: it replaces a preempted one, or its namespace's hourly budget is spent."""
Uses = Callable[[str], int | None]
"""Returns the maximum that a pod has allocated on one GPU in MiB, by its uid; None if it is unknown."""


class Precedes(Protocol):
    """The part of `shared.queues.preemption_policy.PreemptionPolicy` that is used here."""

    @property
    def by_priority_alone(self) -> bool: ...
    def may_preempt(self, beneficiary: PodState, victim: PodState) -> bool: ...
    def preemption_class(self, victim: PodState) -> tuple[str, int, bool]: ...
    def refuses(
        self, beneficiaries: Sequence[PodState], victims: Sequence[PodState], *, stay: Collection[str] = ()
    ) -> str: ...
    def quota_exceeded(self, beneficiaries: Sequence[PodState], gone: Iterable[str]) -> str: ...


class _NodeCandidates(msgspec.Struct):
    pods: list[tuple[Pod, str]]
    """The pods from which the node's candidates were built, and their grants, which may end before a pod changes."""
    gpus: tuple[str, ...]
    """The GPUs that were there: what a pod has of one that is gone has no price."""
    candidates: tuple[Candidate, ...]
    since: float
    emptying: dict[str, EmptyingCost]
    budgets: frozenset[str] = frozenset()
    """The budgets that select one of them."""
    spent: frozenset[str] = frozenset()
    """Those of the budgets that allowed no eviction when `able` and `emptying` were computed."""
    able: tuple[Candidate, ...] = ()
    """The candidates with regard to their budgets."""
    leaving: tuple[Candidate, ...] = ()
    """The terminating pods and orphaned slices of this round."""
    any_leaving: bool = False
    """Whether there is any of them, also one for which nothing waits any more."""
    kinds: tuple[tuple[str, int, bool], ...] = ()
    min_costs: dict[int, list[EmptyingCost]] = {}
    """By number of GPUs, what `min_emptying_costs` returns; valid until the node changes."""
    bounds: dict[object, Bound | None] = {}
    """By kind of pod, what `Bounds` computes; valid until the node changes."""


class Candidates:
    """The candidates of each node, the cheapest first.

    Pods without GPUs are none: no pod is preempted for CPU.

    They are built again when the node's pods change, and after a while, because prices grow with time.
    """

    def __init__(
        self,
        book: Book,
        gangs: Gangs,
        preemption_policy: Precedes,
        is_exempt: IsExempt,
        changed: ChangedNodes,
        *,
        left: EvictionsLeft,
        non_disruptive: Sequence[SuspensionAction],
        uses_mib: Uses,
        leaving_s: float,
    ) -> None:
        """`non_disruptive`: the enabled actions that pods survive.

        `leaving_s`: how long to wait for an orphaned slice.
        """
        self._gang_prices = GangPrices(book, gangs)
        self._book, self._gangs, self._preemption_policy, self._is_exempt, self._now = (
            book,
            gangs,
            preemption_policy,
            is_exempt,
            0.0,
        )
        self.non_disruptive, self._uses_mib = tuple(non_disruptive), uses_mib
        self._suspension_failed: dict[tuple[str, SuspendAction], float] = {}
        """By uid and action, suspensions that failed: until when they are not tried again."""
        self._of: dict[str, _NodeCandidates] = {}
        """By node; those that were built longest ago come first."""
        self._changed = changed
        self._unchecked: dict[str, None] = {}
        """Nodes whose candidates may be out of date, because something there has changed."""
        self._look_at = float("-inf")
        self._made = 0
        """How many nodes' candidates were built in this tick."""
        self.partial = False
        """Whether nodes were left out in this round because too many have changed at once."""
        self._looked: set[str] = set()
        """Nodes that are up to date in this round, during which the book does not change."""
        self._exempt: dict[str, bool] = {}
        """In this round, whether a pod is exempt from eviction: cached, because it is asked for each further victim."""
        self._allowed: dict[str, dict[tuple[str, int, bool], bool]] = {}
        """In this round, by the beneficiary's uid: whether it may preempt a pod, by the pod's preemption class."""
        self._promised: frozenset[str] = frozenset()
        self._ending: frozenset[str] = frozenset()
        self._promised_nodes: set[str] = set()
        """The nodes with a promised pod or its GPUs."""
        self._budgets = Budgets(book, left)
        self._leaving_s = leaving_s
        self._orphaned_since: dict[str, float] = {}
        """By grant id of slices that outlive their pods: when that was first noticed."""

    def tick(self, now: float) -> bool:
        """Builds candidates in advance: some of the missing ones, then some that have changed or are old.

        Returns whether none is missing: before that a plan may not be the cheapest.
        """
        self._now, self._made = now, 0
        self._gang_prices.begin(now)
        self._note_changed()
        lacking = self._lacking(now)
        for node in lacking[:MAX_NODES_BUILT]:
            self._make(node)
        self._made = min(len(lacking), MAX_NODES_BUILT)
        elsewhere = self._budgets.changed_namespaces()
        for name, known in self._of.items() if elsewhere else ():
            if any(pod.metadata.namespace in elsewhere for pod, _ in known.pods):
                self._invalidate(name, known)
        if not lacking:
            self._renew(now)
        return len(lacking) <= MAX_NODES_BUILT

    def _lacking(self, now: float) -> list[NodeState]:
        """Returns the nodes that have no candidates yet, and forgets those of nodes that are gone."""
        if now < self._look_at:
            return []
        nodes = self._book.nodes
        for name in [name for name in self._of if name not in nodes]:
            del self._of[name]
        lacking = [node for name, node in nodes.items() if name not in self._of and node.gpus]
        if len(lacking) <= MAX_NODES_BUILT:
            self._look_at = now + LOOK_S
        return lacking

    def _renew(self, now: float) -> None:
        for name in list(islice(self._unchecked, MAX_NODES_COMPARED)):
            if self._made == MAX_NODES_RENEWED:
                return
            known, node = self._of.get(name), self._book.nodes.get(name)
            if known is not None and node is not None and self._differs(known, node):
                self._make(node)
                self._made += 1
            self._unchecked.pop(name, None)
        for name, known in list(islice(self._of.items(), MAX_NODES_RENEWED - self._made)):
            if now - known.since < KNOWN_S:
                return
            node = self._book.nodes.get(name)
            if node is None:
                del self._of[name]
                continue
            self._make(node)
            self._made += 1

    def begin(self, now: float, promised: Iterable[str] = (), ending: Collection[str] = ()) -> Candidates:
        """Starts a planning round, during which the book does not change.

        `promised`: victims of other plans that the budgets' statuses do not count yet. `ending`: victims of other plans
        that leave nothing to anybody else.
        """
        self._now, pods, self.partial = now, self._book.pods, False
        self._gang_prices.begin(now)
        self._note_changed()
        self._looked.clear()
        self._allowed.clear()
        self._exempt.clear()
        self._suspension_failed = {
            key: until for key, until in self._suspension_failed.items() if until > now and key[0] in pods
        }
        self._promised, self._ending = frozenset(promised), frozenset(ending)
        self._promised_nodes = {
            name for uid in self._promised if uid in pods for name in nodes_of(pods[uid], self._book)
        }
        self._orphaned_since = {
            grant_id: since for grant_id, since in self._orphaned_since.items() if grant_id in self._book.grants
        }
        self._budgets.begin(self._promised)
        return self

    def on(self, node: NodeState, beneficiary: PodState) -> list[Candidate]:
        """Returns the candidates on a node that the beneficiary may preempt."""
        known, below = self._look(node), beneficiary.pod.spec.priority
        # With thousands of candidates one call per candidate takes longer than everything else.
        if self._preemption_policy.by_priority_alone:
            return [c for c in known.able if c.priority < below and c.uid not in self._promised]
        allowed = self._allowed.setdefault(beneficiary.uid, {})
        for candidate, kind in zip(known.able, known.kinds, strict=True):
            if kind not in allowed:
                allowed[kind] = self._preemption_policy.may_preempt(beneficiary, self._book.pods[candidate.uid])
        return [
            c for c, kind in zip(known.able, known.kinds, strict=True) if allowed[kind] and c.uid not in self._promised
        ]

    def leaving(self, node: NodeState) -> tuple[Candidate, ...]:
        """Returns what is returned on a node without preemption.

        These are terminating pods, until their grace period plus `STUCK_S` is over, and orphaned slices, for
        `leaving_s`. What others wait for alone is none of it.
        """
        if not node.gpus:
            return ()
        leaving = self._look(node).leaving
        return tuple(one for one in leaving if one.uid not in self._ending) if self._ending else leaving

    def emptying_costs(self, count: int, node: NodeState) -> list[EmptyingCost]:
        """Returns the minimum cost of emptying `count` GPUs of a node, then `count` more, and so on.

        The result is cached: each plan needs it for every node, and little changes from plan to plan.
        """
        known = self._look(node)
        if count not in known.min_costs:
            known.min_costs[count] = min_emptying_costs(count, node, known.emptying)
        return known.min_costs[count]

    def emptying_cost(self, count: int, node: NodeState) -> EmptyingCost | None:
        """Returns the lower bound of the cost of emptying `count` GPUs of a node (`min_emptying_cost`)."""
        return min_emptying_cost(count, node, self._look(node).emptying)

    def bounds_on(self, node: NodeState) -> dict[object, Bound | None] | None:
        """Returns the bounds that are known for a node, by kind of pod, to be completed; None where they differ from
        plan to plan, because of what the plans in progress do there."""
        return None if node.name in self._promised_nodes else self._look(node).bounds

    def _note_changed(self) -> None:
        changed, nodes = self._changed.take(), self._book.nodes
        if changed is None or any(name in nodes and nodes[name].gpus and name not in self._of for name in changed):
            self._look_at = float("-inf")
        for name in [name for name in (self._of if changed is None else changed) if name in self._of]:
            self._of[name].min_costs, self._of[name].bounds = {}, {}
            self._unchecked[name] = None

    def _invalidate(self, name: str, known: _NodeCandidates) -> None:
        """Lets a node's candidates be built again, although its pods are the same."""
        known.pods = []
        self._unchecked[name] = None

    def preemption_class(self, beneficiary: PodState) -> tuple[str, int, bool]:
        """Returns a pod's class: two pods of one class with equal requests may preempt the same pods."""
        return self._preemption_policy.preemption_class(beneficiary)

    def _look(self, node: NodeState) -> _NodeCandidates:
        if node.name in self._looked:
            return self._of[node.name]
        self._looked.add(node.name)
        known = self._of.get(node.name)
        is_unchecked = known is None or node.name in self._unchecked
        if known is None or (is_unchecked and self._differs(known, node)):
            if self._made < MAX_NODES_BUILT:
                known = self._make(node)
                self._made += 1
            else:
                self.partial, known = True, _NodeCandidates([], (), (), self._now, {})
                self._of[node.name] = known
                self._unchecked[node.name] = None
        elif is_unchecked:
            del self._unchecked[node.name]
        spent = known.budgets & self._budgets.spent
        if spent != known.spent:
            known.spent = spent
            able = (
                msgspec.structs.replace(c, is_evictable=False) if not spent.isdisjoint(c.budgets) else c
                for c in known.candidates
            )
            known.able = tuple(c for c in able if c.is_evictable or c.suspends)
            known.emptying = costs_by_gpu(known.able)
            known.min_costs, known.bounds = {}, {}
        if is_unchecked or known.any_leaving:
            self._see_leaving(node, known)
        if not self._preemption_policy.by_priority_alone:
            kinds = tuple(self._preemption_policy.preemption_class(self._book.pods[c.uid]) for c in known.able)
            if kinds != known.kinds:
                known.kinds, known.bounds = kinds, {}
        return known

    def _make(self, node: NodeState) -> _NodeCandidates:
        made = (
            self._candidate(s, node.name)
            for s in self._on(node)
            if s.grant_id and not why_not_disruptable(s, self._book, self._now, stays=True)
        )
        candidates = tuple(sorted((c for c in made if c.is_evictable or c.suspends), key=lambda c: c.cost))
        self._of.pop(node.name, None)
        self._unchecked.pop(node.name, None)
        known = self._of[node.name] = _NodeCandidates(
            self._pods(node),
            tuple(node.by_uuid),
            candidates,
            self._now,
            costs_by_gpu(candidates),
            budgets=frozenset(name for c in candidates for name in c.budgets),
            able=candidates,
        )
        self._see_leaving(node, known)
        return known

    def _on(self, node: NodeState) -> list[PodState]:
        """The pods with the node's GPUs, also those that are on other nodes; none that has a GPU of another node: its
        end would free none here."""
        pods = self._book.pods
        return [
            *(s for s in node.pods.values() if s.grant_id not in node.clients),
            *(pods[held.uid] for held in node.grants.values() if held.client and held.uid in pods),
        ]

    def _pods(self, node: NodeState) -> list[tuple[Pod, str]]:
        return [(state.pod, state.grant_id) for state in self._on(node)]

    def _differs(self, known: _NodeCandidates, node: NodeState) -> bool:
        """Whether the node's candidates are not those of its pods and GPUs of now."""
        return known.pods != self._pods(node) or known.gpus != tuple(node.by_uuid)

    def _see_leaving(self, node: NodeState, known: _NodeCandidates) -> None:
        ending = [(s, by) for s in self._on(node) if s.grant_id and (by := ends_by(s.pod)) is not None]
        left = [
            held
            for held in node.grants.values()
            if held.phase == "leaving"
            and held.uid not in node.pods
            and not (held.client and held.uid in self._book.pods)
        ]
        known.any_leaving = bool(ending or left)
        known.leaving = (
            *(self._candidate(state, node.name) for state, by in ending if self._now < by + STUCK_S),
            *(
                _slice(held, node.name)
                for held in left
                if self._now - self._orphaned_since.setdefault(held.grant_id, self._now) < self._leaving_s
            ),
        )

    def unit(self, candidate: Candidate, gone: Collection[str], beneficiary: PodState) -> list[Candidate] | None:
        """Returns what ends if this candidate is evicted, besides `gone`.

        Itself, or all that is left of its gang.

        None if one of them may not be evicted.
        """
        found = [candidate]
        for uid in self._gangs.must_end_with(candidate.uid, gone):
            state = self._book.pods[uid]
            if uid == candidate.uid:
                continue
            if (
                uid in self._promised
                or not (state.grant_id or (state.request is None and state.charged))
                or self._cannot_end(state)
                or not self._preemption_policy.may_preempt(beneficiary, state)
            ):
                return None
            found.append(self._candidate(state, state.charged))
        return found

    def together_among(self, uids: Collection[str]) -> list[set[str]]:
        return self._gangs.together_among(uids)

    def may_preempt(self, victims: Sequence[Candidate], beneficiaries: Sequence[PodState]) -> bool:
        """Whether all of these may be preempted together, in addition to all that were promised before."""
        pods = self._book.pods
        for victim in victims:
            if victim.uid not in self._exempt:
                self._exempt[victim.uid] = self._is_exempt(pods[victim.uid])
        if any(victim.action == "evict" and self._exempt[victim.uid] for victim in victims):
            return False
        stay = [victim.uid for victim in victims if victim.action != "evict"]
        return self._budgets.allow_evictions(victims) and not self._preemption_policy.refuses(
            beneficiaries, [pods[victim.uid] for victim in victims], stay=stay
        )

    def within_quota(self, victims: Sequence[Candidate], beneficiaries: Sequence[PodState]) -> bool:
        """Whether the beneficiaries are within their queue's quota when the victims are gone."""
        return not self._preemption_policy.quota_exceeded(
            beneficiaries, (victim.uid for victim in victims if victim.action == "evict")
        )

    def note_suspension_failed(self, victims: Iterable[Victim], until: float) -> None:
        """Records victims that could not be suspended. They are not suspended before `until`; one that could not be
        checkpointed may still give up what stays on its GPUs otherwise."""
        for victim in victims:
            for action in ("checkpoint",) if victim.action == "checkpoint" else SUSPEND_ACTIONS:
                self._suspension_failed[victim.uid, action] = until
            state = self._book.pods.get(victim.uid)
            self._of.pop("" if state is None else state.charged, None)

    def has_failed(self, uid: str, action: SuspendAction) -> bool:
        """Whether the pod is not suspended so now because that has failed."""
        return self._suspension_failed.get((uid, action), 0.0) > self._now

    def promise(self, victims: Sequence[Candidate]) -> None:
        """Records the victims of a plan of this round."""
        self._promised |= {victim.uid for victim in victims}
        self._promised_nodes |= {victim.node for victim in victims}
        self._budgets.promise(victims)

    def _cannot_end(self, state: PodState, *, budgets: bool = True) -> bool:
        return bool(why_not_disruptable(state, self._book, self._now, leaves=True, budgets=budgets)) or self._is_exempt(
            state
        )

    def _candidate(self, state: PodState, node: str) -> Candidate:
        held = self._book.grants.get(state.grant_id)
        shares = () if held is None else _shares(held, node)  # a member of a gang may need no GPU
        price = price_of(state, self._book, self._now)
        meta = state.pod.metadata
        gang, gang_milli = self._gang_prices.gang_milli(state)
        return Candidate(
            state.pod.spec.priority,
            price.price_gpu_ms,
            self._gang_prices.price_gpu_ms(state, price.price_gpu_ms),
            price.gpu_milli,
            Last((meta.creation_timestamp, meta.name)),
            state.uid,
            node,
            Demand() if held is not None and held.client else state.demand,
            shares,
            state.grant_id,
            tuple(budgets_of(state, self._book)),
            self._suspends(state),
            not self._cannot_end(state, budgets=False),
            self._uses_mib(state.uid),
            gang=gang,
            gang_milli=gang_milli,
        )

    def _suspends(self, state: PodState) -> tuple[SuspendAction, ...]:
        """Returns the actions that a pod can survive.

        A suspended pod has none: it has little left, and it cannot have two suspension orders at once.
        """
        held = self._book.grants.get(state.grant_id)
        if held is None:
            return ()
        one_node = len({share.node for part in held.given.containers.values() for share in part.gpus}) == 1
        if state.suspension is not None or held.suspension is not None or not one_node:
            return ()
        return tuple(
            action.name
            for action in self.non_disruptive
            if can_suspend(action.name, held.given.containers.values()) and not self.has_failed(state.uid, action.name)
        )


def _shares(held: GrantState, node: str) -> tuple[GpuShare, ...]:
    return tuple(share for part in held.grant.containers.values() for share in part.gpus if share.node == node)


def _slice(held: GrantState, node: str) -> Candidate:
    return Candidate(0, 0, 0, 0, Last(("", held.name)), held.uid, node, Demand(), _shares(held, node), held.grant_id)
