"""Runs named workloads in a slice's real CDI edits: `python -m bench.workloads [--fake] [--case NAME] [--json]`.

Each runs without Kerf, in a slice of the whole GPU, in a slice of memory that suffices with half of the compute, and
beside another one in a slice like that. The calls and results must be the same everywhere. The first GPU of this
machine is used if there is one, otherwise the fake driver of tests/fakes/cuda, whose time is virtual; `device` says
which. Where PyTorch is installed and finds the GPU, its scripts of the same names run too; `torch` says what they did,
or why they did not run.

Each case is printed as it ends, and `--results FILE` keeps what has ended, so that a run that was cut off goes on. It
needs root for mount namespaces; where they are not allowed, `edits` says so, and the library is preloaded instead. A
checkout without its environment needs the wheels msgspec and structlog alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench.enforce.__main__ import device_for
from bench.workloads import torch_scripts
from bench.workloads.cases import measure_one
from bench.workloads.named import WORKLOADS
from bench.workloads.place import Bench

Figures = dict[str, Any]


def measure(
    place: Bench, only: Collection[str] = (), results: Path | None = None, *, short: bool = False
) -> dict[str, Figures]:
    """Runs the workloads (`only` these, if any are named) and returns their figures by name.

    Each one's figures go to stderr as it ends, and into the file `results`; those that are in it already are not run
    again.
    """
    known: dict[str, Figures] = json.loads(results.read_text()) if results and results.exists() else {}
    found: dict[str, Figures] = {}
    for name, workload in WORKLOADS.items():
        if only and name not in only:
            continue
        if name not in known:
            known[name] = measure_one(place, workload, short=short) | torch_scripts.measure(place, workload)
            if results:
                results.write_text(json.dumps(known, indent=2) + "\n")
        found[name] = known[name]
        print(f"{name}: {json.dumps(known[name])}", file=sys.stderr, flush=True)
    return found


def summary(place: Bench, found: dict[str, Figures]) -> Figures:
    head: Figures = {"device": place.device.name}
    if not place.device.fake:
        head["driver_version"] = place.device.driver_version
    return head | {
        "edits": (place.problem and f"not applied, the library was preloaded instead: {place.problem}") or "applied",
        "driver_edits": place.driver_edits,
        "problems": [
            f"{name}: {text}"
            for name, figures in found.items()
            for text in (*figures.get("problems", ()), *figures.get("torch_problems", ()))
        ],
        "workloads": found,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--libcuda", default="libcuda.so.1")
    arguments.add_argument("--fake", action="store_true", help="use the fake driver even if there is a GPU")
    arguments.add_argument("--short", action="store_true", help="less of each, as tests run it")
    arguments.add_argument("--list", action="store_true", help="print the workloads with what they do, and end")
    arguments.add_argument("--case", action="append", default=[], metavar="NAME", help="run this one; may be repeated")
    arguments.add_argument("--results", type=Path, help="a file that keeps finished cases, which are not run again")
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    if asked.list:
        for workload in WORKLOADS.values():
            print(f"{workload.name}: {workload.does}\n    from: {workload.source}\n    checks: {workload.checks}")
        return
    if unknown := sorted(set(asked.case) - set(WORKLOADS)):
        arguments.error(f"there is no workload {unknown[0]}; known are {', '.join(WORKLOADS)}")
    with tempfile.TemporaryDirectory(prefix="kerf-workloads-") as name:
        folder = Path(name)
        place = Bench(folder, device_for(folder, asked.libcuda, fake=asked.fake))
        place.prepare()
        found = summary(place, measure(place, asked.case, asked.results, short=asked.short))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for key, value in found.items():
        if key not in ("workloads", "problems"):
            print(f"{key:16} {value}")
    for name, figures in found["workloads"].items():
        print(f"{name:20} {'; '.join(figures.get('problems', ())) or 'no problem'}")


if __name__ == "__main__":
    main()
