"""`python -m tests.sim --seeds N`, one seed with its story, or a search that is guided by the states it has reached."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing import Pool
from typing import Any

from tests.sim.guided import World, search
from tests.sim.nats import Violation
from tests.sim.simulation import Fork, Simulation

CHUNK = 25
"""Seeds that one process takes at a time."""


class Result:
    """What happened in some worlds."""

    def __init__(self) -> None:
        self.failed: list[tuple[World, str]] = []
        self.counts: Counter[str] = Counter()
        self.simulated_s = 0.0
        self.turns: Counter[tuple[str, str | None]] = Counter()
        self.disasters: Counter[str] = Counter()

    def run(self, world: World, *, story: bool = False) -> None:
        simulation = Simulation(world.seed, world.forks)
        try:
            simulation.run()
        except Violation as violation:
            self.failed.append((world, str(violation)))
        if story:
            sys.stderr.write("\n".join(simulation.clock.story) + "\n")
        self.counts += Counter(
            seeds=1, steps=simulation.clock.steps, pods_bound=simulation.bound, grants_amended=simulation.resized
        )
        self.simulated_s += simulation.clock.now - 1_000.0
        self.turns += simulation.turns.happened
        self.disasters += simulation.disasters.happened

    def add(self, other: Result) -> None:
        self.failed += other.failed
        self.counts += other.counts
        self.simulated_s += other.simulated_s
        self.turns += other.turns
        self.disasters += other.disasters

    def report(self, seconds: float) -> dict[str, Any]:
        return {
            **{name: self.counts[name] for name in ("seeds", "steps", "pods_bound", "grants_amended")},
            "failed": [world.seed for world, _ in self.failed],
            "turns": {f"{said} {kind or 'resume'}": n for (said, kind), n in sorted(self.turns.items(), key=str)},
            "disasters": dict(sorted(self.disasters.items())),
            "simulated_hours": round(self.simulated_s / 3600, 2),
            "seconds": round(seconds, 1),
            "simulated_hours_per_s": round(self.simulated_s / 3600 / seconds, 3),
        }


def _run(seeds: Iterable[int]) -> Result:
    result = Result()
    for seed in seeds:
        result.run(World(seed, ()))
    return result


def _drawn(first: int, count: int, jobs: int) -> Result:
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    result = Result()
    if jobs == 1 or len(chunks) == 1:
        parts: Iterable[Result] = map(_run, chunks)
        for part in parts:
            _complain(part.failed)
            result.add(part)
        return result
    with Pool(min(jobs, len(chunks))) as pool:
        for part in pool.imap(_run, chunks):
            _complain(part.failed)
            result.add(part)
    return result


def _complain(failed: list[tuple[World, str]]) -> None:
    for world, text in failed:
        sys.stderr.write(f"seed {world.seed}: {text}\n  replay it: python -m tests.sim {world.replay} --story\n")
    sys.stderr.flush()


def _fork(text: str) -> Fork:
    at_s, _, number = text.partition(":")
    return float(at_s), int(number)


def _search(seconds: float, first: int) -> dict[str, Any]:
    """Half of the time by chance and half guided, so that the report can compare them."""
    chance = search(seconds / 2, guided=False, first=first)
    guided = search(seconds / 2, guided=True, first=first)
    _complain(chance.failed + guided.failed)
    return {
        "cpu_seconds_each": seconds / 2,
        "worlds_by_chance": chance.worlds,
        "states_by_chance": chance.states,
        "worlds_guided": guided.worlds,
        "states_guided": guided.states,
        "failed": [world.replay for world, _ in chance.failed + guided.failed],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--fork", type=_fork, action="append", default=[], help="of --seed: TIME:NUMBER, as reported")
    parser.add_argument("--guided", type=float, metavar="SECONDS", help="of CPU: half by chance, half guided by states")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (%(default)s)")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    began = time.perf_counter()
    if args.guided:
        report = _search(args.guided, args.first)
    elif args.seed is not None:
        result = Result()
        result.run(World(args.seed, tuple(args.fork)), story=args.story)
        _complain(result.failed)
        report = result.report(time.perf_counter() - began)
    else:
        report = _drawn(args.first, args.seeds, args.jobs).report(time.perf_counter() - began)
    sys.stdout.write(json.dumps(report) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in report.items()))
    sys.exit(1 if report["failed"] else 0)


if __name__ == "__main__":
    main()
