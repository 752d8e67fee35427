"""Decides which pods may preempt which.

The preemptor chooses victims by it, and placement checks every plan with it.

- Within a queue, and without queues: only a pod of higher priority preempts.
- Between queues priority does not count. A queue within its guarantee reclaims from one that is above its own.
  A queue that stays within its fair share (`fair_shares`) reclaims from one that is above its own, so borrowed capacity
  returns. If queues have parents, the siblings below their first common ancestor are compared, and each of their
  descendants on the path. Pods that stay within guarantees by policy have borrowed nothing and cannot be reclaimed.
- A gang is preempted as a whole, or keeps at least its minimum of members.

There is no cycle: no such step increases the sum of what queues have above their fair shares, and a step that leaves it
unchanged decreases the sum of what they have above their guarantees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from shared.book.gangs import Gangs
from shared.book.states import GrantState, PodState
from shared.model.grant import Grant
from shared.model.life import NOT_PREEMPTIBLE
from shared.queues.amounts import Amount
from shared.queues.fair_shares import fair_shares
from shared.queues.queues import Queues
from shared.queues.tree import Branch

_GUARANTEE, _FAIR_SHARE = 0, 1
_EQUALS = "of no lower priority"
Kind = tuple[str, int, bool]
"""Queue, priority, and whether the pod stays within guarantees."""


class PreemptionPolicy:
    def __init__(self, queues: Queues, gangs: Gangs) -> None:
        self._queues, self._gangs = queues, gangs
        self._fair_shares: dict[str, float] | None = None
        self._leaving: Collection[str] = ()

    def begin(self) -> None:
        """Forgets cached fair shares: use, demand and capacity may have changed."""
        self._fair_shares = None

    def note_leaving(self, uids: Collection[str]) -> None:
        """Notes the victims of all plans in progress, by uid. What they have still counts as used, and soon does not:
        several plans at once must not take a queue below its share."""
        self._leaving = uids

    @property
    def by_priority_alone(self) -> bool:
        """Whether there are no queues: then `may_preempt` requires only a higher priority."""
        return self._queues.usage is None

    def may_preempt(self, beneficiary: PodState, victim: PodState) -> bool:
        """Whether the victim is eligible, whatever the other victims. What this denies, `refuses` denies too."""
        return not self.denial_reason(beneficiary, victim)

    def denial_reason(self, beneficiary: PodState, victim: PodState) -> str:
        """Returns in a few words why a pod is not eligible as victim; empty if it is."""
        usage = self._queues.usage
        if usage is None:
            return "" if victim.pod.spec.priority < beneficiary.pod.spec.priority else _EQUALS
        hit = self._queues.hit(beneficiary, self._queues.ask(beneficiary))
        if hit is not None and hit.queue not in usage.queue_of(victim).path():
            return "the pending pod's queue is at its limit"  # victims in other queues do not raise that limit
        if usage.queue_of(beneficiary) is usage.queue_of(victim):
            return "" if victim.pod.spec.priority < beneficiary.pod.spec.priority else _EQUALS
        if usage.is_non_borrowing(victim):
            return "within their queue's guarantee by policy"
        above = any(
            self._above(usage.queue_of(victim), usage.queue_of(beneficiary), of, {}) for of in (_GUARANTEE, _FAIR_SHARE)
        )
        return "" if above else "their queue is within its share"

    def reason_for(self, beneficiary: PodState | None, victim: PodState | None) -> str:
        """Returns why one pod preempts the other, as victims' Events show it."""
        usage = self._queues.usage
        if (
            usage is None
            or beneficiary is None
            or victim is None
            or usage.queue_of(beneficiary) is usage.queue_of(victim)
        ):
            return "which has a higher priority"
        return "whose queue reclaims its share"

    def preemption_class(self, victim: PodState) -> Kind:
        """All of a giver that `may_preempt` looks at: of two of one kind it says the same."""
        usage = self._queues.usage
        priority = victim.pod.spec.priority
        return (
            ("", priority, False)
            if usage is None
            else (usage.queue_of(victim).name, priority, usage.is_non_borrowing(victim))
        )

    def refuses(
        self, beneficiaries: Sequence[PodState], victims: Sequence[PodState], *, stay: Collection[str] = ()
    ) -> str:
        """Returns why the victims may not be preempted together; empty if they may.

        `stay`: uids of victims that are only suspended.
        """
        fixed = next((victim for victim in victims if not victim.life.preemptible), None)
        if fixed is not None:
            return f"{fixed.key} is {NOT_PREEMPTIBLE}"
        below_minimum = self._gangs.broken_by({victim.uid for victim in victims if victim.uid not in stay})
        if below_minimum is not None:
            return (
                f"gang {below_minimum.name} would keep fewer than its minimum of {below_minimum.minimum} members, "
                "and not all of them are victims"
            )
        lowest = min(beneficiary.pod.spec.priority for beneficiary in beneficiaries)
        usage = self._queues.usage
        own = [g for g in victims if usage is None or usage.queue_of(g) is usage.queue_of(beneficiaries[0])]
        equal = next((g for g in own if g.pod.spec.priority >= lowest), None)
        if equal is not None:
            return f"{equal.key} is of no lower priority: pods of equal priority are not preempted"
        return self._reclaims(beneficiaries, victims)

    def quota_exceeded(self, beneficiaries: Sequence[PodState], gone: Iterable[str] = ()) -> str:
        """Returns which quota the beneficiaries would exceed even without these pods, by uid; empty if none. Of a pod
        that is deleted a grant may still count."""
        return self._queues.exceeded_by([(state, self._queues.ask(state)) for state in beneficiaries], gone)

    def quota_exceeded_on(self, placed: Sequence[tuple[PodState, Grant]], gone: Iterable[str]) -> str:
        """Returns the same for the GPUs that were found: of a small one a slice takes a larger part."""
        return self._queues.exceeded_on(placed, gone)

    def quota_exceeded_by_resuming(self, suspended: Sequence[tuple[PodState, GrantState]]) -> str:
        """Returns the same for suspended pods that would have all of their grants again. What a pod gives up does not
        count while it is suspended, and others of its queue may have begun meanwhile."""
        usage = self._queues.usage
        if usage is None:
            return ""
        asked = [
            (state, Amount(gpu_milli=usage.milli_of(held.given) - usage.milli_of(held.grant)))
            for state, held in suspended
            if usage.queue_of(state) is not usage.tree.unassigned  # of a queue that is gone: it runs on, as others do
        ]
        return self._queues.exceeded_by(asked)

    def is_non_borrowing(self, state: PodState) -> bool:
        """Whether the pod stays within its queue's guarantee by policy."""
        usage = self._queues.usage
        return usage is not None and usage.is_non_borrowing(state)

    def is_only_by_fair_share(self, beneficiaries: Sequence[PodState], victims: Sequence[PodState]) -> bool:
        """Whether victims of other queues are reclaimed only by weights, and not by a guarantee."""
        return bool(self._reclaims(beneficiaries, victims, (_GUARANTEE,)))

    def queue_rank(self, beneficiaries: Sequence[PodState]) -> int:
        """Returns the rank of the beneficiaries' queue; the lowest is served first.

        0: it stays within its guarantee; 1: within its fair share; 2: neither. Placement assigns free capacity in about
        that order.
        """
        usage = self._queues.usage
        if usage is None:
            return _GUARANTEE
        path, asked = tuple(usage.queue_of(beneficiaries[0]).path()), self.asked_milli(beneficiaries)
        kept = (
            of
            for of in (_GUARANTEE, _FAIR_SHARE)
            if all(at.used.gpu_milli + asked <= self._share(at, of) + _ROUNDING for at in path)
        )
        return next(kept, _FAIR_SHARE + 1)

    def asked_milli(self, beneficiaries: Sequence[PodState]) -> int:
        """Returns the GPU milli that the beneficiaries request together."""
        return sum(self._queues.ask(beneficiary).gpu_milli for beneficiary in beneficiaries)

    def _reclaims(
        self,
        beneficiaries: Sequence[PodState],
        victims: Sequence[PodState],
        by: Sequence[int] = (_GUARANTEE, _FAIR_SHARE),
    ) -> str:
        """Returns why victims of other queues cannot be reclaimed; empty if they can.

        Each unit of victims is compared with what is left when those of plans in progress and the units before it are
        gone. `by`: by guarantee, by fair share.
        """
        usage = self._queues.usage
        if usage is None:
            return ""
        queue, asked = usage.queue_of(beneficiaries[0]), self.asked_milli(beneficiaries)
        going = {victim.uid for victim in victims}
        gone = usage.gpu_milli_by_queue(uid for uid in self._leaving if uid not in going)
        for unit in self._units(victims):
            other = usage.queue_of(unit[0])
            if other is not queue:
                if any(usage.is_non_borrowing(victim) for victim in unit):
                    return (
                        f"{unit[0].key} is within the guarantee of queue {other.name} by policy and cannot be reclaimed"
                    )
                if not any(
                    self._above(other, queue, of, gone) and self._within(queue, other, asked, of, gone) for of in by
                ):
                    return f"queue {other.name} of {unit[0].key} is within its share compared with queue {queue.name}"
            for at in other.path():
                gone[at.name] = gone.get(at.name, 0) + sum(usage.gpu_milli(victim.uid) for victim in unit)
        return ""

    def _units(self, victims: Sequence[PodState]) -> list[list[PodState]]:
        """Returns the victims in units that end together, in their order.

        Of a gang that ends as a whole, the members that it can spare are single units, and the rest is one unit.
        """
        going = {victim.uid for victim in victims}
        ending = {gang.key for gang in self._gangs.among(going) if gang.placed <= going}
        alone: list[list[PodState]] = []
        whole: dict[str, list[PodState]] = {}
        gone: set[str] = set()
        for victim in victims:
            gang = self._gangs.of(victim.uid)
            if gang is None or gang.key not in ending or self._gangs.lives_without(gang, {*gone, victim.uid}):
                alone.append([victim])
            else:
                whole.setdefault(gang.key, []).append(victim)
            gone.add(victim.uid)
        return [*alone, *whole.values()]

    # --- shares -----------------------------------------------------------------------------------------------

    def _share(self, at: Branch, of: int) -> float:
        if of == _GUARANTEE:
            return at.guaranteed[0] or 0
        if self._fair_shares is None:
            tree = self._queues.tree
            self._fair_shares = {} if tree is None else fair_shares(tree, self._queues.wanted())
        return self._fair_shares.get(at.name, 0.0)

    def _above(self, victim: Branch, beneficiary: Branch, of: int, gone: dict[str, int]) -> bool:
        return all(at.used.gpu_milli - gone.get(at.name, 0) > self._share(at, of) for at in _apart(victim, beneficiary))

    def _within(self, beneficiary: Branch, victim: Branch, asked: int, of: int, gone: dict[str, int]) -> bool:
        return all(
            at.used.gpu_milli - gone.get(at.name, 0) + asked <= self._share(at, of) + _ROUNDING
            for at in _apart(beneficiary, victim)
        )


_ROUNDING = 1e-6


def _apart(one: Branch, other: Branch) -> list[Branch]:
    """Returns a queue and its ancestors below the first common ancestor."""
    common = set(map(id, other.path()))
    return [at for at in one.path() if id(at) not in common]
