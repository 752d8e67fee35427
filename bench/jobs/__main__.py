"""A trace's own jobs and times on few GPUs, in simulated time: whole GPUs as Kubernetes gives them, and Kerf.

    python -m bench.jobs [--pods openb.csv] [--gpus 8] [--interference 0.10] [--all] [--json]
                         [--turns [--host-mib-per-gpu N] [--copied-mib-per-s N] [--fixed-s S] [--allocated PART]
                          [--failure P] [--scaled 16,32,64]] [--load 1.1]

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
suspends none, and `srtf`, shortest remaining time first. `_unbounded`: the same on a host with room for all. On the
whole trace the cores take most of the time. --load scales the arrivals to so many times the capacity; --scaled runs
them at 0.9, 1.1 and 1.3 of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

from bench.jobs.costs import Costs, host_mib_per_gpu
from bench.jobs.figures import Figures, bound, figures
from bench.jobs.in_turns import InTurns
from bench.jobs.kerf import Kerf, Use
from bench.jobs.kerf_turns import KerfTurns
from bench.jobs.native import Native
from bench.jobs.orders import Attained, Order, ShortestFirst, ShortestLeft
from bench.jobs.replay import Replay, Scheduler
from bench.jobs.trace import Job, Jobs, at_load, read_jobs
from bench.openb.__main__ import DATA
from shared.turns.rules import TurnRules

LOADS = (0.9, 1.1, 1.3)
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
    try:
        jobs = read_jobs(args.pods, args.gpus)
        if args.load is not None:
            jobs = msgspec.structs.replace(jobs, jobs=at_load(jobs.jobs, args.gpus, args.load))
        per_gpu = args.host_mib_per_gpu
        if args.turns and per_gpu is None:
            per_gpu = host_mib_per_gpu(DATA / "openb_node_list_gpu_node.csv", jobs.jobs)
        sizes = [int(size) for size in args.scaled.split(",") if size]
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    costs = Costs(
        copied_mib_per_s=args.copied_mib_per_s, fixed_s=args.fixed_s, allocated=args.allocated, failure=args.failure
    )
    runs = _runs(jobs.jobs, args.gpus, args.interference, everything=args.all)
    if args.turns:
        runs |= _turns(jobs.jobs, args.gpus, args.interference, costs, per_gpu, unbounded=True)
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
        said |= {"scaled": [_scaled(args, jobs, size, load, costs, per_gpu) for size in sizes for load in LOADS]}
    if args.json:
        print(json.dumps(msgspec.to_builtins(said)))
    else:
        print(
            f"{len(jobs.jobs)} jobs, {args.gpus} GPUs: {said['earlier_percent']} % earlier, "
            f"{said['more_used_points']} points more used"
        )


def _scaled(
    args: argparse.Namespace, jobs: Jobs, gpus: int, load: float, costs: Costs, per_gpu: int
) -> dict[str, object]:
    scaled = at_load(jobs.jobs, gpus, load)
    runs = _runs(scaled, gpus, args.interference, everything=False)
    return {"gpus": gpus, "load": load, **runs, **_turns(scaled, gpus, args.interference, costs, per_gpu)}


def _runs(jobs: tuple[Job, ...], gpus: int, interference: float, *, everything: bool) -> dict[str, Figures]:
    schedulers: dict[str, Scheduler] = {
        "native": Native(jobs, gpus),
        "native_strict": Native(jobs, gpus, strict=True),
        "kerf": Kerf(jobs, gpus, Use(queues=True, evicts=False)),
    }
    if everything:
        uses = {"kerf_in_order": Use(), "kerf_priorities": Use(priorities=True), "kerf_reclaim": Use(queues=True)}
        schedulers |= {name: Kerf(jobs, gpus, use) for name, use in uses.items()}
    return {name: _run(name, scheduler, jobs, gpus, interference, Costs()) for name, scheduler in schedulers.items()}


def _turns(
    jobs: tuple[Job, ...], gpus: int, interference: float, costs: Costs, per_gpu: int, *, unbounded: bool = False
) -> dict[str, Figures]:
    rules = TurnRules()
    hosts = {"": gpus * per_gpu} | ({"_unbounded": _UNBOUNDED_MIB} if unbounded else {})
    found = {}
    for suffix, host_mib in hosts.items():
        at = msgspec.structs.replace(costs, host_mib=host_mib)
        orders: dict[str, Order] = {"tiresias": Attained(rules), "srtf": ShortestLeft(rules.min_turn_s)}
        if not suffix:
            orders["shortest_first"] = ShortestFirst()
        schedulers: dict[str, Scheduler] = {name: InTurns(jobs, gpus, order, at) for name, order in orders.items()}
        schedulers["kerf_turns"] = KerfTurns(jobs, gpus, at)
        for name, scheduler in schedulers.items():
            found[name + suffix] = _run(name + suffix, scheduler, jobs, gpus, interference, at)
    return found


def _run(
    name: str, scheduler: Scheduler, jobs: tuple[Job, ...], gpus: int, interference: float, costs: Costs
) -> Figures:
    replay = Replay(jobs, gpus, interference, costs)
    found = figures(jobs, replay.run(scheduler), gpus, replay.host_mib_peak)
    print(f"{name}: {json.dumps(msgspec.to_builtins(found))}", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
