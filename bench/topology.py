"""Several GPUs of one node: conformance of the modes that go-gpuallocator has, and what ring bandwidth each mode gets.

    python -m bench.topology [--cases F] [--topologies F] [--json] [--plot docs/plots/topology.svg]

Cases: {"topologies": {name: {"pair_score": matrix}}, "cases": [...]} as in bench/data/gpuallocator_cases.json, whose
topologies are known beside those of the file. Each case names its policy and is either a `single` choice or a
`sequence` of them without returns.

Bandwidth: on each machine of the topologies file pods of 1, 2, 4 and 8 GPUs come at random and stay for exponential
times; each mode meets the same pods. What counts is the weakest link of the best ring over the GPUs that a pod of
several got, in GB/s, in the mean over such pods; and how many pods were refused.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.charts import bar_chart
from bench.gpuallocator.best_effort import Scores, best_effort, choose_best_effort
from bench.gpuallocator.simple import choose_simple, simple
from bench.gpuallocator.static_dgx1 import PASCAL, VOLTA, static_set
from bench.topologies import FILE, machines
from shared.scheduling.topology import Choice, Fabric, choose_gpus, fabric_of
from shared.scheduling.topology.rings import ring_mb_s

CASES = Path(__file__).parent / "data" / "gpuallocator_cases.json"
COMPARED: dict[str, Callable[[Fabric, Choice], tuple[int, ...] | None]] = {
    "ring": choose_gpus,
    "best-effort": choose_best_effort,
    "simple": choose_simple,
}
"""By the name of the mode: Kerf's own, and the device plugin's."""
PODS, LOAD = 3000, 0.8
"""Pods a machine and seed, and GPUs offered over GPUs there are."""
SEEDS = (42, 43, 44)
_SIZES = ((1, 0.5), (2, 0.25), (4, 0.15), (8, 0.1))
_PCIE = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50, "PSB": 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--topologies", type=Path, default=FILE)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    try:
        cases = json.loads(given.cases.read_text())
    except (OSError, ValueError) as wrong:
        parser.error(f"--cases {given.cases} cannot be read as JSON: {wrong}")
    result = {
        **conformance(cases),
        "bandwidth": [churn(name, fabric_of(m)) for name, m in machines(given.topologies).items()],
    }
    if given.plot:
        told_apart = [row for row in result["bandwidth"] if len(set(row["percent_of_best"].values())) > 1]
        bar_chart(
            given.plot,
            "Ring bandwidth of pods of several GPUs, where the choice matters",
            "machine",
            "percent of the best ring there is",
            {mode: {row["topology"]: row["percent_of_best"][mode] for row in told_apart} for mode in COMPARED},
            y_range=(0, 100),
        )
    print(json.dumps(result, indent=None if given.json else 1) if given.json else _table(result))


# --- conformance ------------------------------------------------------------------------------------------------


def conformance(file: dict[str, Any]) -> dict[str, Any]:
    """{"cases", "passed", "failed"}: of the failed what was expected and what came."""
    known = json.loads(CASES.read_text())["topologies"] | file.get("topologies", {})
    failed = []
    for case in file["cases"]:
        wrong = _wrong(case, known.get(case.get("topology"), {}))
        if wrong:
            failed.append(
                {
                    "test": case.get("test"),
                    "description": case.get("description", ""),
                    "policy": case.get("policy"),
                    "wrong": wrong,
                }
            )
    return {"cases": len(file["cases"]), "passed": len(file["cases"]) - len(failed), "failed": failed}


def _wrong(case: dict[str, Any], topology: dict[str, Any]) -> str:
    score = pair_scores(topology)
    policy = str(case["policy"]).replace("best-effort", "besteffort")
    if policy not in _POLICIES:
        return f"there is no policy {case['policy']}"
    choose = _POLICIES[policy]
    if case["kind"] == "single":
        got = choose(score, case["available"], case.get("required") or [], case["size"])
        return "" if sorted(got) == sorted(case["expected"]) else f"expected {case['expected']}, got {list(got)}"
    if case["kind"] != "sequence":
        return f"there is no kind {case['kind']}"
    free = list(case["initial_available"])
    for step in case["steps"]:
        got = choose(score, sorted(free), step.get("required") or [], step["size"])
        if sorted(got) != sorted(step["expected"]):
            return f"of {free} for {step['size']} expected {step['expected']}, got {list(got)}"
        free = [gpu for gpu in free if gpu not in got]
    return ""


def pair_scores(topology: dict[str, Any]) -> Scores:
    """The file's own, or counted from NVLinks and PCIe levels (none between two GPUs where the level is null)."""
    if "pair_score" in topology or not topology:
        given: Scores = topology.get("pair_score", [])
        return given
    links, levels = topology["nvlink_count"], topology["pcie_level"]
    return [[100 * n + _PCIE.get(levels[a][b] or "", 0) for b, n in enumerate(row)] for a, row in enumerate(links)]


