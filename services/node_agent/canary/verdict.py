"""Judges the canary's measurements. Pure.

A proof is for one driver version and one library on this host: any other version of either must be proven again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from shared.model.units import MIB, WHOLE_GPU_MILLI

OUT_OF_MEMORY = 2
SHARE_ERROR_MILLI = 50
"""Tolerance of the measured share. The canary runs for seconds, on a GPU that others may use, so it only tells a limit
that holds from one that does not. The benchmark and the samples of real slices measure how exact a share is."""
MIN_USED_MILLI = 800
"""A limit that yields less than this part of the share is not good enough."""

CONTEXT_SPREAD_BYTES = 4 * MIB
"""Contexts of one driver on one GPU differ by less than this."""
MAX_CHUNK_BYTES = 1024 * MIB
RETRY_S, MAX_RETRY_S = 60.0, 1800.0
UNKNOWN = -1
"""A context's memory that could not be measured."""
MIN_TURN_PERCENT = 50
"""Of two equal slices, how much the smaller share may be of the larger one. The driver's time slicing is not exact."""
MAX_LOWER_PERCENT = 25
"""How much a slice may get of what a busy slice of higher rank gets. The bound of work in flight leaves it a little."""


DriverLimit = Literal["untried", "none", "fails", "managed-passes", "holds"]
"""none: the driver or the host has no such limits. managed-passes: it holds for all but managed memory."""
MANAGED = "cuMemAllocManaged"


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last result on this host, kept beside the agent's checkpoint."""

    driver_version: str
    library: str
    """The digest of the interposer library."""
    ok: bool
    sentence: str = ""
    """Why the canary failed."""
    at_ms: int = 0
    gpu: str = ""
    memory_limit_bytes: int = 0
    max_memory_bytes: int = msgspec.field(default=0, name="memory_most_bytes")
    """The most memory that any allocation path gave."""
    paths: tuple[str, ...] = ()
    share_asked_milli: int = 0
    share_got_milli: int = 0
    context_bytes: int = UNKNOWN
    """Memory that a process's context takes on the GPU."""
    seen_bytes: int = UNKNOWN
    """The least memory that NVML reported for a process of the canary by its own ID; 0: NVML did not know it."""
    driver_limit: DriverLimit = "untried"
    """What the driver's memory limit of a cgroup does to a program without the library."""
    driver_limit_sentence: str = ""
    """Why it does not hold for all memory."""
    pool_chunk_bytes: int = 0
    """Memory that a memory pool takes on the GPU at once; 0: not measured."""
    turns_milli: tuple[int, ...] = ()
    """Shares of two time-sliced slices that were busy at once: of equal rank, then the higher and the lower."""
    turns_sentence: str = ""
    """Why time slicing is not proven."""


def of_memory(
    lines: Sequence[Mapping[str, Any]], limit_bytes: int, chunk_bytes: int
) -> tuple[str, int, tuple[str, ...]]:
    """Judges the memory probe.

    Returns what is wrong ("" if nothing), the most bytes given, and the paths that were tried.
    """
    tried = [line for line in lines if "path" in line]
    most = max((int(line[key]) for line in tried for key in ("bytes", "again")), default=0)
    names = tuple(str(line["path"]) for line in tried)
    shown = next((int(line["shown_total"]) for line in lines if "shown_total" in line), 0)
    if shown > limit_bytes:
        return f"cuMemGetInfo shows {shown} bytes, the limit is {limit_bytes}", most, names
    if not tried:
        return "the memory canary tried no allocation path", most, names
    for line in tried:
        path, given, again = line["path"], int(line["bytes"]), int(line["again"])
        if max(given, again) > limit_bytes:
            return f"{path} gave {max(given, again)} bytes, the limit is {limit_bytes}", most, names
        if min(given, again) + 2 * chunk_bytes < limit_bytes:
            return f"{path} gave {min(given, again)} bytes of {limit_bytes}, and no more", most, names
        if line["error"] != OUT_OF_MEMORY or line["freed"]:
            return f"{path} ended with error {line['error']} and freed with error {line['freed']}", most, names
    return "", most, names


def of_share(line: Mapping[str, Any], asked_milli: int, ms: int, *, alone: bool = True) -> tuple[str, int]:
    """Judges the compute probe. Returns what is wrong ("" if nothing), and the measured share in milli of a GPU."""
    got = sum(int(ns) for ns in line.get("done_ns", ())) // (ms * 1000)
    if got > asked_milli + SHARE_ERROR_MILLI:
        return f"a slice of {asked_milli} milli compute got {got} milli", got
    if alone and got * 1000 < asked_milli * MIN_USED_MILLI:
        return f"a slice of {asked_milli} milli compute got only {got} milli", got
    return "", got


