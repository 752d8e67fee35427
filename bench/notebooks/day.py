"""A day of notebooks on one node, second by second. Pure; the scheduler decides which notebook has which GPUs.

A notebook has a GPU to itself or is suspended, with its memory on the host. Its program runs a cell while the notebook
has its GPU and no copy is under way; a cell that is stopped goes on where it was. A program on the host that wants to
run a cell is seen to wait one sample later, and one that has been still for `idle_after_s` counts as idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from bench.jobs.costs import Costs
from bench.jobs.replay import Copied, Impossible, Order, Resume, Start, Suspend
from bench.jobs.trace import Job
from bench.notebooks.users import Habits, User


class Scheduler(Protocol):
    def second(
        self,
        now_s: float,
        arrived: list[int],
        copied: list[Copied],
        idle: Mapping[int, float],
        woken: Mapping[int, float],
    ) -> Sequence[Order]:
        """What is done in this second. `idle`, `woken`: by notebook, since when it is idle, and since when a suspended
        one that was idle wants its GPU."""


class Cells(msgspec.Struct):
    """What became of the cells."""

    length_s: list[float] = msgspec.field(default_factory=list)
    late_s: list[float] = msgspec.field(default_factory=list)
    """By how much each took longer than with a GPU of its own."""
    turns: int = 0
    copied_s: float = 0.0
    """GPU time in copies."""
    busy_s: float = 0.0
    """GPU time in cells."""
    never_placed: int = 0
    host_mib_peak: int = 0


class _Notebook(msgspec.Struct):
    user: User
    wants_at: float
    """When the next cell begins, or began."""
    cell_s: float
    left_s: float
    gpus: tuple[int, ...] = ()
    placed: bool = False
    on_host: bool = False
    copies_until: float | None = None
    still_since: float = 0.0
    was_idle: bool = False
    """When it was suspended."""


class Day:
    def __init__(
        self, notebooks: int, gpus: int, habits: Habits, costs: Costs, *, idle_after_s: float, sampled_s: float = 1.0
    ) -> None:
        self._gpus, self._costs, self._idle_after_s, self._sampled_s = gpus, costs, idle_after_s, sampled_s
        self.jobs = tuple(Job(f"notebook-{i}", i, 1, 1, 1000, "LS") for i in range(notebooks))
        users = [User(habits, f"user-{i}") for i in range(notebooks)]
        self._all = [_Notebook(user, i + user.pause_s(), cell := user.cell_s(), cell) for i, user in enumerate(users)]
        self._used: set[int] = set()
        self.cells = Cells()

    def run(self, scheduler: Scheduler, hours: float) -> Cells:
        """Raises Impossible if a GPU is given to two."""
        for now in range(round(hours * 3600)):
            self._work(now)
            copied = self._copied(now)
            arrived = [now] if now < len(self._all) else []
            idle, woken = self._said(now)
            for order in scheduler.second(now, arrived, copied, idle, woken):
                self._obey(order, now)
            held = sum(self._costs.mib(self.jobs[i]) for i, one in enumerate(self._all) if one.on_host)
            self.cells.host_mib_peak = max(self.cells.host_mib_peak, held)
        self.cells.never_placed = sum(not one.placed for one in self._all)
        return self.cells

    def _work(self, now: int) -> None:
        """Runs the cells during the last second."""
        for one in self._all:
            if now <= one.wants_at:
                continue
            if one.gpus and one.copies_until is None:
                done = min(1.0, now - one.wants_at, one.left_s)
                one.left_s -= done
                self.cells.busy_s += done
                one.still_since = now
            if one.left_s <= 1e-9:
                self.cells.length_s.append(one.cell_s)
                self.cells.late_s.append(max(0.0, now - one.wants_at - one.cell_s - 1.0))  # the grid's second
                one.wants_at = now + one.user.pause_s()
                one.cell_s = one.left_s = one.user.cell_s()

    def _said(self, now: int) -> tuple[dict[int, float], dict[int, float]]:
        """What the node says of each notebook that is placed: as of its last sample."""
        idle, woken = dict[int, float](), dict[int, float]()
        for i, one in enumerate(self._all):
            wants = now - self._sampled_s >= one.wants_at
            if one.on_host or one.copies_until is not None:
                if one.was_idle:
                    (woken if wants else idle)[i] = one.wants_at if wants else one.still_since
            elif one.placed and not wants and now - one.still_since >= self._idle_after_s:
                idle[i] = one.still_since
        return idle, woken

    def _copied(self, now: int) -> list[Copied]:
        over = []
        for i, one in enumerate(self._all):
            if one.copies_until is None or one.copies_until > now:
                continue
            one.copies_until = None
            if one.on_host and one.gpus:  # it was on its way to the host
                self._used -= set(one.gpus)
                one.gpus = ()
                over.append(Copied(i, "parked"))
            else:
                one.on_host = one.was_idle = False
                one.still_since = now
                over.append(Copied(i, "back"))
        return over

    def _obey(self, order: Order, now: int) -> None:
        one = self._all[order.job]
        match order:
            case Start():
                self._take(one, order)
                one.placed, one.still_since = True, now
            case Resume():
                self._take(one, order)
                one.copies_until = now + self._costs.copy_s(self.jobs[order.job])
                self.cells.copied_s += one.copies_until - now
                one.on_host = False
            case Suspend(to="host"):
                one.was_idle = now - one.still_since >= self._idle_after_s
                one.copies_until = now + self._costs.copy_s(self.jobs[order.job])
                one.on_host = True
                self.cells.turns += 1
                self.cells.copied_s += one.copies_until - now
            case _:
                raise Impossible(f"{order} has no meaning for notebooks")

    def _take(self, one: _Notebook, order: Start | Resume) -> None:
        gpus = {share.gpu for share in order.shares}
        if gpus & self._used:
            raise Impossible(f"GPUs {sorted(gpus & self._used)} are given to two notebooks")
        self._used |= gpus
        one.gpus = tuple(gpus)
