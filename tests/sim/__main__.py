"""`python -m tests.sim --seeds N`, or one seed with its story."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tests.sim.nats import Violation
from tests.sim.simulation import Simulation


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    happened: Counter[tuple[str, str | None]] = Counter()
    began, steps, simulated_s, bound, resized, failed = time.perf_counter(), 0, 0.0, 0, 0, []
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Violation as violation:
            failed.append(seed)
            sys.stderr.write(f"seed {seed}: {violation}\n  replay it: python -m tests.sim --seed {seed} --story\n")
        if args.story:
            sys.stderr.write("\n".join(simulation.clock.story) + "\n")
        steps += simulation.clock.steps
        simulated_s += simulation.clock.now - 1_000.0
        bound += simulation.bound
        resized += simulation.resized
        happened += simulation.turns.happened
    seconds = time.perf_counter() - began
    result = {
        "seeds": len(seeds),
        "failed": failed,
        "steps": steps,
        "pods_bound": bound,
        "grants_amended": resized,
        "turns": {f"{said} {kind or 'resume'}": count for (said, kind), count in sorted(happened.items(), key=str)},
        "simulated_hours": round(simulated_s / 3600, 2),
        "seconds": round(seconds, 1),
        "simulated_hours_per_s": round(simulated_s / 3600 / seconds, 3),
    }
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
