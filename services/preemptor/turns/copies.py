"""Says how long the copies of a turn take: GPU memory to the host, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

import msgspec

from services.preemptor.turns.circles import TurnJob
from shared.book import host_memory
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.contracts.preemption import Plan
from shared.model.gpu import HostMemory
from shared.model.suspension import SuspendAction

STOPPED_WITHIN_S = 100.0
"""How long a node may take to stop a pod: a hook's answer and its file (60 and 30 s), and attempts to hold a gang."""

MOST_S = 3600
"""The longest deadline for copies: a plan keeps what it reserves for so long."""


class Copies(msgspec.Struct, frozen=True):
    book: Book
    mib_per_s: float
    """Between one GPU and a host that has not copied yet and so does not say how fast it is; all GPUs copy at once."""
    fixed_s: float
    """For each suspension and each resumption of a pod there, besides its bytes."""
    max_part: float
    """The copies of a turn may take this part of its length."""

    def mib_of(self, members: Iterable[PodState]) -> int:
        """Returns the GPU memory that these pods may have: so much goes to hosts."""
        return sum(host_memory.held_mib(self._grants(members)).values())

    def both_ways_s(self, waiting: TurnJob, victims: Sequence[TurnJob], action: SuspendAction) -> float:
        """Returns how long the victims take to the host and back, and the waiting job if it is there."""
        out = [m for job in victims for m in job.members] if action == "checkpoint" else []
        return sum((*self._ways_s(out), *self._ways_s([m for m in waiting.members if self._is_parked(m)])))

    def within_s(self, plan: Plan) -> int:
        """Returns the deadline of a plan with time to stop what is copied, and twice the time that its copies are
        expected to take, for told speeds are means."""
        pods = self.book.pods
        out = [pods[v.uid] for v in plan.victims if v.action == "checkpoint" and v.uid in pods]
        back = [pods[b.uid] for b in plan.beneficiaries if b.resumes and b.uid in pods and self._is_parked(pods[b.uid])]
        if not out and not back:
            return plan.deadline_s
        copied_s = self._ways_s(out)[0] + self._ways_s(back)[1]
        stopped_s = min(STOPPED_WITHIN_S, plan.deadline_s)
        return max(plan.deadline_s, min(MOST_S, ceil(stopped_s + 2 * copied_s)))

    def _is_parked(self, state: PodState) -> bool:
        held = self.book.grants.get(state.grant_id)
        return held is not None and held.parked

    def _grants(self, members: Iterable[PodState]) -> list[GrantState]:
        return [self.book.grants[state.grant_id] for state in members if state.grant_id in self.book.grants]

    def _ways_s(self, members: Iterable[PodState]) -> tuple[float, float]:
        """Returns how long their memory takes to the hosts, and back."""
        out_s = back_s = 0.0
        for (name, _), mib in host_memory.held_mib(self._grants(members)).items():
            host = self._host(name)
            out_s = max(out_s, self._seconds(mib, host.out_mib_per_s))
            back_s = max(back_s, self._seconds(mib, host.back_mib_per_s))
        return out_s, back_s

    def _seconds(self, mib: int, told_mib_per_s: int) -> float:
        """A told speed has in it whatever a copy takes besides its bytes."""
        return mib / told_mib_per_s if told_mib_per_s else self.fixed_s + mib / self.mib_per_s

    def _host(self, name: str) -> HostMemory:
        node = self.book.nodes.get(name)
        return HostMemory() if node is None or node.inventory is None else node.inventory.host_memory
