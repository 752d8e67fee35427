"""What the watchdogs of suspended jobs forbid: too many jobs on a GPU, and memory that hosts have to keep free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from services.preemptor.turns.circles import TurnJob
from shared.queues.turns import TurnPolicy


class Watchdogs:
    """For one round, in which the book does not change."""

    def __init__(self, policy: TurnPolicy, now: float) -> None:
        self._policy, self._now = policy, now
        self.loads = cache(policy.watchdog_loads)
        """Looks at every grant once, however often it is asked."""
        self._reserves = cache(policy.host_reserves)

    def is_crowded(self, waiting: TurnJob, running: TurnJob) -> bool:
        """Whether a job that has not run yet cannot join those that take turns on the GPUs of a running one."""
        return self._policy.is_crowded(waiting.members[0], running.members[0], self.loads)

    def kept_free(self, yielding: Sequence[TurnJob], waiting: TurnJob) -> Mapping[str, int]:
        """Returns by node the MiB of its host that have to be free besides the memory of those that yield."""
        return self._policy.kept_free([job.members for job in yielding], waiting.members, self._reserves(), self._now)
