"""Which pods take turns with which, and whose turn ends for which job. Placement and the preemptor decide by it.

A job is a pod, or a gang as a whole. It takes turns only with jobs of its own queue and priority that allow it too: by
the annotation `kerf.dev/turns`, else by `turns` of the pod's own queue. `shared.turns.rules` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf

import msgspec

from shared.book import host_memory
from shared.book.disruption_cost import gpu_milli, why_not_disruptable
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.preemption import Action
from shared.model.gpu import Inventory
from shared.model.grant import sum_shares
from shared.model.life import created_at, started_at
from shared.model.suspension import Suspension, can_suspend, left_of
from shared.queues.amounts import NOTHING
from shared.queues.queues import Queues
from shared.turns.gpu_time import GpuTime
from shared.turns.rules import DUE_BACK, Job, TurnRules, most_with_watchdogs, rank, yields

HostReserves = dict[str, list[tuple[int, str]]]
"""By node, the MiB that a job away needs to be free on its host to come back, and the uid of its first member."""

TURN_ACTIONS: tuple[Action, ...] = ("pause", "checkpoint")
"""How a turn ends; the gentler first."""
CLOCKS_DIFFER_S = 60.0
"""Clocks of leaders and nodes that differ by more are wrong: nothing is built on what they have written."""
_DEFAULTS = TurnRules()


class WatchdogLoad(msgspec.Struct):
    """Jobs with watchdogs that have a GPU, or have given it up for a turn."""

    gpus: float = 0.0
    """How much of the GPU's memory they were granted together: more than 1, since they take turns."""
    bound_s: float = inf
    """The shortest of their bounds."""


def is_waiting(state: PodState) -> bool:
    """Whether the pod does not run: it is pending, or it is paused or checkpointed by its annotation."""
    return not state.seen_bound or (state.suspension is not None and state.suspension.action in TURN_ACTIONS)


