"""Runs schedulers over jobs, side by side in processes of their own: each is one process' work for minutes."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Literal

import msgspec

from bench.jobs.costs import Costs
from bench.jobs.figures import Figures, figures
from bench.jobs.in_turns import InTurns
from bench.jobs.kerf import Kerf, Use
from bench.jobs.kerf_turns import KerfTurns
from bench.jobs.native import Native
from bench.jobs.orders import Attained, ShortestFirst, ShortestLeft
from bench.jobs.replay import Copied, Order, Replay, Scheduler
from bench.jobs.trace import Job
from shared.turns.rules import TurnRules

Kind = Literal[
    "native",
    "native_strict",
    "kerf",
    "kerf_in_order",
    "kerf_priorities",
    "kerf_reclaim",
    "kerf_turns",
    "tiresias",
    "srtf",
    "shortest_first",
]
_LONG: dict[Kind, int] = {"kerf_turns": 2, "kerf": 1, "kerf_in_order": 1, "kerf_priorities": 1, "kerf_reclaim": 1}
"""What takes long begins first."""
_SAID_EVERY_S = 30.0


class Run(msgspec.Struct, frozen=True):
    """One scheduler on one load."""

    name: str
    """Under which its figures are said."""
    kind: Kind
    jobs: tuple[Job, ...]
    gpus: int
    interference: float
    costs: Costs
    where: str = ""
    """For people, besides the name."""


def scheduler_of(run: Run) -> Scheduler:
    jobs, gpus, costs = run.jobs, run.gpus, run.costs
    match run.kind:
        case "native" | "native_strict":
            return Native(jobs, gpus, strict=run.kind == "native_strict")
        case "kerf":
            return Kerf(jobs, gpus, Use(queues=True, evicts=False))
        case "kerf_in_order":
            return Kerf(jobs, gpus, Use())
        case "kerf_priorities":
            return Kerf(jobs, gpus, Use(priorities=True))
        case "kerf_reclaim":
            return Kerf(jobs, gpus, Use(queues=True))
        case "kerf_turns":
            return KerfTurns(jobs, gpus, costs)
        case "tiresias":
            return InTurns(jobs, gpus, Attained(TurnRules()), costs)
        case "srtf":
            return InTurns(jobs, gpus, ShortestLeft(TurnRules().min_turn_s), costs)
        case "shortest_first":
            return InTurns(jobs, gpus, ShortestFirst(), costs)


def figures_of(run: Run) -> Figures:
    replay = Replay(run.jobs, run.gpus, run.interference, run.costs)
    told = replay.run(_Progress(scheduler_of(run), run))
    return figures(run.jobs, told, run.gpus, replay.host_mib_peak)


def all_figures(runs: Sequence[Run], processes: int) -> list[Figures]:
    """Returns the figures of each run, in their order; says on stderr what is done."""
    if processes == 1 or len(runs) == 1:
        return [_say(run, figures_of(run)) for run in runs]
    found: dict[int, Figures] = {}
    with ProcessPoolExecutor(min(processes, len(runs)), multiprocessing.get_context("spawn")) as pool:
        order = sorted(range(len(runs)), key=lambda at: (-_LONG.get(runs[at].kind, 0), at))
        futures: dict[Future[Figures], int] = {pool.submit(figures_of, runs[at]): at for at in order}
        try:
            for future in as_completed(futures):
                at = futures[future]
                found[at] = _say(runs[at], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # one that failed, or Ctrl-C, ends them all
            raise
    return [found[at] for at in range(len(runs))]


def _say(run: Run, found: Figures) -> Figures:
    print(f"{run.where}{run.name}: {json.dumps(msgspec.to_builtins(found))}", file=sys.stderr, flush=True)
    return found


class _Progress(Scheduler):
    """Says every half minute how far a scheduler has come."""

    def __init__(self, of: Scheduler, run: Run) -> None:
        self._of, self._run = of, run
        self._ended, self._began = 0, time.monotonic()
        self._said = self._began

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> Sequence[Order]:
        self._ended += len(ended)
        now = time.monotonic()
        if now - self._said >= _SAID_EVERY_S:
            self._said = now
            said = f"{self._ended} of {len(self._run.jobs)} jobs have ended after {now - self._began:.0f} s"
            print(f"{self._run.where}{self._run.name}: {said}", file=sys.stderr, flush=True)
        return self._of.step(now_s, ended, arrived)

    def copied(self, copied: list[Copied]) -> None:
        self._of.copied(copied)

    def wakes_s(self, now_s: float) -> float:
        return self._of.wakes_s(now_s)
