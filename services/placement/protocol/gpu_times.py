"""What is written to `kerf.dev/gpu-time` with each suspension and each resumption."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from services.placement.protocol.unix_time import UnixTime
from shared.book.book import Book
from shared.book.disruption_cost import gpu_milli
from shared.book.states import PodState
from shared.model.suspension import Suspension
from shared.queues.turns import TURN_ACTIONS, TurnPolicy, is_waiting
from shared.turns.gpu_time import GpuTime, encode_gpu_time
from shared.turns.rules import is_overdue, level


class GpuTimes:
    """Every pod that is paused or checkpointed gets the record, for its next plan may be a turn's."""

    def __init__(self, book: Book, turns: TurnPolicy, clock: UnixTime) -> None:
        self._book, self._turns, self._clock = book, turns, clock

    def at_suspension(self, state: PodState, suspension: Suspension, now: float, *, turn_of: str) -> str:
        """Returns the record of a pod that stops running now; empty for an action that lets it run.

        `turn_of`: for whose turn; empty for none.
        """
        if suspension.action not in TURN_ACTIONS:
            return ""
        at = self._clock.at(now)
        before = state.gpu_time or GpuTime(since=at)
        if is_waiting(state):  # by another action already: it goes on waiting
            return encode_gpu_time(before)
        attained = self._turns.attained_gpu_ms(state, at)
        count = before.turns + bool(turn_of)
        return encode_gpu_time(replace(before, since=at, attained_gpu_ms=attained, turns=count, turn_of=turn_of))

    def at_resumption(self, state: PodState, now: float) -> str:
        """Returns the record of a pod that runs from now on. One that has waited too long begins again at level 0."""
        if not is_waiting(state):
            return ""
        at = self._clock.at(now)
        before = state.gpu_time or GpuTime(since=at)
        attained = self._turns.attained_gpu_ms(state, at)
        lifted = before.lifted_at_gpu_ms
        if self._turns.takes_turns(state) and is_overdue(self._turns.job(state, at), self._turns.rules, at):
            lifted = attained
        return encode_gpu_time(replace(before, since=at, attained_gpu_ms=attained, lifted_at_gpu_ms=lifted, turn_of=""))

    def so_far(self, state: PodState, now: float) -> str:
        """Says in an Event how a pod that takes turns stands; empty for others."""
        if not self._turns.takes_turns(state):
            return ""
        at = self._clock.at(now)
        job, does = self._turns.job(state, at), "waited" if is_waiting(state) else "run"
        had = self._turns.attained_gpu_ms(state, at) // 1000
        late_s = round(at - job.since - job.bound_s) if job.bound_s < inf else 0
        late = f", {late_s} s longer than its watchdog bears" if late_s > 0 else ""
        return (
            f"; it has {does} for {max(0, round(at - job.since))} s{late} and has had {had} GPU-seconds "
            f"(level {level(job, self._turns.rules)})"
        )

    def at_its_end(self, does: str, state: PodState, now: float) -> tuple[str, str]:
        """Says in an Event of a pod whose turn ends what is done to it and why, and when it resumes."""
        if self._turns.is_idle(state, self._clock.at(now)):
            return f"{does} while idle", f"{self.so_far(state, now)}; it resumes when it wants the GPU, in its turn"
        return does, f"{self.so_far(state, now)}; it resumes in its next turn"

    def never_stopped(self, state: PodState, now: float) -> str:
        """Returns the record of a pod whose node could not suspend it: it has run all the time."""
        if not is_waiting(state) or state.gpu_time is None:
            return ""
        at, milli = self._clock.at(now), gpu_milli(state, self._book)
        attained = state.gpu_time.attained(milli, at, runs=True)
        return encode_gpu_time(replace(state.gpu_time, since=at, attained_gpu_ms=attained, turn_of=""))
