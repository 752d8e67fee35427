"""Judges runs of a workload. Pure: each function returns what is wrong, in sentences; nothing if all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bench.workloads.outcome import Outcome, Result, Stop
from bench.workloads.workload import Workload
from shared.model.units import MIB, WHOLE_GPU_MILLI

OUT_OF_MEMORY, NOT_READY = 2, 600
POLLED = ("cuEventQuery", "cuStreamQuery")
"""How often a program asks depends on time."""
COUNTED_BY_SIZE = "fill"
"""The phase whose calls are as many as the memory has pieces."""
PIECES = 256
"""The program asks for the slice's memory in so many pieces (program.h:go_beyond)."""
MAX_TIME_FACTOR, MAX_TIME_NS = 1.02, 25_000_000
"""How much longer a program without a share may take, and how much more all may take for their first launches."""
SLACK_BYTES = 16 * MIB
"""Of an account on a GPU: the memory of modules and events is not counted."""


def problems(reference: Outcome, runs: dict[str, Outcome], *, fake: bool, workload: Workload) -> list[str]:
    """What is wrong in `runs`, by name, compared with the run without Kerf."""
    found = [f"without Kerf: {text}" for text in _broken(reference)]
    for name, outcome in runs.items():
        texts = [*_broken(outcome)]
        if outcome.result is not None and reference.result is not None:
            texts += [
                *of_results(reference.result, outcome.result),
                *of_calls(reference.result, outcome.result),
                *of_memory(outcome, fake=fake),
                *of_refusal(outcome, fake=fake),
                *of_accounts(outcome.stops, outcome.context_bytes, fake=fake),
                *of_share(reference.result, outcome, workload),
                *of_time(reference.result, outcome, workload.max_time_factor),
            ]
        found += [f"{name}: {text}" for text in texts]
    return found


def _broken(outcome: Outcome) -> Iterator[str]:
    if outcome.failure:
        yield outcome.failure
    if outcome.result is not None and outcome.result.unexpected:
        yield f"{outcome.result.unexpected} calls failed that must not fail"
    if outcome.result is not None and outcome.result.workers_status:
        yield f"its workers ended with status {outcome.result.workers_status:#x}"


def of_results(reference: Result, result: Result) -> Iterator[str]:
    wrong = sum(a != b for a, b in zip(reference.results, result.results, strict=False))
    if len(reference.results) != len(result.results) or wrong:
        yield f"{wrong} of {len(reference.results)} results differ from those without Kerf"


def of_calls(reference: Result, result: Result) -> Iterator[str]:
    """No call fails that succeeds without Kerf, and none is missing."""
    before, after = _counted(reference), _counted(result)
    for thread, phase, name, code in sorted(before.keys() | after.keys()):
        missing = before[thread, phase, name, code] - after[thread, phase, name, code]
        if missing:
            yield (
                f"{name} of {thread} in phase {phase!r} returned {code} {after[thread, phase, name, code]} times, "
                f"and {before[thread, phase, name, code]} times without Kerf"
            )


def _counted(result: Result) -> Counter[tuple[str, str, str, int]]:
    found: Counter[tuple[str, str, str, int]] = Counter()
    for thread, phase, name, code, count in result.calls:
        if phase == COUNTED_BY_SIZE or (name in POLLED and code == NOT_READY):
            continue
        found[thread, phase, name, code] += 1 if name in POLLED else count
    return found


def of_memory(outcome: Outcome, *, fake: bool) -> Iterator[str]:
    """The driver's own figure never exceeds the slice, and the slice is what the program is shown."""
    assert outcome.result is not None
    peak = max(outcome.result.peak_bytes, default=outcome.sampled_peak_bytes)
    if peak is None and fake:
        yield "the driver told no maximum of its memory"
    if peak is not None and peak > outcome.memory_bytes:
        yield f"it had {peak} bytes by the driver's figure; its slice has {outcome.memory_bytes}"
    shown = {stop.shown_total for stop in outcome.stops if stop.shown_total}
    if shown != {outcome.memory_bytes}:
        yield f"cuMemGetInfo showed {sorted(shown)} bytes in total; its slice has {outcome.memory_bytes}"


