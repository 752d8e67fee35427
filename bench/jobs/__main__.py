"""A trace's own jobs and times on few GPUs, in simulated time: whole GPUs as Kubernetes gives them, and Kerf.

    python -m bench.jobs [--pods openb.csv] [--gpus 8] [--interference 0.10] [--all] [--json]

A job's run time is its deletion less its scheduling, or its creation where it was never scheduled; pods without GPUs or
without a positive life are left out. `native`: whole GPUs in order of arrival, as kube-scheduler does it
(bench/jobs/native.py); `native_strict`: the same, but no pod passes an older one. `kerf`: through the cores of
placement and preemptor, with a queue of equal weight for each QoS class, and pods that preempt none
(preemptionPolicy Never). With --all also Kerf with nothing set up (`kerf_in_order`), with all classes above BE in
priority (`kerf_priorities`), and with queues that take back what they are due (`kerf_reclaim`); a few minutes. `bound`:
the bound of any scheduler, Kerf and whole GPUs. One node has all GPUs, and neither CPU nor memory of it is ever
short. A slice takes 1 + interference times as long while its GPU is shared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

from bench.jobs.figures import Figures, bound, figures
from bench.jobs.kerf import Kerf, Use
from bench.jobs.native import Native
from bench.jobs.replay import Replay, Scheduler
from bench.jobs.trace import Jobs, read_jobs
from bench.openb.__main__ import DATA


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=Path, default=DATA / "openb_pod_list_default.csv.gz")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interference", type=float, default=0.10)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.gpus < 1 or not args.interference >= 0:
        parser.error(
            f"--gpus is {args.gpus} and --interference {args.interference:g}; name at least one GPU, and "
            "nothing below 0"
        )
    try:
        jobs = read_jobs(args.pods, args.gpus)
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    runs = _runs(jobs, args.gpus, args.interference, everything=args.all)
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
    if args.json:
        print(json.dumps(msgspec.to_builtins(said)))
    else:
        print(
            f"{len(jobs.jobs)} jobs, {args.gpus} GPUs: {said['earlier_percent']} % earlier, "
            f"{said['more_used_points']} points more used"
        )


def _runs(jobs: Jobs, gpus: int, interference: float, *, everything: bool) -> dict[str, Figures]:
    schedulers: dict[str, Scheduler] = {
        "native": Native(jobs.jobs, gpus),
        "native_strict": Native(jobs.jobs, gpus, strict=True),
        "kerf": Kerf(jobs.jobs, gpus, Use(queues=True, evicts=False)),
    }
    if everything:
        uses = {"kerf_in_order": Use(), "kerf_priorities": Use(priorities=True), "kerf_reclaim": Use(queues=True)}
        schedulers |= {name: Kerf(jobs.jobs, gpus, use) for name, use in uses.items()}
    runs = {}
    for name, scheduler in schedulers.items():
        runs[name] = figures(jobs.jobs, Replay(jobs.jobs, gpus, interference).run(scheduler), gpus)
        print(f"{name}: {json.dumps(msgspec.to_builtins(runs[name]))}", file=sys.stderr)
    return runs


if __name__ == "__main__":
    main()