def of_contexts(line: Mapping[str, Any]) -> int:
    """Bytes that a context takes, rounded up to MiB; UNKNOWN if no measurement counts.

    What NVML reports for the measuring processes themselves counts first. The change of the GPU's free memory counts
    if the measurements agree, which they do not if others use the GPU meanwhile.
    """
    own = [int(measured) for measured in line.get("own_bytes", ())]
    seen = [int(measured) for measured in line.get("context_bytes", ())]
    if own and min(own) > 0:
        return -(-max(own) // MIB) * MIB
    if not seen or min(seen) < 0 or max(seen) - min(seen) > CONTEXT_SPREAD_BYTES:
        return UNKNOWN
    return -(-max(seen) // MIB) * MIB


def of_sight(line: Mapping[str, Any]) -> int:
    """The least bytes that NVML reported for the measuring processes by their own IDs; 0 if it did not know one."""
    return min((int(measured) for measured in line.get("own_bytes", ())), default=0)


def of_driver_limit(lines: Sequence[Mapping[str, Any]], limit_bytes: int, chunk_bytes: int) -> tuple[DriverLimit, str]:
    """Judges the probe that ran in a limited cgroup, without the library. Returns what the limit does, and why it does
    not hold for all memory.

    The driver's limit includes the context, so less than the limit may be given.
    """
    if not lines or lines[0].get("preloaded") is not False:
        return "fails", "the probe had loaded the interposer, so nothing is known of the driver's own limit"
    tried = [line for line in lines if "path" in line]
    if not tried:
        return "fails", "the probe tried no allocation path"
    passing = []
    for line in tried:
        path, given, again = line["path"], int(line["bytes"]), int(line["again"])
        if max(given, again) > limit_bytes:
            passing.append(f"{path} gave {max(given, again)} bytes, the driver's limit is {limit_bytes}")
            if path != MANAGED:
                return "fails", passing[-1]
        elif min(given, again) < chunk_bytes or line["error"] != OUT_OF_MEMORY or line["freed"]:
            return "fails", (
                f"{path} gave {min(given, again)} bytes of {limit_bytes} and ended with error {line['error']}; it "
                f"freed with error {line['freed']}"
            )
    return ("managed-passes", passing[0]) if passing else ("holds", "")


def of_turns(lines: Sequence[Mapping[str, Any]], ranked: bool) -> tuple[str, tuple[int, ...]]:
    """Judges two time-sliced slices that were busy at once, the first with the higher rank if `ranked`.

    Only their second second counts, when both surely run. Returns what is wrong ("" if nothing), and both shares in
    milli.
    """
    shares = tuple(int(line["done_ns"][1]) // 1_000_000 if len(line.get("done_ns", ())) > 1 else 0 for line in lines)
    first, second = shares
    what = "a slice of higher rank and one of lower rank" if ranked else "two slices of equal rank"
    if first + second > WHOLE_GPU_MILLI + SHARE_ERROR_MILLI:
        return f"{what} got {first} and {second} milli of one GPU at once: their time cannot be told apart", shares
    if not first:
        return f"{what} got {first} and {second} milli of one GPU", shares
    if ranked and second * 100 > first * MAX_LOWER_PERCENT:
        return f"{what} got {first} and {second} milli: the lower one does not yield", shares
    if not ranked and min(shares) * 100 < max(shares) * MIN_TURN_PERCENT:
        return f"{what} got {first} and {second} milli: the driver does not let them take turns", shares
    return "", shares


def of_pools(line: Mapping[str, Any]) -> int:
    """Bytes that a memory pool takes at once; 0 if it was not measured."""
    seen = int(line.get("pool_chunk_bytes", 0))
    return seen if 0 < seen <= MAX_CHUNK_BYTES else 0


def offered(proof: Proof | None, driver_version: str, library: str, context_mib: int | None = None) -> str:
    """Why nothing is offered because of this proof; "" if the proof is good.

    `context_mib` is the operator's figure for the memory of a context; None: the measured one counts.
    """
    if not library:
        return (
            "the interposer is not in this image: run make -C native/interposer, and set "
            "interposer_dir to its build folder"
        )
    if not driver_version:
        return "no driver is loaded"
    if proof is None or (proof.driver_version, proof.library) != (driver_version, library):
        return f"the limits have not been proven with driver {driver_version} yet"
    if proof.ok and proof.context_bytes == UNKNOWN and context_mib is None:
        return (
            "the GPU memory of a CUDA context is not known, so slices cannot be charged with it: NVML reports nothing "
            "for the canary's own process (does the agent run with hostPID?), and other processes changed the GPU's "
            "free memory meanwhile; firm isolation is offered when the canary finds the GPU idle, or if you set "
            "context_mib"
        )
    return "" if proof.ok else f"the canary failed with driver {driver_version}: {proof.sentence}"


def retry_after_s(attempts: int) -> float:
    """How long to wait after this many attempts without a complete proof: the cause may be temporary, and each attempt
    takes GPU time from other slices."""
    return min(RETRY_S * 2.0 ** min(attempts - 1, 10), MAX_RETRY_S)


def not_time_sliced(proof: Proof) -> str:
    """Why a node with this good proof does not offer time slicing; "" if it does."""
    if not proof.turns_milli:
        return "the canary has not tried time slicing yet"
    return proof.turns_sentence


def not_policed(proof: Proof) -> str:
    """Why a node with this good proof cannot police slices; "" if it can."""
    if proof.seen_bytes == UNKNOWN:
        return "the canary has not asked NVML for the memory of its own process yet"
    if not proof.seen_bytes:
        return (
            "NVML does not report the memory of the canary's own process by its ID, so the agent would not see what a "
            "pod holds; run the agent with hostPID"
        )
    return ""


def may_change_with_the_agent(proof: Proof) -> bool:
    """Whether another agent may find more with the same driver: one that has got hostPID, or may write cgroups."""
    return proof.ok and (proof.seen_bytes == 0 or proof.driver_limit == "fails")


def not_by_driver(proof: Proof) -> str:
    """Why a node with this good proof does not promise that the driver holds memory; "" if it does."""
    if proof.driver_limit == "untried":
        return "the canary has not tried the driver's memory limits yet"
    if proof.driver_limit == "none":
        return f"there are no memory limits of the driver here: {proof.driver_limit_sentence}"
    if proof.driver_limit == "managed-passes":
        return f"managed memory passes the driver's limit: {proof.driver_limit_sentence}"
    return proof.driver_limit_sentence
