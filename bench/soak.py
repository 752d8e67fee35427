"""Many faults, one after the other, on a cluster of processes with a load of pods: what is wrong in the end.

The cluster, the load, the faults and the auditor are those of `tests/chaos/churn`: a real API server and NATS, two
placements, watchers and preemptors, 24 hollow nodes with 96 GPUs, 330 pods that come and go, and bursts of faults with
seconds of rest between them, drawn from the seed. One is spared: no fault freezes or cuts off the last placement or the
last watcher that works, and what is killed as the last one is started at once; `--spare-none` does without. It ends
after so many faults; then everything is restored, has to settle, and all pods are deleted.

- `faults`, `kinds`: how many struck, in all and by kind (`tests/chaos/churn/faults.py`).
- `double_bookings`: GPUs on which more was granted or ran at the same time than they have, by an auditor that reads no
  book.
- `pods_lost`: pods that wait without a reason, are bound and do not run, or are gone without a plan or a controller.
- `leaks`: 1 if not all was free 80 s after the deletion of all pods.
- `stuck_over_60s`: pods that fitted at every look of more than 60 s in a row. A pod fits while it is pending, is in no
  gang, and one node whose agent's process runs has all the GPUs that it needs free, by grants and by what still runs.
  That faults have stopped other parts of Kerf is no excuse; they are started again as a kubelet does it.
- `stuck_over_60s_in_service`: those of them for which it was more than 60 s while Kerf was able to work: one placement
  and one watcher ran, had connections that let everything pass, and were not refused. Starting and taking over counts.
- `gap_ms_max`: the longest time between two Bindings in a row while at every look between them a pod fitted, before the
  last fault; exact to the time between two looks (150 ms and a list of the pods). Downtime of the API server is in it.
- `spares_one`: false with `--spare-none`.
- `other_violations`: grants that differ from the request, and what had not settled 120 s after the last fault.
- `seconds`: how long it ran, from the first pod to the last fault.

    python -m bench.soak [--faults 10000] [--seed 1] [--spare-none] [--json]

Progress and violations are on stderr. The services' logs are kept if there were violations, or pods were stuck. Exit
status 0 when it ran to its end: the object says what it found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from shared.telemetry.logs import configure_logging
from tests.chaos.churn.run import Options, Report, churn


def summary(report: Report, *, spares_one: bool) -> dict[str, Any]:
    """The printed object. `spares_one`: as `Options` has it."""
    counted = report.double_bookings + report.lost + report.leaks
    return {
        "faults": report.faults,
        "kinds": report.kinds,
        "double_bookings": report.double_bookings,
        "pods_lost": report.lost,
        "leaks": report.leaks,
        "stuck_over_60s": len(report.stuck),
        "stuck_over_60s_in_service": len(report.stuck_in_service),
        "gap_ms_max": round(report.gap_s * 1000),
        "other_violations": len(report.violations) - counted,
        "spares_one": spares_one,
        "pods_created": report.pods_created,
        "seed": report.seed,
        "seconds": report.seconds,
    }


def main() -> None:
    usual = Options()
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=usual.seed, help="of load and faults")
    parser.add_argument("--pods", type=int, default=usual.pods, help="how many there are at once")
    parser.add_argument(
        "--spare-none", action="store_true", help="faults may leave no placement, or no watcher, that works"
    )
    parser.add_argument("--json", action="store_true", help="one object on stdout, and nothing else")
    args = parser.parse_args()
    if args.faults < 1:
        parser.error("--faults is at least 1")
    configure_logging("error")
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:8.1f} {text}\n")

    options = Options(faults=args.faults, seed=args.seed, pods=args.pods, spares_one=not args.spare_none)
    report = asyncio.run(churn(options, say))
    for name, seconds in report.stuck.items():
        say(f"{name} fitted for {seconds} s and was not bound")
    result = summary(report, spares_one=options.spares_one)
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
