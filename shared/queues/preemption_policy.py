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
        """There are no queues, and `may` asks for nothing but a higher priority."""
        return self._queues.usage is None

    def may(self, taker: PodState, giver: PodState) -> bool:
        """Whether it is worth asking, whoever else gives way. What this denies `refuses` denies too."""
        return not self.denies(taker, giver)

    def denies(self, taker: PodState, giver: PodState) -> str:
        """Why it is not worth asking, of many pods in a few words; empty where it is."""
        usage = self._queues.usage
        if usage is None:
            return "" if giver.pod.spec.priority < taker.pod.spec.priority else _EQUALS
        hit = self._queues.hit(taker, self._queues.ask(taker))
        if hit is not None and hit.queue not in usage.queue_of(giver).path():
            return "the queue of who waits may have no more"  # nothing of others makes its own queue's limit wider
        if usage.queue_of(taker) is usage.queue_of(giver):
            return "" if giver.pod.spec.priority < taker.pod.spec.priority else _EQUALS
        if usage.is_non_borrowing(giver):
            return "they stay within their queue's guarantee"
        above = any(
            self._above(usage.queue_of(giver), usage.queue_of(taker), of, {}) for of in (_GUARANTEE, _FAIR_SHARE)
        )
        return "" if above else "their queue has no more than it is due"

    def because(self, taker: PodState | None, giver: PodState | None) -> str:
        """Why one gives way to the other, for whoever reads it on the one that does."""
        usage = self._queues.usage
        if usage is None or taker is None or giver is None or usage.queue_of(taker) is usage.queue_of(giver):
            return "which has a higher priority"
        return "whose queue takes back what it is due"

    def kind_of(self, giver: PodState) -> Kind:
        """All of a giver that `may` looks at: of two of one kind it says the same."""
        usage = self._queues.usage
        priority = giver.pod.spec.priority
        return (
            ("", priority, False)
            if usage is None
            else (usage.queue_of(giver).name, priority, usage.is_non_borrowing(giver))
        )

    def refuses(self, takers: Sequence[PodState], givers: Sequence[PodState], *, stay: Collection[str] = ()) -> str:
        """Why these do not give way to those, all together; empty where they do. `stay`: those of them that do not end,
        and only give up a part of what they have."""
        torn = self._gangs.torn({giver.uid for giver in givers if giver.uid not in stay})
        if torn is not None:
            return (
                f"of gang {torn.name} fewer than the {torn.minimum} that it needs would be left, and not all of it "
                "gives way"
            )
        lowest = min(taker.pod.spec.priority for taker in takers)
        usage = self._queues.usage
        own = [g for g in givers if usage is None or usage.queue_of(g) is usage.queue_of(takers[0])]
        equal = next((g for g in own if g.pod.spec.priority >= lowest), None)
        if equal is not None:
            return f"{equal.key} is of no lower priority: nobody gives way to an equal"
        return self._reclaims(takers, givers)

    def keeps_back(self, takers: Sequence[PodState], givers: Sequence[PodState]) -> str:
        """The bound of their queue that keeps the takers from their places even when all of these have given way."""
        usage = self._queues.usage
        if usage is None:
            return ""
        asked = NOTHING
        for taker in takers:
            asked = asked.plus(self._queues.ask(taker))
        with usage.without(giver.uid for giver in givers):
            hit = self._queues.hit(takers[0], asked)
        return "" if hit is None else f"queue {hit.queue.name} of {takers[0].key} may have no more"

    def is_non_borrowing(self, state: PodState) -> bool:
        """Whether the pod stays within its queue's guarantee by policy."""
        usage = self._queues.usage
        return usage is not None and usage.is_non_borrowing(state)

    def only_by_fair_share(self, takers: Sequence[PodState], givers: Sequence[PodState]) -> bool:
        """Whether it is weights, and no guarantee, by which those of other queues give way."""
        return bool(self._reclaims(takers, givers, (_GUARANTEE,)))

    def standing(self, takers: Sequence[PodState]) -> int:
        """Whose turn it is, the lowest first: a queue that stays within its guarantee, one that stays within its due,
        the others. Placement gives what becomes free in about that order."""
        usage = self._queues.usage
        if usage is None:
            return _GUARANTEE
        path, asked = tuple(usage.queue_of(takers[0]).path()), self.asked_milli(takers)
        kept = (
            of
            for of in (_GUARANTEE, _FAIR_SHARE)
            if all(at.used.gpu_milli + asked <= self._share(at, of) + _ROUNDING for at in path)
        )
        return next(kept, _FAIR_SHARE + 1)

    def asked_milli(self, takers: Sequence[PodState]) -> int:
        """GPU milli that they ask for together."""
        return sum(self._queues.ask(taker).gpu_milli for taker in takers)

    def _reclaims(
        self, takers: Sequence[PodState], givers: Sequence[PodState], by: Sequence[int] = (_GUARANTEE, _FAIR_SHARE)
    ) -> str:
        """Each unit of those who give is held against what is left when the ones before it have gone."""
        usage = self._queues.usage
        if usage is None:
            return ""
        queue, asked = usage.queue_of(takers[0]), self.asked_milli(takers)
        gone: dict[str, int] = {}
        for unit in self._units(givers):
            other = usage.queue_of(unit[0])
            if other is not queue:
                if any(usage.is_non_borrowing(giver) for giver in unit):
                    return f"{unit[0].key} stays within the guarantee of queue {other.name}, which gives nothing back"
                if not any(
                    self._above(other, queue, of, gone) and self._within(queue, other, asked, of, gone) for of in by
                ):
                    return f"queue {other.name} of {unit[0].key} has no more than it is due beside queue {queue.name}"
            for at in other.path():
                gone[at.name] = gone.get(at.name, 0) + sum(usage.gpu_milli(giver.uid) for giver in unit)
        return ""

    def _units(self, givers: Sequence[PodState]) -> list[list[PodState]]:
        """Who goes after whom. Of a gang of which all go first those that it can spare, each by itself, then the rest
        at once."""
        going = {giver.uid for giver in givers}
        spare = {gang.key: len(gang.placed) - gang.minimum for gang in self._gangs.among(going) if gang.placed <= going}
        alone: list[list[PodState]] = []
        whole: dict[str, list[PodState]] = {}
        for giver in givers:
            gang = self._gangs.of(giver.uid)
            if gang is None or spare.get(gang.key, 1) > 0:
                alone.append([giver])
            else:
                whole.setdefault(gang.key, []).append(giver)
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

    def _above(self, giver: Branch, taker: Branch, of: int, gone: dict[str, int]) -> bool:
        return all(at.used.gpu_milli - gone.get(at.name, 0) > self._share(at, of) for at in _apart(giver, taker))

    def _within(self, taker: Branch, giver: Branch, asked: int, of: int, gone: dict[str, int]) -> bool:
        return all(
            at.used.gpu_milli - gone.get(at.name, 0) + asked <= self._share(at, of) + _ROUNDING
            for at in _apart(taker, giver)
        )


_ROUNDING = 1e-6


def _apart(one: Branch, other: Branch) -> list[Branch]:
    """One and its ancestors below the first that both have."""
    common = set(map(id, other.path()))
    return [at for at in one.path() if id(at) not in common]
