"""A trace's own jobs and times on few GPUs, in simulated time: whole GPUs as Kubernetes gives them, and Kerf.

    python -m bench.jobs [--pods openb.csv] [--gpus 8] [--interference 0.10] [--all] [--json]
                         [--turns [--host-mib-per-gpu N] [--copied-mib-per-s N] [--fixed-s S] [--allocated PART]
                          [--failure P] [--scaled 16,32,64 [--loads 0.9,1.1,1.3]] [--hosts bounded]] [--load 1.1]
                         [--jobs N] [--processes N]

A job's run time is its deletion less its scheduling, or its creation where it was never scheduled; pods without GPUs or
without a positive life are left out. `native`: whole GPUs in order of arrival, as kube-scheduler does it
(bench/jobs/native.py); `native_strict`: the same, but no pod passes an older one. `kerf`: through the cores of
placement and preemptor, with a queue of equal weight for each QoS class, and pods that preempt none
(preemptionPolicy Never). With --all also Kerf with nothing set up (`kerf_in_order`), with all classes above BE in
priority (`kerf_priorities`), and with queues that take back what they are due (`kerf_reclaim`); a few minutes. `bound`:
the bound of any scheduler, Kerf and whole GPUs. One node has all GPUs, and neither CPU nor memory of it is ever
short. A slice takes 1 + interference times as long while its GPU is shared.

With --turns jobs are suspended for one another, at the costs of bench/jobs/costs.py, with the host memory that the
trace's nodes have beside what its jobs request. `kerf_turns`: the cores of placement and preemptor with pods that take
turns and nothing else set up (bench/jobs/kerf_turns.py). `tiresias`: a queue of levels by attained GPU time with the
rules and defaults that Kerf has (shared/turns/rules.py). Two oracles know all run times: `shortest_first`, which
suspends none, and `srtf`, shortest remaining time first. `_unbounded`: the same on a host with room for all; --hosts
leaves out the one or the other. --load scales the arrivals to so many times the capacity; --scaled runs them at each of
--loads on so many GPUs.

--jobs takes the first N jobs of the trace alone. The schedulers run in as many processes as there are CPUs, or in
--processes. stderr tells how far they are, stdout has one JSON object (--json) or one line.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import msgspec

from bench.jobs.costs import Costs, host_mib_per_gpu
from bench.jobs.figures import bound
from bench.jobs.runs import Kind, Run, all_figures
from bench.jobs.trace import Job, at_load, read_jobs
from bench.openb.__main__ import DATA

_UNBOUNDED_MIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=Path, default=DATA / "openb_pod_list_default.csv.gz")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interference", type=float, default=0.10)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--host-mib-per-gpu", type=int)
    parser.add_argument("--copied-mib-per-s", type=float, default=Costs().copied_mib_per_s)
    parser.add_argument("--fixed-s", type=float, default=Costs().fixed_s)
    parser.add_argument("--allocated", type=float, default=Costs().allocated)
    parser.add_argument("--failure", type=float, default=Costs().failure)
    parser.add_argument("--load", type=float)
    parser.add_argument("--scaled", default="", help="such as 16,32,64; with --turns")
    parser.add_argument("--loads", default="0.9,1.1,1.3", help="of --scaled")
    parser.add_argument("--hosts", choices=("bounded", "unbounded", "both"), default="both")
    parser.add_argument("--jobs", type=int, help="the first of the trace alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.gpus < 1 or not args.interference >= 0:
        parser.error(
            f"--gpus is {args.gpus} and --interference {args.interference:g}; name at least one GPU, and "
            "nothing below 0"
        )
    if not (args.copied_mib_per_s > 0 and args.fixed_s >= 0 and 0 < args.allocated <= 1 and 0 <= args.failure < 1):
        parser.error(
            "--copied-mib-per-s must be above 0, --fixed-s at least 0, --allocated above 0 and at most 1, --failure at "
            "least 0 and below 1"
        )
    if args.load is not None and not args.load > 0:
        parser.error(f"--load is {args.load:g}; name a load above 0, such as 1.1")
    if args.processes < 1 or (args.jobs is not None and args.jobs < 1):
        parser.error("--processes and --jobs must be at least 1")
    try:
        jobs = read_jobs(args.pods, args.gpus)
        jobs = msgspec.structs.replace(jobs, jobs=jobs.jobs[: args.jobs])
        if args.load is not None:
            jobs = msgspec.structs.replace(jobs, jobs=at_load(jobs.jobs, args.gpus, args.load))
        per_gpu = args.host_mib_per_gpu
        if args.turns and per_gpu is None:
            per_gpu = host_mib_per_gpu(DATA / "openb_node_list_gpu_node.csv", jobs.jobs)
        loads = [(int(size), float(load)) for size in args.scaled.split(",") if size for load in args.loads.split(",")]
        if not all(size > 0 and load > 0 for size, load in loads):
            raise ValueError("--scaled and --loads must be above 0")
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    costs = Costs(
        copied_mib_per_s=args.copied_mib_per_s, fixed_s=args.fixed_s, allocated=args.allocated, failure=args.failure
    )
    todo = _runs(jobs.jobs, args.gpus, args.interference, everything=args.all)
    if args.turns:
        todo += _turns(jobs.jobs, args.gpus, args.interference, costs, per_gpu, hosts=args.hosts)
    scaled: list[list[Run]] = []
    for size, load in loads if args.turns else ():
        those, where = at_load(jobs.jobs, size, load), f"{size} GPUs at {load:g}, "
        of = _runs(those, size, args.interference, everything=False, where=where)
        scaled.append(of + _turns(those, size, args.interference, costs, per_gpu, hosts=args.hosts, where=where))
    every = [*todo, *(run for of in scaled for run in of)]
    found = iter(all_figures(every, args.processes))
    runs = {run.name: next(found) for run in todo}
    native, kerf = runs["native"], runs["kerf"]
    said = runs | {
        "earlier_percent": round(100 * (1 - kerf.mean_completion_s / native.mean_completion_s), 1),
        "more_used_points": round(100 * (kerf.gpu_utilisation - native.gpu_utilisation), 1),
        "bound": {
            "kerf": bound(jobs.jobs, args.gpus, args.interference),
            "native": bound(jobs.jobs, args.gpus, args.interference, whole=True),
        },
        "jobs": len(jobs.jobs),
        "left_out": {"without_gpu": jobs.without_gpu, "without_life": jobs.without_life},
        "gpus": args.gpus,
        "interference": args.interference,
    }
    if args.turns:
        said |= {"host_mib_per_gpu": per_gpu, "costs": costs}
        said |= {
            "scaled": [
                {"gpus": size, "load": load} | {run.name: next(found) for run in of}
                for (size, load), of in zip(loads, scaled, strict=True)
            ]
        }
    if args.json:
        print(json.dumps(msgspec.to_builtins(said)))
    else:
        print(
            f"{len(jobs.jobs)} jobs, {args.gpus} GPUs: {said['earlier_percent']} % earlier, "
            f"{said['more_used_points']} points more used"
        )


def _runs(jobs: tuple[Job, ...], gpus: int, interference: float, *, everything: bool, where: str = "") -> list[Run]:
    kinds: list[Kind] = ["native", "native_strict", "kerf"]
    if everything:
        kinds += ["kerf_in_order", "kerf_priorities", "kerf_reclaim"]
    return [Run(kind, kind, jobs, gpus, interference, Costs(), where) for kind in kinds]


def _turns(
    jobs: tuple[Job, ...],
    gpus: int,
    interference: float,
    costs: Costs,
    per_gpu: int,
    *,
    hosts: str,
    where: str = "",
) -> list[Run]:
    kinds: list[Kind] = ["tiresias", "srtf", "kerf_turns"]
    found: list[Run] = []
    sizes = {"": gpus * per_gpu, "_unbounded": _UNBOUNDED_MIB}
    for suffix, host_mib in sizes.items():
        if hosts == ("bounded" if suffix else "unbounded"):
            continue
        at = msgspec.structs.replace(costs, host_mib=host_mib)
        found += [Run(kind + suffix, kind, jobs, gpus, interference, at, where) for kind in kinds]
    found.append(Run("shortest_first", "shortest_first", jobs, gpus, interference, costs, where))  # it suspends none
    return found


if __name__ == "__main__":
    main()
