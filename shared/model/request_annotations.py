"""Reads the annotations of a pod's request: isolation, the GPUs that it accepts, topology, policy and tier."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from shared.model import names
from shared.model.generations import GENERATIONS, capability_tenths
from shared.model.policies import POLICIES
from shared.model.remote_use import read_remote
from shared.model.request import OPPORTUNISTIC, TOPOLOGY_MODES, GpuAsk, PodRequest, RequestError
from shared.model.request_amounts import MAX_MEMORY_BYTES, read_number
from shared.model.request_limits import with_limits
from shared.model.strategy import ISOLATION_RANK
from shared.model.units import mib
from shared.model.use_reader import read_max_slowdown, read_use
from shared.printable import CONTROL

MAX_NAMES = 64
"""In a list of models, generations or UUIDs: each GPU is compared with each of them."""
MAX_LIST_CHARS = 4096
_LISTS = (
    names.ANNOTATION_GPU_MODEL,
    names.ANNOTATION_GPU_MODEL_NOT,
    names.ANNOTATION_GPU_UUID,
    names.ANNOTATION_GPU_UUID_NOT,
    names.ANNOTATION_GPU_GENERATION,
)
_NICS = re.compile(r"[1-9]|[1-5][0-9]|6[0-4]")


def with_annotations(asks: dict[str, GpuAsk], annotations: Mapping[str, str], *, is_bound: bool = False) -> PodRequest:
    """The request of a pod with these asks and annotations. Raises RequestError on an invalid annotation.

    `is_bound`: lists may be of any length. The pod runs, perhaps since a version that knew no bound.
    """
    if not is_bound:
        check_lists(annotations)
    isolation = _choice(annotations, names.ANNOTATION_ISOLATION, tuple(ISOLATION_RANK), "soft")
    asks = with_limits(asks, annotations, isolation)
    tier = _choice(annotations, names.ANNOTATION_TIER, ("standard", OPPORTUNISTIC), "")
    return PodRequest(
        asks={name: _in_gaps(ask) for name, ask in asks.items()} if tier == OPPORTUNISTIC else asks,
        isolation=isolation,  # type: ignore[arg-type]
        models=_list(annotations, names.ANNOTATION_GPU_MODEL, "GPU models", "H200|H100"),
        models_not=_list(annotations, names.ANNOTATION_GPU_MODEL_NOT, "GPU models", "T4|P4"),
        uuids=_list(annotations, names.ANNOTATION_GPU_UUID, "GPU UUIDs", "GPU-1f0e4c53|GPU-5a1c9a60"),
        uuids_not=_list(annotations, names.ANNOTATION_GPU_UUID_NOT, "GPU UUIDs", "GPU-1f0e4c53|GPU-5a1c9a60"),
        generations=_generations(annotations),
        memory_min_mib=_memory_min(annotations),
        capability_min=_capability_min(annotations),
        prefer=_choice(annotations, names.ANNOTATION_GPU_PREFER, ("cost", "speed"), ""),  # type: ignore[arg-type]
        topology=_choice(annotations, names.ANNOTATION_TOPOLOGY, ("required", "preferred", "numa", "host"), ""),  # type: ignore[arg-type]
        topology_mode=_choice(annotations, names.ANNOTATION_TOPOLOGY_MODE, TOPOLOGY_MODES, ""),  # type: ignore[arg-type]
        policy=_choice(annotations, names.ANNOTATION_POLICY, POLICIES, ""),
        gpu_policy=_choice(annotations, names.ANNOTATION_GPU_POLICY, POLICIES, ""),
        tier=tier,
        nics=_nics(annotations),
        use=read_use(annotations),
        max_slowdown_milli=read_max_slowdown(annotations),
        remote=read_remote(annotations),
    )


def _in_gaps(ask: GpuAsk) -> GpuAsk:
    """An opportunistic pod reserves memory only. It runs when other pods leave GPU time, also on GPUs whose compute is
    fully reserved. If it requests a fraction of memory and compute alike, both are reserved; so is all of a whole GPU,
    and of an instance."""
    if ask.whole or ask.profile or ask.is_fraction:
        return ask
    return msgspec.structs.replace(ask, compute_milli=0, compute_limit_milli=0)


def _choice(annotations: Mapping[str, str], key: str, allowed: tuple[str, ...], default: str) -> str:
    value = annotations.get(key)
    if value is None:
        return default
    if value not in allowed:
        raise RequestError("bad-annotation", f"annotation {key} is {value!r}; it must be {_one_of(allowed)}")
    return value


def _one_of(allowed: tuple[str, ...]) -> str:
    return allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"


def check_lists(annotations: Mapping[str, str]) -> None:
    """Raises RequestError if a list of models, generations or UUIDs is too long to compare GPUs with, or has control
    characters: explanations repeat its names."""
    for key in _LISTS:
        text = annotations.get(key, "")
        if len(text) > MAX_LIST_CHARS:
            raise RequestError(
                "bad-annotation", f"annotation {key} has {len(text)} characters; it may have {MAX_LIST_CHARS} at most"
            )
        if (count := text.count("|") + 1) > MAX_NAMES:
            raise RequestError("bad-annotation", f"annotation {key} has {count} names; it may have {MAX_NAMES} at most")
        if found := CONTROL.search(text):
            raise RequestError(
                "bad-annotation", f"annotation {key} has the control character {found[0]!r}; take it out"
            )


def _list(annotations: Mapping[str, str], key: str, what: str, example: str) -> tuple[str, ...]:
    """Alternatives, in an order of their own so that equal wishes look equal."""
    text = annotations.get(key)
    if text is None:
        return ()
    parts = tuple(sorted({part.strip() for part in text.split("|")} - {""}))
    if not parts:
        raise RequestError(
            "bad-annotation", f"annotation {key} is {text!r}; name {what} separated by |, such as {example}"
        )
    return parts


def _generations(annotations: Mapping[str, str]) -> tuple[str, ...]:
    known = {name.lower(): name for name in GENERATIONS}
    wanted = _list(annotations, names.ANNOTATION_GPU_GENERATION, "generations", "Ampere|Hopper")
    unknown = [name for name in wanted if name.lower() not in known]
    if unknown:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_GPU_GENERATION} names {unknown[0]!r}; the generations are "
            f"{', '.join(GENERATIONS)}",
        )
    return tuple(sorted({known[name.lower()] for name in wanted}))


def _memory_min(annotations: Mapping[str, str]) -> int:
    text = annotations.get(names.ANNOTATION_GPU_MEMORY_MIN)
    if text is None:
        return 0
    amount = read_number({names.ANNOTATION_GPU_MEMORY_MIN: text}, names.ANNOTATION_GPU_MEMORY_MIN, "annotations")
    if not 0 < amount <= MAX_MEMORY_BYTES:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_GPU_MEMORY_MIN} is {text!r}; it is what one GPU has in all, in "
            "bytes, written like 40Gi",
        )
    return mib(amount)


def _nics(annotations: Mapping[str, str]) -> int:
    text = annotations.get(names.ANNOTATION_NIC)
    if text is None:
        return 0
    if not _NICS.fullmatch(text):
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_NIC} is {text!r}; it is the number of network cards for RDMA, from 1 to 64",
        )
    return int(text)


def _capability_min(annotations: Mapping[str, str]) -> int:
    text = annotations.get(names.ANNOTATION_GPU_CAPABILITY_MIN)
    if text is None:
        return 0
    tenths = capability_tenths(text)
    if tenths is None:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_GPU_CAPABILITY_MIN} is {text!r}; write a compute capability such as "
            "8.0 or 9.0",
        )
    return tenths
