"""Judges the canary's measurements. Pure.

A proof is for one driver version and one library on this host: any other version of either must be proven again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shared.model.units import MIB

OUT_OF_MEMORY = 2
SHARE_ERROR_MILLI = 50
"""Tolerance of the measured share. The canary runs for seconds, on a GPU that others may use, so it only tells a limit
that holds from one that does not. The benchmark and the samples of real slices measure how exact a share is."""
MIN_USED_MILLI = 800
"""A limit that yields less than this part of the share is not good enough."""

CONTEXT_SPREAD_BYTES = 4 * MIB
"""Contexts of one driver on one GPU differ by less than this."""
MAX_CHUNK_BYTES = 1024 * MIB


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
    context_bytes: int = 0
    """Memory that a process's context takes on the GPU; 0: not measured."""
    pool_chunk_bytes: int = 0
    """Memory that a memory pool takes on the GPU at once; 0: not measured."""


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
    """Bytes that a context takes, rounded up to MiB; 0 if the measurements differ because others used the GPU
    meanwhile."""
    seen = [int(measured) for measured in line.get("context_bytes", ())]
    if not seen or min(seen) < 0 or max(seen) - min(seen) > CONTEXT_SPREAD_BYTES:
        return 0
    return -(-max(seen) // MIB) * MIB


def of_pools(line: Mapping[str, Any]) -> int:
    """Bytes that a memory pool takes at once; 0 if it was not measured."""
    seen = int(line.get("pool_chunk_bytes", 0))
    return seen if 0 < seen <= MAX_CHUNK_BYTES else 0


def offered(proof: Proof | None, driver_version: str, library: str) -> str:
    """Why nothing is offered because of this proof; "" if the proof is good."""
    if not library:
        return (
            "the interposer is not in this image: run make -C native/interposer, and set "
            "interposer_dir to its build folder"
        )
    if not driver_version:
        return "no driver is loaded"
    if proof is None or (proof.driver_version, proof.library) != (driver_version, library):
        return f"the limits have not been proven with driver {driver_version} yet"
    return "" if proof.ok else f"the canary failed with driver {driver_version}: {proof.sentence}"