class TurnPolicy:
    """All times are seconds since 1970."""

    def __init__(self, queues: Queues, gangs: Gangs) -> None:
        self._queues, self._gangs, self._book = queues, gangs, queues.book

    @property
    def rules(self) -> TurnRules:
        """The rules in force: the block `turns` of queues.yaml, or the defaults."""
        return _DEFAULTS if self._queues.tree is None else self._queues.tree.policy.turns

    def allows(self, state: PodState) -> bool:
        """Whether the pod itself takes turns: with other pods of its job it does only if all of them do."""
        if not state.ours or state.request is None or state.refusal or state.claims or not state.life.preemptible:
            return False
        usage = self._queues.usage
        if usage is None:
            return state.life.turns == "allowed"
        queue = usage.queue_of(state)
        return queue is not usage.tree.unassigned and (state.life.turns or queue.turns) == "allowed"

    def takes_turns(self, state: PodState) -> bool:
        """Whether its whole job does."""
        return all(map(self.allows, self.members(state)))

    def circle(self, state: PodState) -> tuple[str, int]:
        """Returns what jobs that take turns with each other have in common: queue and priority."""
        usage = self._queues.usage
        return ("" if usage is None else usage.queue_of(state).name, state.pod.spec.priority)

    # --- jobs -------------------------------------------------------------------------------------------------

    def members(self, state: PodState) -> list[PodState]:
        """Returns the pods of its job: those of its gang that have places if it has one, else those that wait."""
        gang = self._gangs.of(state.uid)
        if gang is None:
            return [state]
        uids = gang.placed if state.charged or state.seen_bound else gang.waiting
        found = [self._book.pods[uid] for uid in sorted(uids) if uid in self._book.pods]
        return found if any(member.uid == state.uid for member in found) else [state]

    def job(self, state: PodState, now: float) -> Job:
        """Returns the pod's job, as the rules look at it.

        It has attained what all pods of the gang have together. It runs since its last pod began to; it waits since its
        first one did.
        """
        gang = self._gangs.of(state.uid)
        if gang is None:  # as below; all that wait are weighed in each tick
            attained_ms, since = self._since_lifted(state, now), self._since(state, now)
            idle, bound_s = self.is_idle(state, now), self._back_within_s([state])
            return Job(key=state.uid, attained_gpu_ms=attained_ms, since=since, idle=idle, bound_s=bound_s)
        members = self.members(state)
        counted = {member.uid: member for member in members}
        counted |= {uid: self._book.pods[uid] for uid in gang.known if uid in self._book.pods}
        waits = any(map(is_waiting, members))
        wants = [one for one in members if waits and self._idle_since(one) is None] or members
        times = [self._since(member, now) for member in wants]
        return Job(
            key=gang.key,
            attained_gpu_ms=sum(self._since_lifted(member, now) for member in counted.values()),
            since=min(times) if waits else max(times),
            idle=self.is_idle(state, now),
            bound_s=self._back_within_s(members),
        )

    def _back_within_s(self, members: Sequence[PodState]) -> float:
        suspended = any(one.suspension is not None and is_waiting(one) for one in members)
        return self.watchdog_s(members[0]) if suspended else inf

    def watchdog_s(self, state: PodState) -> float:
        """Returns for how long the pod's job may be suspended at a time; infinite: for ever.

        The shortest bound of its pods, where that of the rules counts for members of a gang that say nothing; never
        less than the shortest bound of the rules.
        """
        gang, rules = self._gangs.of(state.uid), self.rules
        if gang is None:
            told_s = inf if state.life.watchdog_s is None else state.life.watchdog_s
        else:
            default_s = rules.watchdog_s or inf
            told = [one.life.watchdog_s for one in self.members(state)]
            told_s = min(default_s if one_s is None else one_s for one_s in told)
        return max(told_s, rules.least_watchdog_s)

    def watchdog_loads(self) -> dict[tuple[str, str], WatchdogLoad]:
        """Returns by node and uuid the GPUs that jobs with watchdogs have or had."""
        found: dict[tuple[str, str], WatchdogLoad] = {}
        bounds: dict[str, float] = {}
        for held in self._book.grants.values():
            state = self._book.pods.get(held.uid)
            if state is None:
                continue
            gang = self._gangs.of(state.uid)
            key = state.uid if gang is None else gang.key
            if key not in bounds:  # a gang is asked once, and not once for each of its pods
                bounds[key] = self.watchdog_s(state) if self.takes_turns(state) else inf
            bound_s = bounds[key]
            for at, (mib, _) in sum_shares((held.given,)).items() if bound_s < inf else ():
                node = self._book.nodes.get(at[0])
                gpu = None if node is None else node.by_uuid.get(at[1])
                load = found.setdefault(at, WatchdogLoad())
                load.gpus += 1.0 if gpu is None else mib / max(1, gpu.total_mib)
                load.bound_s = min(load.bound_s, bound_s)
        return found

    def is_crowded(
        self, beneficiary: PodState, victim: PodState, loads: Callable[[], Mapping[tuple[str, str], WatchdogLoad]]
    ) -> bool:
        """Whether a job that has not run yet would be one more with a watchdog than the victim's GPUs can serve, so
        that one of them would be ended by its watchdog, or a job without one would starve. `loads` returns what
        `watchdog_loads` does."""
        bound_s = self.watchdog_s(beneficiary)
        if bound_s == inf or beneficiary.seen_bound:
            return False
        grants = [self._book.grants[one.grant_id].given for one in self.members(victim) if one.charged]
        found = loads()
        there = [found[at] for at in sum_shares(grants) if at in found]
        return any(
            round(load.gpus, 6) + 1 > most_with_watchdogs(min(bound_s, load.bound_s), self.rules) for load in there
        )

    def is_idle(self, state: PodState, now: float) -> bool:
        """Whether the pod's whole job is idle, by its nodes' word, and takes turns.

        A job that has been suspended for `max_wait_s` counts as waiting: the wait of a program may be unseen.
        """
        if self._idle_since(state) is None or not self.takes_turns(state):
            return False
        members = self.members(state)
        if any(self._idle_since(member) is None for member in members):
            return False
        if not any(map(is_waiting, members)):
            return True
        since = min(self._since(member, now) for member in members)
        return all(map(is_waiting, members)) and now - since < self.rules.max_wait_s

    def _idle_since(self, state: PodState) -> float | None:
        inventory = self._inventory(state)
        return None if inventory is None else inventory.idle_grants.get(state.grant_id)

    def _inventory(self, state: PodState) -> Inventory | None:
        node = self._book.nodes.get(state.charged)
        return None if node is None else node.inventory

    def attained_gpu_ms(self, state: PodState, now: float) -> int:
        """Returns the GPU time that a pod has had; without a record, since its start.

        While it is idle none is added: it would have yielded to any other.
        """
        runs = state.seen_bound and not state.ended and not is_waiting(state)
        idle_since = self._idle_since(state) if runs else None
        now = now if idle_since is None else min(now, idle_since)
        record = state.gpu_time
        if record is not None:
            return record.attained(gpu_milli(state, self._book) if runs else 0, now, runs=runs)
        started = started_at(state.pod) if state.seen_bound else None
        return 0 if started is None else GpuTime(since=started).attained(gpu_milli(state, self._book), now, runs=True)

    def _since_lifted(self, state: PodState, now: float) -> int:
        lifted = 0 if state.gpu_time is None else state.gpu_time.lifted_at_gpu_ms
        return max(0, self.attained_gpu_ms(state, now) - lifted)

    def _since(self, state: PodState, now: float) -> float:
        if state.gpu_time is not None:
            since = max(state.gpu_time.since, min(self._woken_at(state), now))
            if since - now > CLOCKS_DIFFER_S and state.suspension is not None:
                # Written by a clock that was ahead. How long it has waited is unknown, and a watchdog may end it.
                return now - self.rules.max_wait_s
            return min(since, now)
        found = started_at(state.pod) if state.seen_bound else created_at(state.pod)
        return now if found is None else found

    def _woken_at(self, state: PodState) -> float:
        """Since when it wants the GPU, if it is suspended and was idle; otherwise 0."""
        inventory = self._inventory(state) if state.suspension is not None else None
        return 0.0 if inventory is None else inventory.woken_grants.get(state.grant_id, 0.0)

    def rank(self, waiting: PodState, now: float) -> tuple[int, float, str]:
        """Returns the order in which waiting jobs of one circle are served, the smallest first."""
        return rank(self.job(waiting, now), self.rules, now)

    # --- whose turn ends --------------------------------------------------------------------------------------

    def why_it_stays(self, victim: PodState, now: float) -> str:
        """Returns in a few words why a pod's turn cannot end now, whichever job it would be for; empty if it can."""
        for member in self.members(victim):
            held = self._book.grants.get(member.grant_id)
            why = why_not_disruptable(member, self._book, now, stays=True)
            if why:
                return why
            if not self.allows(member):
                return "takes no turns"
            if member.suspension is not None or held is None or held.phase != "bound" or held.suspension is not None:
                return "suspended already"
            if held.client or not any(
                can_suspend(act, held.given.containers.values()) for act in ("pause", "checkpoint")
            ):
                return "its strategy can neither pause nor checkpoint it"
            least_s, started, record = member.life.min_runtime_s, started_at(member.pod), member.gpu_time
            first = record is None or not record.turns
            if least_s is not None and first and (started is None or now - started < least_s):
                return "minimum run time"
        return ""

    def denial_reason(
        self,
        beneficiary: PodState,
        victim: PodState,
        now: float,
        loads: Callable[[], Mapping[tuple[str, str], WatchdogLoad]] | None = None,
    ) -> str:
        """Returns in a few words why a pod's turn does not end for this one; empty if it does.

        What this denies, `refuses` denies too. `loads` returns what `watchdog_loads` does, for several victims.
        """
        if not self.takes_turns(beneficiary):
            return "the waiting pod takes no turns"
        if self.circle(beneficiary) != self.circle(victim):
            return "of another queue or priority"
        gang = self._gangs.of(victim.uid)
        if victim.uid == beneficiary.uid or (gang is not None and gang is self._gangs.of(beneficiary.uid)):
            return "the same job"
        why = self.why_it_stays(victim, now)
        if why:
            return why
        if self.is_crowded(beneficiary, victim, loads or self.watchdog_loads):
            return "too many jobs with watchdogs have turns there"
        goes_on = not yields(self.job(victim, now), self.job(beneficiary, now), self.rules, now)
        return "its turn goes on" if goes_on else ""

    def refuses(
        self,
        beneficiaries: Sequence[PodState],
        victims: Sequence[PodState],
        actions: Mapping[str, Action],
        now: float,
        loads: Callable[[], Mapping[tuple[str, str], WatchdogLoad]] | None = None,
    ) -> str:
        """Returns why the victims' turns do not end for the beneficiaries; empty if they do.

        `actions`: by the victims' uids, how their turns end. `loads` returns what `watchdog_loads` does, for several
        questions in which the book does not change.
        """
        going = {victim.uid for victim in victims}
        checked: set[str] = set()
        loads = loads or cache(self.watchdog_loads)
        for victim in victims:
            action = actions[victim.uid]
            if action not in TURN_ACTIONS:
                return f"{victim.key}: a turn ends by pause or checkpoint, not by {action}"
            if victim.uid in checked:
                continue
            why = self.denial_reason(beneficiaries[0], victim, now, loads)
            if why:
                return f"the turn of {victim.key} does not end: {why}"
            members = self.members(victim)
            left = next((member for member in members if member.uid not in going), None)
            if left is not None:
                return f"the gang of {victim.key} takes turns as a whole, and {left.key} is no victim"
            checked |= {member.uid for member in members}
        if rank(self.job(beneficiaries[0], now), self.rules, now)[0] == DUE_BACK:
            return ""
        to_host = [victim for victim in victims if actions[victim.uid] == "checkpoint"]
        parked = [self._book.grants[one.grant_id] for one in to_host if one.grant_id in self._book.grants]
        jobs = {members[0].uid: members for members in map(self.members, to_host)}
        kept = self.kept_free(jobs.values(), self.members(beneficiaries[0]), self.host_reserves(), now)
        why = host_memory.lacking(self._book, parked, kept)
        return f"{why}, with what jobs need that come back for their watchdogs" if why else ""

    # --- watchdogs and hosts ----------------------------------------------------------------------------------

    def host_reserve(self, members: Sequence[PodState]) -> dict[str, int]:
        """Returns by node the MiB of its host that stay free while this job is suspended, for those that yield when it
        comes back: as much as it has itself. Nothing for a job without a watchdog."""
        found: dict[str, int] = {}
        if self.watchdog_s(members[0]) == inf:
            return found
        for held in (self._book.grants.get(one.grant_id) for one in members):
            for name, mib in {}.items() if held is None else host_memory.needed_mib(held).items():
                found[name] = found.get(name, 0) + mib
        return found

    def _hosts(self, state: PodState) -> Iterable[str]:
        held = self._book.grants.get(state.grant_id)
        return () if held is None else host_memory.needed_mib(held)

    def host_reserves(self) -> HostReserves:
        """Returns the two largest reserves of each node's host, of the jobs whose memory is on hosts."""
        found: HostReserves = {}
        seen: set[str] = set()
        for uid in (self._book.grants[grant_id].uid for grant_id in self._book.parked):
            state = self._book.pods.get(uid)
            if state is None or uid in seen or not self.takes_turns(state):
                continue
            members = self.members(state)
            seen |= {member.uid for member in members}
            for name, mib in self.host_reserve(members).items():
                found[name] = sorted([*found.get(name, []), (mib, members[0].uid)], reverse=True)[:2]
        return found

    def kept_free(
        self, going: Iterable[Sequence[PodState]], coming: Sequence[PodState], reserves: HostReserves, now: float
    ) -> dict[str, int]:
        """Returns by node the MiB of its host that have to be free besides what is copied there: the largest reserve of
        the jobs that are away once the turn is over, less what the one that comes back frees by then.

        `going`: the members of each job that goes there; an idle one comes back when it wants to, and not by a bound.
        Of nodes where none of them goes nothing is returned. `coming`: those of the one that gets the turn. `reserves`:
        those of the jobs that are there, from `host_reserves`.
        """
        jobs = list(going)
        names = {name for members in jobs for one in members for name in self._hosts(one)}
        found = {name: next((mib for mib, uid in reserves.get(name, ()) if uid != coming[0].uid), 0) for name in names}
        for members in jobs:
            for name, mib in {}.items() if self.is_idle(members[0], now) else self.host_reserve(members).items():
                found[name] = max(found.get(name, 0), mib)
        for held in (self._book.grants.get(one.grant_id) for one in coming):
            for name, mib in host_memory.needed_mib(held).items() if held is not None and held.parked else ():
                found[name] = found.get(name, 0) - mib
        return {name: mib for name, mib in found.items() if mib > 0}

    def quota_exceeded(
        self, beneficiaries: Sequence[PodState], victims: Sequence[PodState], actions: Mapping[str, Action]
    ) -> str:
        """Returns which quota the beneficiaries would exceed when the turns have ended; empty if none."""
        usage = self._queues.usage
        if usage is None:
            return ""
        asked, freed_milli = NOTHING, 0
        for state in beneficiaries:
            held = self._book.grants.get(state.grant_id)
            if held is None:
                asked = asked.plus(self._queues.ask(state))
            else:
                lacking = max(0, usage.milli_of(held.given) - usage.gpu_milli(state.uid))
                asked = asked.plus(NOTHING._replace(gpu_milli=lacking))
        for victim in victims:
            held, action = self._book.grants.get(victim.grant_id), actions[victim.uid]
            if held is not None and action in ("pause", "checkpoint"):
                left = left_of(held.given, Suspension(action=action, plan_id=""))
                freed_milli += max(0, usage.gpu_milli(victim.uid) - usage.milli_of(left))
        extra = asked._replace(gpu_milli=max(0, asked.gpu_milli - freed_milli))
        hit = self._queues.hit(beneficiaries[0], extra)
        return "" if hit is None else f"{beneficiaries[0].key} would exceed the quota of queue {hit.queue.name}"
