"""`python -m tests.mutants`: tries every mutant and says which survive. Exit status 1 when one does that is not
explained."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tests.mutants.catalogue import every
from tests.mutants.runner import Result, Unfit, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    args = parser.parse_args()
    mutants = every()
    if args.only:
        wanted = set(args.only.split(","))
        unknown = wanted - {mutant.name for mutant in mutants}
        if unknown:
            parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
        mutants = tuple(mutant for mutant in mutants if mutant.name in wanted)
    what = {mutant.name: mutant.what for mutant in mutants}
    began = time.perf_counter()

    def told(result: Result) -> None:
        sys.stderr.write(f"{result.verdict:9} {result.mutant}: {what[result.mutant]} | {result.by}\n")

    try:
        results = run(mutants, jobs=args.jobs, told=told)
    except Unfit as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    of = {
        verdict: [r for r in results if r.verdict == verdict]
        for verdict in ("killed", "survived", "explained", "invalid")
    }
    summary = {
        "mutants": len(results),
        "killed": len(of["killed"]),
        "survived": len(of["survived"]),
        "explained": len(of["explained"]),
        "invalid": len(of["invalid"]),
        "seconds": round(time.perf_counter() - began, 1),
        "survivors": [r.mutant for r in of["survived"]],
    }
    sys.stdout.write(json.dumps(summary) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in summary.items()))
    sys.exit(1 if of["survived"] or of["invalid"] else 0)


if __name__ == "__main__":
    main()
