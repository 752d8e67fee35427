"""Allocation on the openb trace.

    python -m bench.openb [--nodes F --pods F --arrivals F] --policy fgd|bestfit|kerf [--seeds 42,43] [--churn 1.1]
                          [--json]

Without files: the trace `default` from bench/data/openb. Seeds: those of the arrivals file; all of them unless named.
With --churn pods come and go, at that multiple of the capacity (see bench/openb/churn.py). `--plots DIR` draws
allocation and fragmentation against load for all policies, from the first seed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from bench.openb.churn import ChurnRun, churn
from bench.openb.fill import Run, fill
from bench.openb.plots import draw
from bench.openb.trace import Arrivals, Trace, mismatch, read_arrivals, read_trace

DATA = Path(__file__).parent.parent / "data" / "openb"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.openb", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=Path, default=DATA / "openb_node_list_gpu_node.csv")
    parser.add_argument("--pods", type=Path, default=DATA / "openb_pod_list_default.csv.gz")
    parser.add_argument("--arrivals", type=Path, default=DATA / "arrivals_default.txt.gz")
    parser.add_argument("--policy", choices=("kerf", "fgd", "bestfit", "binpack"), default="kerf")
    parser.add_argument("--seeds", default="", help="such as 42,43")
    parser.add_argument("--churn", type=float, help="offered load over capacity, such as 1.1")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.churn is not None and not args.churn > 0:
        parser.error(f"--churn is {args.churn:g}; name a load above 0, such as 1.1")
    try:
        trace, arrivals = read_trace(args.nodes, args.pods), read_arrivals(args.arrivals)
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    seeds = _seeds(parser, args.seeds, arrivals)
    for seed in seeds:
        wrong_arrivals = mismatch(trace, arrivals[seed])
        if wrong_arrivals:
            parser.error(f"seed {seed} of {args.arrivals} is not of these nodes and pods: {wrong_arrivals}")
    if args.plots is not None:
        for path in draw(trace, arrivals[seeds[0]], seeds[0], args.plots):
            print(f"drew {path}", file=sys.stderr)
        return
    runs: list[Run | ChurnRun] = []
    with ProcessPoolExecutor(args.processes) as pool:
        for run in pool.map(_one, [(trace, arrivals[seed], seed, args.policy, args.churn) for seed in seeds]):
            runs.append(run)
            print(_sentence(trace, args.policy, run), file=sys.stderr)
    result = {"policy": args.policy, "trace": trace.name, "runs": [_told(run) for run in runs]}
    if args.json:
        print(json.dumps(result))
    elif args.churn is None:
        means = {
            column: sum(run.allocation_percent[column] for run in runs if isinstance(run, Run)) / len(runs)
            for column in ("80", "90", "95", "100", "130")
        }
        print(
            f"{args.policy} on {trace.name}, mean of {len(runs)} seeds: "
            + ", ".join(f"{mean:.2f} % at {column}" for column, mean in means.items())
        )
    else:
        print(
            f"{args.policy} on {trace.name} at {args.churn}, mean of {len(runs)} seeds: "
            f"{sum(run.allocation_percent for run in runs if isinstance(run, ChurnRun)) / len(runs):.2f} %"
        )


def _one(task: tuple[Trace, Arrivals, int, str, float | None]) -> Run | ChurnRun:
    trace, arrivals, seed, policy, offered = task
    return fill(trace, arrivals, seed, policy) if offered is None else churn(trace, arrivals, seed, policy, offered)


def _seeds(parser: argparse.ArgumentParser, text: str, arrivals: dict[int, Arrivals]) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")] if text else sorted(arrivals)
    except ValueError:
        parser.error(f"--seeds is {text!r}; name numbers, such as 42,43")
    missing = [seed for seed in seeds if seed not in arrivals]
    if missing:
        parser.error(f"the arrivals file has no seed {missing[0]}; it has {', '.join(map(str, sorted(arrivals)))}")
    return seeds


def _told(run: Run | ChurnRun) -> dict[str, object]:
    told: dict[str, object] = msgspec.structs.asdict(run)
    told.pop("curve", None)
    if isinstance(run, Run):  # JSON has no word for NaN
        told["allocation_percent"] = {
            column: None if math.isnan(value) else value for column, value in run.allocation_percent.items()
        }
    return told


def _sentence(trace: Trace, policy: str, run: Run | ChurnRun) -> str:
    return (
        f"{policy} {trace.name} seed {run.seed}: {run.allocation_percent} in {run.seconds:.1f} s "
        f"({run.decisions / run.seconds:.0f} decisions/s)"
    )


if __name__ == "__main__":
    main()