_POLICIES: dict[str, Callable[[Scores, Sequence[int], Sequence[int], int], Sequence[int]]] = {
    "besteffort": best_effort,
    "simple": lambda _, available, required, size: simple(available, required, size),
    "static-dgx1-pascal": lambda _, available, required, size: static_set(PASCAL, available, required, size),
    "static-dgx1-volta": lambda _, available, required, size: static_set(VOLTA, available, required, size),
}


# --- bandwidth under churn --------------------------------------------------------------------------------------


def churn(name: str, fabric: Fabric) -> dict[str, Any]:
    """One machine under every compared mode: the mean over its pods of several GPUs, by mode and by mode and size."""
    row: dict[str, Any] = {
        "topology": name,
        "gpus": fabric.count,
        "mean_gb_s": {},
        "percent_of_best": {},
        "by_size_gb_s": {},
        "refused_percent": {},
        "choose_us": {},
    }
    for mode in COMPARED:
        got: dict[int, list[int]] = {}
        asked = refused = 0
        began = time.perf_counter()
        for seed in SEEDS:
            for size, chosen in _run(fabric, mode, seed):
                asked += 1
                refused += chosen == 0
                if chosen and size > 1:
                    got.setdefault(size, []).append(ring_mb_s(fabric, chosen))
        took_s = time.perf_counter() - began
        best = {size: _best(fabric, size) for size in got}
        means = [mb_s for ring in got.values() for mb_s in ring]
        shares = [100 * mb_s / best[size] for size, ring in got.items() for mb_s in ring]
        row["mean_gb_s"][mode] = round(sum(means) / len(means) / 1000, 2)
        row["percent_of_best"][mode] = round(sum(shares) / len(shares), 2)
        row["by_size_gb_s"][mode] = {size: round(sum(ring) / len(ring) / 1000, 2) for size, ring in sorted(got.items())}
        row["refused_percent"][mode] = round(100 * refused / asked, 2)
        row["choose_us"][mode] = round(took_s / asked * 1e6, 1)
    return row


def _run(fabric: Fabric, mode: str, seed: int) -> list[tuple[int, int]]:
    """(size, mask of places or 0 where refused) of each pod in turn."""
    dice = random.Random(seed)
    sizes = [(size, share) for size, share in _SIZES if size <= fabric.count]
    mean_size = sum(size * share for size, share in sizes) / sum(share for _, share in sizes)
    between = mean_size / (LOAD * fabric.count)
    free, now = (1 << fabric.count) - 1, 0.0
    ends: list[Any] = []
    out: list[Any] = []
    for _ in range(PODS):
        now += dice.expovariate(1 / between)
        size = dice.choices([s for s, _ in sizes], [share for _, share in sizes])[0]
        life = dice.expovariate(1.0)
        while ends and ends[0][0] <= now:
            free |= heapq.heappop(ends)[1]
        places = (
            COMPARED[mode](fabric, Choice(size=size, fitting=free, idle=free)) if free.bit_count() >= size else None
        )
        chosen = sum(1 << place for place in places or ())
        out.append((size, chosen))
        if chosen:
            free &= ~chosen
            heapq.heappush(ends, (now + life, chosen))
    return out


def _best(fabric: Fabric, size: int) -> int:
    """The best ring of that size on the empty machine."""
    everything = (1 << fabric.count) - 1
    return ring_mb_s(
        fabric,
        sum(1 << p for p in choose_gpus(fabric, Choice(size=size, fitting=everything, idle=everything)) or ()),
    )


def _table(result: dict[str, Any]) -> str:
    lines = [
        f"go-gpuallocator: {result['passed']} of {result['cases']} cases",
        *(f"  {f['test']} {f['description']}: {f['wrong']}" for f in result["failed"]),
        "",
    ]
    lines.append("| machine | " + " | ".join(f"{mode}, GB/s (% of the best)" for mode in COMPARED) + " |")
    lines.append("|---" * (len(COMPARED) + 1) + "|")
    lines += [
        f"| {row['topology']} | "
        + " | ".join(f"{row['mean_gb_s'][m]} ({row['percent_of_best'][m]})" for m in COMPARED)
        + " |"
        for row in result["bandwidth"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
