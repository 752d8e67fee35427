"""What is measured of each workload."""

from __future__ import annotations

from typing import Any

from bench.workloads import checks
from bench.workloads.outcome import Outcome
from bench.workloads.place import Bench
from bench.workloads.runs import HALF_MILLI, in_slices, without_kerf
from bench.workloads.workload import Workload
from shared.model.units import MIB

NO_LIMITS, LIMITED, FIRST, SECOND = "whole GPU", "slice", "slice beside another", "the other slice"


def measure_one(place: Bench, workload: Workload, *, short: bool = False) -> dict[str, Any]:
    """Runs a workload's program in all ways; returns its figures, and what is wrong."""
    if workload.devices > len(place.gpus):
        return {"not_run": f"it needs {workload.devices} GPUs, and this machine has {len(place.gpus)}"}
    rounds = workload.short_rounds if short else workload.rounds
    reference = without_kerf(place, workload, rounds)
    runs = {NO_LIMITS: in_slices(place, workload, rounds)[0]}
    limits = {"memory_mib": workload.memory_mib, "compute_milli": HALF_MILLI}
    runs[LIMITED] = in_slices(place, workload, rounds, **limits)[0]
    runs[FIRST], runs[SECOND] = in_slices(place, workload, rounds, count=2, **limits)
    found: dict[str, Any] = {"problems": checks.problems(reference, runs, fake=place.device.fake, workload=workload)}
    if reference.result is not None:
        found["without_kerf"] = _figures(reference)
        for name, outcome in runs.items():
            found[name] = _figures(outcome)
            if outcome.result is not None:
                found[name]["time_lost_percent"] = checks.lost_percent(reference.result, outcome.result)
                found[name]["share_error_percent"] = checks.share_error_percent(
                    reference.result, outcome, saturates=workload.saturates
                )
    return found


def _figures(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    if result is None:
        return {"failure": outcome.failure}
    peak = max(result.peak_bytes, default=outcome.sampled_peak_bytes)
    found: dict[str, Any] = {
        "timed_ms": round(result.timed_ns / 1e6, 2),
        "gpu_milli": checks.share_milli(result),
        "memory_peak_mib": None if peak is None else -(-peak // MIB),
        "memory_mib": outcome.memory_bytes // MIB,
        "calls": sum(count for *_, count in result.calls),
    }
    if result.p99_ns:
        found |= {"p50_ms": round(result.p50_ns / 1e6, 3), "p99_ms": round(result.p99_ns / 1e6, 3)}
    return found
