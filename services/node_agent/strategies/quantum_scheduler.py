"""Whose turn it is on one GPU, where the page does not reach. Pure: looks in, turns out; time is the caller's.

One is the *owner*, and runs; those that are idle may begin at any time; those that are busy and not the owner wait.
- The highest rank that wants the GPU has it. Wanting ends only after `idle_for_ns` of idleness (hysteresis): a gap between two
  kernels is no end of work.
- Within a rank it goes round by quanta, whoever has had least of the last ones first.
- A lower rank runs in the gaps. Its guaranteed least share, where there is one, it earns with time; when it has earned a quantum
  that it did not get in a gap, it is the owner for one quantum, whoever else wants the GPU. All such shares together are kept to
  half of the time.
- A higher rank that comes back takes the GPU at once, but for such a quantum.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.node_agent.strategies.slices import Key

MAX_FLOOR_SUM_MILLI = 500


class QuantumPolicy(msgspec.Struct, frozen=True, kw_only=True):
    quantum_ns: int = 50_000_000
    """A lock and an unlock take about 2 ms together, so a twentieth of it is lost at most."""
    idle_for_ns: int = 20_000_000
    least_milli: int = 0


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of one since the last look. `busy` of one that is kept waiting: it was busy when it was stopped."""

    key: Key
    rank: tuple[int, int]
    busy: bool
    used_ns: int = 0
    """GPU time; where nobody can say, the time that it was let run and busy."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    owner: Key | None
    waiting: frozenset[Key]
    """Those that may begin nothing now."""


class _State(msgspec.Struct):
    earned_ns: int = 0
    recent_ns: int = 0
    """Of its rank's turns, halved now and then, so that the past is forgotten."""
    wanted_ns: int = -(1 << 62)
    """When it was last seen busy."""


class QuantumScheduler:
    """Of one GPU."""

    def __init__(self, policy: QuantumPolicy) -> None:
        self._policy = policy
        self._states: dict[Key, _State] = {}
        self._owner: Key | None = None
        self._since_ns = 0
        self._due = False
        self._last_ns: int | None = None

    def step(self, now_ns: int, seen: Iterable[Contender]) -> Decision:
        """Looks may come at any pace; the finer, the nearer to the promise."""
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
            # An agent that was frozen for long owes no long turn.
            state.earned_ns = min(state.earned_ns + span_ns * share // 1000, 2 * self._policy.quantum_ns)
        # What it got beyond what it had earned is a gift of the gaps, and no debt.
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
        """A lone gap of a higher rank does not stop it: only a busy one is worth a lock, or one of lower rank."""
        return contender.busy or (owner is not None and contender.rank < wants[owner].rank)
