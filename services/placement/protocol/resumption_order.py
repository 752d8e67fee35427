"""In which order suspended pods resume, and which of them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.queues.preemption_policy import PreemptionPolicy
from shared.queues.turns import TurnPolicy, is_waiting

Unit = list[PodState]
"""Pods that resume together: one pod, or all of a gang that takes turns or is suspended for one."""
Key = tuple[int, int, int, float | str, str]
_FIRST, _IN_TURN = 0, 1


class ResumptionOrder:
    """The highest priority comes first. Of equals those that take no turns, and gangs of which some run already; then
    jobs in the order of their turns. Those that are idle do not resume. All times are seconds since 1970."""

    def __init__(self, gangs: Gangs, preemption_policy: PreemptionPolicy, turns: TurnPolicy) -> None:
        self._gangs, self._preemption_policy, self._turns = gangs, preemption_policy, turns

    def units(self, suspended: Sequence[PodState], now: float) -> list[Unit]:
        """Returns what may resume of these pods, in no order. A gang that takes turns waits until all of its suspended
        pods are among them."""
        found: dict[str, Unit] = {}
        uids, seen = {state.uid for state in suspended}, set[str]()
        for state in suspended:
            if state.uid in seen:
                continue
            together = self._together(state)
            seen.update(member.uid for member in together)
            idle = is_waiting(state) and self._turns.is_idle(state, now)
            if not idle and all(member.uid in uids for member in together):
                found[min(member.uid for member in together)] = together
        return list(found.values())

    def sort(self, units: Iterable[Unit], now: float) -> list[Unit]:
        """Returns them in the order in which they resume."""
        return sorted(units, key=lambda unit: self._key(unit, now))

    def comes_before(self, unit: Unit, waiter: PodState, now: float) -> bool:
        """Whether suspended pods resume before a pending pod is tried: if it could not preempt them, and it is not
        its turn first."""
        if any(self._preemption_policy.may_preempt(waiter, state) for state in unit):
            return False
        state, turns = unit[0], self._turns
        if self._is_first(unit) or not turns.takes_turns(waiter) or turns.circle(waiter) != turns.circle(state):
            return True
        return turns.rank(state, now) < turns.rank(waiter, now)

    def _together(self, state: PodState) -> Unit:
        gang = self._gangs.of(state.uid)
        if gang is None or not is_waiting(state):
            return [state]
        waiting = [member for member in self._turns.members(state) if member.seen_bound and is_waiting(member)]
        # What was suspended for a turn as a whole comes back as a whole, whatever its queue or its pods say since.
        return waiting if self._turns.takes_turns(state) or any(map(_turn_of, waiting)) else [state]

    def _is_first(self, unit: Unit) -> bool:
        """Whether it does not wait for a turn: it takes none, or has begun one in part."""
        state = unit[0]
        return (
            not is_waiting(state)
            or not self._turns.takes_turns(state)
            or any(not is_waiting(member) for member in self._turns.members(state))
        )

    def _key(self, unit: Unit, now: float) -> Key:
        first = min(unit, key=lambda state: (state.pod.metadata.creation_timestamp, state.uid))
        priority = -max(state.pod.spec.priority for state in unit)
        if self._is_first(unit):
            return (priority, _FIRST, 0, first.pod.metadata.creation_timestamp, first.uid)
        level, since, key = self._turns.rank(first, now)
        return (priority, _IN_TURN, level, since, key)


def _turn_of(state: PodState) -> str:
    """For whose turn it is suspended; empty if for none."""
    return "" if state.gpu_time is None else state.gpu_time.turn_of
