"""Decides which slice runs on one GPU, if a process bypasses the interposer. Pure: the caller passes the time.

One slice is the *owner* and runs. Idle slices may begin work at any time. Busy slices that are not the owner wait.
- The slices of the highest rank that want the GPU get it. A slice stops wanting it only after `idle_for_ns` of idleness
  (hysteresis), because a gap between two kernels is not the end of its work.
- Slices of equal rank take quanta in rotation; the slice with the least recent GPU time is next.
- A slice of lower rank runs in the gaps. If it has a guaranteed minimum share, it earns that share over time. When it
  has earned a quantum that it did not get in a gap, it owns the GPU for one quantum, whatever other slices want the
  GPU. The sum of these shares is limited to half of the time.
- A slice of higher rank that becomes busy takes the GPU at once, except during such a quantum.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.node_agent.strategies.slices import Key

MAX_FLOOR_SUM_MILLI = 500


class QuantumPolicy(msgspec.Struct, frozen=True, kw_only=True):
    quantum_ns: int = 50_000_000
    """A lock and an unlock together take about 2 ms, so at most a twentieth of a quantum is lost."""
    idle_for_ns: int = 20_000_000
    least_milli: int = 0


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one slice since the last step. A slice that waits counts as busy if it was busy when it was
    stopped."""

    key: Key
    rank: tuple[int, int]
    busy: bool
    used_ns: int = 0
    """GPU time used. If that is unknown, the time in which the slice was allowed to run and busy."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    owner: Key | None
    waiting: frozenset[Key]
    """Slices that may not begin work now."""


class _State(msgspec.Struct):
    earned_ns: int = 0
    recent_ns: int = 0
    """GPU time used, halved from time to time, so that old use counts less."""
    wanted_ns: int = -(1 << 62)
    """When the slice was last seen busy."""


class QuantumScheduler:
    """The scheduler of one GPU."""

    def __init__(self, policy: QuantumPolicy) -> None:
        self._policy = policy
        self._states: dict[Key, _State] = {}
        self._owner: Key | None = None
        self._since_ns = 0
        self._due = False
        self._last_ns: int | None = None

    def step(self, now_ns: int, seen: Iterable[Contender]) -> Decision:
        """Decides from the contenders' state. It can be called at any interval; shorter intervals give more exact
        shares."""
        contenders = {c.key: c for c in seen}
        span_ns = 0 if self._last_ns is None else max(0, now_ns - self._last_ns)
        self._last_ns = now_ns
        self._states = {key: self._states.get(key) or _State() for key in contenders}
        for key, contender in contenders.items():
            self._account(self._states[key], contender, span_ns, now_ns, len(contenders))
        wants = {
            key: c for key, c in contenders.items() if now_ns - self._states[key].wanted_ns <= self._policy.idle_for_ns
        }
        owner, due = self._next(now_ns, wants)
        if owner != self._owner or due != self._due or now_ns - self._since_ns >= self._policy.quantum_ns:
            self._owner, self._due, self._since_ns = owner, due, now_ns
        return Decision(
            owner=owner,
            waiting=frozenset(key for key in wants if key != owner and self._stops(contenders[key], wants, owner)),
        )

    def _account(self, state: _State, seen: Contender, span_ns: int, now_ns: int, contenders: int) -> None:
        if seen.busy:
            state.wanted_ns = now_ns
            share = min(self._policy.least_milli, MAX_FLOOR_SUM_MILLI // max(1, contenders - 1))
            # The limit prevents a long run after the agent was frozen for a long time.
            state.earned_ns = min(state.earned_ns + span_ns * share // 1000, 2 * self._policy.quantum_ns)
        # Time in the gaps beyond what the slice had earned is free: it makes no debt.
        state.earned_ns = max(0, state.earned_ns - seen.used_ns)
        state.recent_ns += seen.used_ns
        if state.recent_ns > 8 * self._policy.quantum_ns:
            for other in self._states.values():
                other.recent_ns //= 2

    def _next(self, now_ns: int, wants: dict[Key, Contender]) -> tuple[Key | None, bool]:
        if not wants:
            return None, False
        over = now_ns - self._since_ns >= self._policy.quantum_ns
        if self._due and self._owner in wants and not over:
            return self._owner, True
        highest = max(contender.rank for contender in wants.values())
        due = [
            key
            for key, c in wants.items()
            if c.rank < highest and self._states[key].earned_ns >= self._policy.quantum_ns
        ]
        if due:
            return max(due, key=lambda key: (self._states[key].earned_ns, key)), True
        level = [key for key, contender in wants.items() if contender.rank == highest]
        if self._owner in level and not over:
            return self._owner, False
        return min(level, key=lambda key: (self._states[key].recent_ns, key == self._owner, key)), False

    def _stops(self, contender: Contender, wants: dict[Key, Contender], owner: Key | None) -> bool:
        """Whether to stop a slice that is not the owner: if it is busy, or of lower rank than the owner."""
        return contender.busy or (owner is not None and contender.rank < wants[owner].rank)
