"""Each sharing strategy by itself, and the adaptive choice, on the same jobs of HPC and deep learning.

    python -m bench.adaptive [--jobs 500] [--load 2.0] [--seeds 1,2,3,4,5] [--json]

Jobs of eleven programs arrive on 44 GPUs of four models (A100, H100, V100, T4) with two nodes beside them that have
none; `--load` is the work that arrives, of what as many V100 could do. Each strategy is that of the whole fleet:
`exclusive` gives whole GPUs; `mig`, `mps`, `interposer` and `time_slice` share by that alone (by halves
of a GPU, `mig` by what a job needs; GPUs that cannot be divided by MIG, and jobs
that ask for isolation that MPS does not keep, get whole ones); `remote` is `interposer`, with GPUs of other nodes where
nothing local fits. `adaptive` has a mixed fleet, and jobs that declare their use and accept twice the time.

`ablation` says which part of that does what: single strategies with the same profiles and bound, the choice without
remote GPUs or without the bound, and the mixed fleet with nothing weighed. `beyond_bound` is the part of the jobs that
took more than twice the time, from start to end, that they take on a GPU of that model alone.

Places come from placement's engine and book, remote ones too. How fast jobs then run comes from
`bench/adaptive/truth.py`: measured pairs and laws that placement does not know. Figures are medians over the seeds, and
the worst of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import msgspec

from bench.adaptive.replay import ABLATION, ACCEPTED, SETUPS, Outcome, Replay, make_jobs

_LESS_IS_BETTER = ("mean_slowdown", "p99_slowdown", "beyond_bound", "remote_bytes", "refused")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.adaptive", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--load", type=float, default=2.0)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.jobs < 1 or not args.load > 0:
        parser.error(f"--jobs is {args.jobs} and --load {args.load:g}; name at least one job, and a load above 0")
    try:
        seeds = [int(part) for part in args.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds is {args.seeds!r}; write numbers such as 1,2,3")
    result = compare(args.jobs, args.load, seeds)
    if args.json:
        print(json.dumps(result))
        return
    for name, found in (result["strategies"] | result["ablation"]).items():
        print(
            f"{name}: {found['throughput']} h/h, slowdown {found['mean_slowdown']}, p99 {found['p99_slowdown']}, "
            f"{100 * found['beyond_bound']:.1f} % beyond {ACCEPTED:g}, "
            f"{found['remote_bytes'] / 1e12:.2f} TB remote, {found['refused']} refused"
        )


def compare(jobs: int, load: float, seeds: list[int]) -> dict[str, Any]:
    """All strategies on the same jobs of each seed."""
    runs: dict[str, list[Outcome]] = {setup.name: [] for setup in (*SETUPS, *ABLATION)}
    for seed in seeds:
        arriving = make_jobs(seed, jobs, load)
        for setup in (*SETUPS, *ABLATION):
            outcome = Replay(setup, seed).run(arriving)
            runs[setup.name].append(outcome)
            print(f"seed {seed} {setup.name}: {json.dumps(msgspec.to_builtins(outcome))}", file=sys.stderr)
    return {
        "strategies": {setup.name: _median(runs[setup.name]) for setup in SETUPS},
        "ablation": {setup.name: _median(runs[setup.name]) for setup in ABLATION},
        "worst": {name: _worst(found) for name, found in runs.items()},
        "jobs": jobs,
        "load": load,
        "seeds": seeds,
        "runs": {name: msgspec.to_builtins(found) for name, found in runs.items()},
    }


def _median(found: list[Outcome]) -> dict[str, float]:
    return {key: statistics.median(getattr(one, key) for one in found) for key in ("throughput", *_LESS_IS_BETTER)}


def _worst(found: list[Outcome]) -> dict[str, float]:
    most = {key: max(getattr(one, key) for one in found) for key in _LESS_IS_BETTER}
    return {"throughput": min(one.throughput for one in found), **most}


if __name__ == "__main__":
    main()