def of_refusal(outcome: Outcome, *, fake: bool) -> Iterator[str]:
    """More than the slice is refused as memory of a full GPU is, and all of the slice can be had."""
    result = outcome.result
    assert result is not None
    if result.beyond_result != OUT_OF_MEMORY or result.refusal != OUT_OF_MEMORY:
        yield (
            f"requests beyond the slice returned {result.beyond_result} at once and {result.refusal} in pieces; "
            f"CUDA_ERROR_OUT_OF_MEMORY is {OUT_OF_MEMORY}"
        )
    if result.got_bytes > outcome.memory_bytes:
        yield f"it got {result.got_bytes} bytes in pieces; its slice has {outcome.memory_bytes}"
    peak = max(result.peak_bytes, default=outcome.sampled_peak_bytes)
    piece = max(2 * MIB, outcome.memory_bytes // PIECES)
    slack = 2 * MIB if fake else SLACK_BYTES
    if not fake and not outcome.compute_milli:
        return  # all of a GPU: its driver keeps some of it
    if peak is not None and peak + piece + slack < outcome.memory_bytes:
        yield f"it was refused too early: it had {peak} bytes of {outcome.memory_bytes}, asking for {piece} at a time"


def of_accounts(stops: Iterable[Stop], context_bytes: int, *, fake: bool) -> Iterator[str]:
    """At each stop the account is what the program holds, and so is the driver's figure; at the end as at the start."""
    slack = 0 if fake else SLACK_BYTES
    for stop in stops:
        if stop.held is None:
            continue
        expected = stop.held + stop.processes * context_bytes
        charged = expected + stop.imported
        if not stop.account_bytes or abs(stop.account_bytes[0] - charged) > slack:
            yield f"at {stop.at!r} the account was {list(stop.account_bytes)[:1]} bytes; it should be {charged}"
        if fake and stop.device_bytes[:1] != (expected,):
            yield f"at {stop.at!r} the driver's figure was {list(stop.device_bytes)[:1]}; it should be {expected}"


def share_milli(result: Result) -> int:
    return round(result.gpu_ns * WHOLE_GPU_MILLI / max(1, result.timed_ns))


def share_error_percent(reference: Result, outcome: Outcome, *, saturates: bool) -> float:
    """How far the program is from its share, in percent of the GPU.

    A program that does not always have work may use less. One that could use less than its share without Kerf is
    measured against that.
    """
    assert outcome.result is not None
    got, asked = share_milli(outcome.result), outcome.compute_milli
    if not asked:
        return 0.0
    over = max(0, got - asked)
    under = max(0, min(asked, share_milli(reference)) - got) if saturates else 0
    return max(over, under) / 10


def of_share(reference: Result, outcome: Outcome, workload: Workload) -> Iterator[str]:
    assert outcome.result is not None
    error = share_error_percent(reference, outcome, saturates=workload.saturates)
    if error > workload.max_share_error_percent:
        yield (
            f"it got {share_milli(outcome.result)} thousandths of the GPU's time; its share is "
            f"{outcome.compute_milli}, "
            f"and {share_milli(reference)} without Kerf"
        )


def of_time(reference: Result, outcome: Outcome, factor: float) -> Iterator[str]:
    """A program takes as long as without Kerf, or, with a share, as its share explains."""
    assert outcome.result is not None
    slower = WHOLE_GPU_MILLI / outcome.compute_milli * factor if outcome.compute_milli else MAX_TIME_FACTOR
    if outcome.result.timed_ns > reference.timed_ns * slower + MAX_TIME_NS:
        yield (
            f"it took {outcome.result.timed_ns / 1e6:.0f} ms, and {reference.timed_ns / 1e6:.0f} ms without Kerf; "
            "at most "
            f"{slower:g} times that is expected"
        )


def lost_percent(reference: Result, result: Result) -> float:
    """How much longer the timed part took."""
    return round(100 * (result.timed_ns / max(1, reference.timed_ns) - 1), 3)
