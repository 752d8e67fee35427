"""All traces of a folder, kerf beside FGD in one run: filling and churn.

    python -m bench.openb.table --data DIR [--traces default,gpuspec33] [--seeds 42,43] [--churn 1.1,1.3]
                                [--processes 2] [--json]

DIR as published: openb_node_list_gpu_node.csv, pods/openb_pod_list_<trace>.csv[.gz], arrivals/arrivals_<trace>.txt[.gz]
(a trace without arrivals of its own takes those of `default`); bench/data/openb has two traces, flat.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

from bench.openb.__main__ import DATA
from bench.openb.churn import ChurnRun, churn
from bench.openb.fill import fill
from bench.openb.trace import Arrivals, Trace, read_arrivals, read_trace

PREFIX = "openb_pod_list_"
POLICIES = ("fgd", "kerf")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.openb.table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--traces", default="")
    parser.add_argument("--seeds", default="42,43")
    parser.add_argument("--churn", default="", help="offered loads, such as 1.1,1.3; without, pods only come")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    traces = [part for part in args.traces.split(",") if part]
    seeds, loads = (
        [int(part) for part in args.seeds.split(",")],
        [float(part) for part in args.churn.split(",") if part],
    )
    rows = []
    with ProcessPoolExecutor(args.processes) as pool:
        for pods in sorted(
            (args.data / "pods" if (args.data / "pods").is_dir() else args.data).glob(f"{PREFIX}*.csv*")
        ):
            name = pods.name.removeprefix(PREFIX).split(".")[0]
            if traces and name not in traces:
                continue
            trace, arrivals = read_trace(args.data / "openb_node_list_gpu_node.csv", pods), _arrivals(args.data, name)
            for load in loads or [0.0]:
                tasks = [(trace, arrivals[seed], seed, policy, load) for policy in POLICIES for seed in seeds]
                row = _row(name, load, list(pool.map(_one, tasks)), len(seeds))
                rows.append(row)
                print(json.dumps(row), file=sys.stderr)
    result = {"seeds": seeds, "rows": rows} | _summary(rows)
    print(json.dumps(result) if args.json else json.dumps(_summary(rows)))


def _arrivals(data: Path, name: str) -> dict[int, Arrivals]:
    folder = data / "arrivals" if (data / "arrivals").is_dir() else data
    for trace in (name, "default"):
        for suffix in (".txt.gz", ".txt"):
            path = folder / f"arrivals_{trace}{suffix}"
            if path.exists():
                return read_arrivals(path)
    raise SystemExit(
        f"{folder} has no arrivals_{name}.txt and no arrivals_default.txt; name the folder of the published "
        "files with --data"
    )


def _one(task: tuple[Trace, Arrivals, int, str, float]) -> dict[str, float]:
    trace, arrivals, seed, policy, load = task
    if not load:
        return fill(trace, arrivals, seed, policy).allocation_percent
    run: ChurnRun = churn(trace, arrivals, seed, policy, load)
    return {"allocation": run.allocation_percent} | {
        f"refused {size}": part for size, part in run.refused_percent.items()
    }


def _row(name: str, load: float, runs: list[dict[str, float]], seeds: int) -> dict[str, object]:
    """Means over seeds, by policy."""
    means = [
        {key: round(fmean(run[key] for run in part if key in run), 3) for key in part[0]}
        for part in (runs[:seeds], runs[seeds:])
    ]
    return {"trace": name, **({"offered": load} if load else {}), **dict(zip(POLICIES, means, strict=True))}


def _summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Kerf less FGD, over all traces and columns (100 and 130, or the time-averaged allocation)."""
    gains = []
    for row in rows:
        fgd, kerf = row["fgd"], row["kerf"]
        assert isinstance(fgd, dict)
        assert isinstance(kerf, dict)
        gains += [kerf[key] - fgd[key] for key in ("100", "130", "allocation") if key in fgd]
    return {"kerf_less_fgd_mean": round(fmean(gains), 3), "kerf_less_fgd_worst": round(min(gains), 3)}


if __name__ == "__main__":
    main()
