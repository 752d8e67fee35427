"""Who gives way to whom. The preemptor looks for victims by it, and placement holds every plan against it.

- Within a queue, and where there are no queues: nobody gives way to a pod of no higher priority.
- Between queues priority counts for nothing. A queue that stays within its guarantee takes back from one that is above
  its own; and one that stays within its due from one that is above its due (`fair_shares`), so that what was borrowed
  comes back. Where queues have parents the parents are held against each other: siblings below their first common
  ancestor, and each of their descendants on the way. Pods that stay within guarantees by policy have borrowed nothing,
  and give nothing back.
- A gang goes whole, or keeps as many members as it needs.

There is no circle: no such step makes the sum of what queues have above their dues larger, and one that leaves it as it
is makes the sum of what they have above their guarantees smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.queues.amounts import NOTHING
from shared.queues.fair_shares import fair_shares
from shared.queues.queues import Queues
from shared.queues.tree import Branch

_GUARANTEE, _FAIR_SHARE = 0, 1
_EQUALS = "of no lower priority"
Kind = tuple[str, int, bool]
"""Queue, priority, and whether it stays within guarantees."""


class PreemptionPolicy:
    def __init__(self, queues: Queues, gangs: Gangs) -> None:
        self._queues, self._gangs = queues, gangs
        self._fair_shares: dict[str, float] | None = None

    def begin(self) -> None:
        """Uses, demands and capacities may have changed."""
        self._fair_shares = None

    @property
    def by_priority_alone(self) -> bool:
        """There are no queues, and `may_preempt` asks for nothing but a higher priority."""
        return self._queues.usage is None

    def may_preempt(self, beneficiary: PodState, victim: PodState) -> bool:
        """Whether it is worth asking, whoever else gives way. What this denies `refuses` denies too."""
        return not self.denial_reason(beneficiary, victim)

    def denial_reason(self, beneficiary: PodState, victim: PodState) -> str:
        """Why it is not worth asking, of many pods in a few words; empty where it is."""
        usage = self._queues.usage
        if usage is None:
            return "" if victim.pod.spec.priority < beneficiary.pod.spec.priority else _EQUALS
        hit = self._queues.hit(beneficiary, self._queues.ask(beneficiary))
        if hit is not None and hit.queue not in usage.queue_of(victim).path():
            return "the queue of who waits may have no more"  # nothing of others makes its own queue's limit wider
        if usage.queue_of(beneficiary) is usage.queue_of(victim):
            return "" if victim.pod.spec.priority < beneficiary.pod.spec.priority else _EQUALS
        if usage.is_non_borrowing(victim):
            return "they stay within their queue's guarantee"
        above = any(
            self._above(usage.queue_of(victim), usage.queue_of(beneficiary), of, {}) for of in (_GUARANTEE, _FAIR_SHARE)
        )
        return "" if above else "their queue has no more than it is due"

    def reason_for(self, beneficiary: PodState | None, victim: PodState | None) -> str:
        """Why one gives way to the other, for whoever reads it on the one that does."""
        usage = self._queues.usage
        if (
            usage is None
            or beneficiary is None
            or victim is None
            or usage.queue_of(beneficiary) is usage.queue_of(victim)
        ):
            return "which has a higher priority"
        return "whose queue takes back what it is due"

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
        """Why these do not give way to those, all together; empty where they do. `stay`: those of them that do not end, and only
        give up a part of what they have."""
        torn = self._gangs.torn({victim.uid for victim in victims if victim.uid not in stay})
        if torn is not None:
            return f"of gang {torn.name} fewer than the {torn.minimum} that it needs would be left, and not all of it gives way"
        lowest = min(beneficiary.pod.spec.priority for beneficiary in beneficiaries)
        usage = self._queues.usage
        own = [g for g in victims if usage is None or usage.queue_of(g) is usage.queue_of(beneficiaries[0])]
        equal = next((g for g in own if g.pod.spec.priority >= lowest), None)
        if equal is not None:
            return f"{equal.key} is of no lower priority: nobody gives way to an equal"
        return self._reclaims(beneficiaries, victims)

    def quota_exceeded(self, beneficiaries: Sequence[PodState], victims: Sequence[PodState]) -> str:
        """The bound of their queue that keeps the takers from their places even when all of these have given way."""
        usage = self._queues.usage
        if usage is None:
            return ""
        asked = NOTHING
        for beneficiary in beneficiaries:
            asked = asked.plus(self._queues.ask(beneficiary))
        with usage.without(victim.uid for victim in victims):
            hit = self._queues.hit(beneficiaries[0], asked)
        return "" if hit is None else f"queue {hit.queue.name} of {beneficiaries[0].key} may have no more"

    def is_non_borrowing(self, state: PodState) -> bool:
        """Whether the pod stays within its queue's guarantee by policy."""
        usage = self._queues.usage
        return usage is not None and usage.is_non_borrowing(state)

    def is_only_by_fair_share(self, beneficiaries: Sequence[PodState], victims: Sequence[PodState]) -> bool:
        """Whether it is weights, and no guarantee, by which those of other queues give way."""
        return bool(self._reclaims(beneficiaries, victims, (_GUARANTEE,)))

    def queue_rank(self, beneficiaries: Sequence[PodState]) -> int:
        """Whose turn it is, the lowest first: a queue that stays within its guarantee, one that stays within its due, the others.
        Placement gives what becomes free in about that order."""
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
        """GPU milli that they ask for together."""
        return sum(self._queues.ask(beneficiary).gpu_milli for beneficiary in beneficiaries)

    def _reclaims(
        self,
        beneficiaries: Sequence[PodState],
        victims: Sequence[PodState],
        by: Sequence[int] = (_GUARANTEE, _FAIR_SHARE),
    ) -> str:
        """Each unit of those who give is held against what is left when the ones before it have gone."""
        usage = self._queues.usage
        if usage is None:
            return ""
        queue, asked = usage.queue_of(beneficiaries[0]), self.asked_milli(beneficiaries)
        gone: dict[str, int] = {}
        for unit in self._units(victims):
            other = usage.queue_of(unit[0])
            if other is not queue:
                if any(usage.is_non_borrowing(victim) for victim in unit):
                    return f"{unit[0].key} stays within the guarantee of queue {other.name}, which gives nothing back"
                if not any(
                    self._above(other, queue, of, gone) and self._within(queue, other, asked, of, gone) for of in by
                ):
                    return f"queue {other.name} of {unit[0].key} has no more than it is due beside queue {queue.name}"
            for at in other.path():
                gone[at.name] = gone.get(at.name, 0) + sum(usage.gpu_milli(victim.uid) for victim in unit)
        return ""

    def _units(self, victims: Sequence[PodState]) -> list[list[PodState]]:
        """Who goes after whom. Of a gang of which all go first those that it can spare, each by itself, then the rest at once."""
        going = {victim.uid for victim in victims}
        spare = {gang.key: len(gang.placed) - gang.minimum for gang in self._gangs.among(going) if gang.placed <= going}
        alone: list[list[PodState]] = []
        whole: dict[str, list[PodState]] = {}
        for victim in victims:
            gang = self._gangs.of(victim.uid)
            if gang is None or spare.get(gang.key, 1) > 0:
                alone.append([victim])
            else:
                whole.setdefault(gang.key, []).append(victim)
            if gang is not None and gang.key in spare:
                spare[gang.key] -= 1
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
    """One and its ancestors below the first that both have."""
    common = set(map(id, other.path()))
    return [at for at in one.path() if id(at) not in common]
