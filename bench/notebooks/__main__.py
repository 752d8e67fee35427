"""How many notebooks share a GPU, and how much longer their cells take, in simulated time.

    python -m bench.notebooks [--gpus 8] [--notebooks 1,2,3,5,8] [--idle-after-s 30] [--hours 8]
                              [--copied-mib-per-s N] [--fixed-s S] [--json]

`--notebooks`: for each GPU; whole GPUs, as Kubernetes gives them, have 1, none of whose cells is late. A notebook has a
GPU with all its memory (16,000 MiB) to itself while it runs a cell (bench/notebooks/users.py: cells of 99 s in the
mean, 700 s between them). Otherwise it may be suspended for another one, at the costs of bench/jobs/costs.py, and it
comes back to any GPU of the node. `kerf`: the cores of placement and preemptor, with a node that says which notebooks
are idle. `at_once`: a ceiling, which knows everything at once. `late_s`: by how much longer a cell takes than with a
GPU of its own. All copies have their own link, no suspension fails, and the host has room for all.
"""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from bench.jobs.costs import Costs
from bench.notebooks.at_once import AtOnce
from bench.notebooks.day import Cells, Day
from bench.notebooks.kerf import Kerf
from bench.notebooks.users import Habits


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    notebooks: int
    never_placed: int
    cells: int
    undelayed: float
    """Part of the cells that were no later than a second."""
    late_s_p50: float
    late_s_p90: float
    late_s_p99: float
    late_s_max: float
    gpu_utilisation: float
    turns: int
    gpu_hours_in_copies: float
    host_mib_peak: int


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.notebooks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--notebooks", default="1,2,3,5,8")
    parser.add_argument("--idle-after-s", type=float, default=30.0)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--copied-mib-per-s", type=float, default=Costs().copied_mib_per_s)
    parser.add_argument("--fixed-s", type=float, default=Costs().fixed_s)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        each = [int(number) for number in args.notebooks.split(",")]
    except ValueError:
        parser.error(f"--notebooks is {args.notebooks!r}; write numbers, such as 1,5")
    if args.gpus < 1 or min(each) < 1 or not args.hours > 0 or not args.copied_mib_per_s > 0:
        parser.error("--gpus, --notebooks, --hours and --copied-mib-per-s must be above 0")
    if args.idle_after_s < 0 or args.fixed_s < 0:
        parser.error("--idle-after-s and --fixed-s must not be below 0")
    costs = Costs(copied_mib_per_s=args.copied_mib_per_s, fixed_s=args.fixed_s, host_mib=1 << 30)
    habits, found = Habits(), []
    for number in each:
        total = number * args.gpus
        day = Day(total, args.gpus, habits, costs, idle_after_s=args.idle_after_s)
        kerf = _figures(day.run(Kerf(day.jobs, args.gpus, costs), args.hours), total, args)
        ceiling = Day(total, args.gpus, habits, costs, idle_after_s=0.0, sampled_s=0.0)
        at_once = _figures(ceiling.run(AtOnce(args.gpus), args.hours), total, args)
        found.append({"notebooks_per_gpu": number, "kerf": kerf, "at_once": at_once})
        print(json.dumps(msgspec.to_builtins(found[-1])), file=sys.stderr)
    said = {"gpus": args.gpus, "hours": args.hours, "idle_after_s": args.idle_after_s, "costs": costs, "habits": habits}
    said |= {"busy_part": round(habits.busy_part(), 3), "found": found}
    if args.json:
        print(json.dumps(msgspec.to_builtins(said)))


def _figures(cells: Cells, notebooks: int, args: argparse.Namespace) -> Figures:
    late = sorted(cells.late_s) or [0.0]
    gpu_s = args.gpus * args.hours * 3600
    return Figures(
        notebooks=notebooks,
        never_placed=cells.never_placed,
        cells=len(cells.late_s),
        undelayed=round(sum(one <= 1.0 for one in late) / len(late), 3),
        late_s_p50=_part(late, 0.5),
        late_s_p90=_part(late, 0.9),
        late_s_p99=_part(late, 0.99),
        late_s_max=round(late[-1], 1),
        gpu_utilisation=round(cells.busy_s / gpu_s, 3),
        turns=cells.turns,
        gpu_hours_in_copies=round(cells.copied_s / 3600, 2),
        host_mib_peak=cells.host_mib_peak,
    )


def _part(sorted_s: list[float], part: float) -> float:
    return round(sorted_s[min(len(sorted_s) - 1, int(part * len(sorted_s)))], 1)


if __name__ == "__main__":
    main()
