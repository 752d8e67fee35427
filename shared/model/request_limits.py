"""Reads how much more than it requests a container may use: `kerf.dev/gpu-memory-limit` and `-compute-limit`.

Kubernetes refuses an extended resource whose request differs from its limit, also in a template
(ValidateContainerResourceRequirements in pkg/apis/core/validation: "must be equal to %s limit"). So the amount that is
guaranteed is the resource, and what the container may use beyond it is an annotation.

An annotation has one amount where one container of the pod uses GPUs, else one for each container, as in
`main=24Gi,helper=4Gi`. As in the resources an amount is the container's total, spread evenly over its GPUs: memory in
bytes (`24Gi`) or in percent of one GPU's memory (`60%`), compute in percent of one GPU (`60`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

import msgspec

from shared.model import names
from shared.model.request import GpuAsk, RequestError
from shared.model.request_amounts import MAX_MEMORY_BYTES
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, mib, quantity

MEMORY, COMPUTE = names.ANNOTATION_GPU_MEMORY_LIMIT, names.ANNOTATION_GPU_COMPUTE_LIMIT


def with_limits(asks: Mapping[str, GpuAsk], annotations: Mapping[str, str], isolation: str) -> dict[str, GpuAsk]:
    """The asks with what their containers may use beyond them. Raises RequestError."""
    found = dict(asks)
    for key in (MEMORY, COMPUTE):
        if key not in annotations:
            continue
        if isolation == "hard":
            raise RequestError(
                "limit-not-allowed",
                f"annotation {key} is set, and isolation is hard: what a slice may use is then fixed by hardware or "
                f"driver. Leave it out, or ask for {names.ANNOTATION_ISOLATION}: policed, firm or soft",
            )
        for name, text in _amounts(key, annotations[key], found):
            found[name] = (_with_memory if key == MEMORY else _with_compute)(_part(key, name, found[name]), name, text)
    return found


def _amounts(key: str, text: str, asks: Mapping[str, GpuAsk]) -> Iterator[tuple[str, str]]:
    """The amounts by container."""
    if "=" not in text:
        if len(asks) > 1:
            example = ",".join(f"{name}=…" for name in sorted(asks))
            raise RequestError(
                "bad-annotation",
                f"annotation {key} is {text!r}, and the pod has {len(asks)} containers with GPUs; write {example}",
            )
        yield from ((name, text) for name in asks)
        return
    seen: set[str] = set()
    for part in text.split(","):
        name, _, amount = (word.strip() for word in part.partition("="))
        if name not in asks or name in seen:
            why = "twice" if name in seen else f"and the containers with GPUs are {', '.join(sorted(asks))}"
            raise RequestError("bad-annotation", f"annotation {key} names container {name!r}, {why}")
        seen.add(name)
        yield name, amount


def _part(key: str, name: str, ask: GpuAsk) -> GpuAsk:
    """The ask, if it is for parts of GPUs."""
    if ask.whole or ask.profile:
        what = "MIG instances, which cannot grow" if ask.profile else "whole GPUs, and so has all of them"
        raise RequestError(
            "limit-not-allowed",
            f"annotation {key} for container {name!r}, which requests {what}; leave the annotation out",
        )
    return ask


def _with_memory(ask: GpuAsk, name: str, text: str) -> GpuAsk:
    where = f"annotation {MEMORY} for container {name!r}"
    if text.endswith("%"):
        milli = _milli(where, text[:-1], ask.count)
        _check_order(where, text, milli, ask.memory_milli)
        return msgspec.structs.replace(ask, memory_limit_milli=0 if milli == ask.memory_milli else milli)
    size_bytes = _number(where, text)
    if not 0 < size_bytes <= MAX_MEMORY_BYTES or size_bytes.denominator != 1:
        raise RequestError("bad-annotation", f"{where} has {text!r}; write bytes such as 24Gi, or a percentage as 60%")
    if size_bytes % ask.count:
        raise RequestError("memory-not-even", f"{where}: {text} cannot be divided over {ask.count} GPUs")
    limit_mib = mib(int(size_bytes) // ask.count)
    _check_order(where, text, limit_mib, ask.memory_mib)
    return msgspec.structs.replace(ask, memory_limit_mib=0 if limit_mib == ask.memory_mib else limit_mib)


def _with_compute(ask: GpuAsk, name: str, text: str) -> GpuAsk:
    where = f"annotation {COMPUTE} for container {name!r}"
    if not ask.compute_milli:
        raise RequestError(
            "limit-not-allowed",
            f"{where}, which requests no {names.RESOURCE_GPU_COMPUTE} and so may use all GPU time that others leave; "
            "leave the annotation out, or request compute",
        )
    milli = _milli(where, text.removesuffix("%"), ask.count)
    _check_order(where, text, milli, ask.compute_milli)
    return msgspec.structs.replace(ask, compute_limit_milli=0 if milli == ask.compute_milli else milli)


def _milli(where: str, text: str, count: int) -> int:
    """Thousandths of each GPU, from percent of one GPU for all of them."""
    each = _number(where, text) * 10 / count
    if not 0 < each <= WHOLE_GPU_MILLI or each.denominator != 1:
        raise RequestError(
            "bad-annotation",
            f"{where} has {text!r}; write the percentage of one GPU for all of its {count} GPU(s), above 0 and at most "
            f"{100 * count}, in tenths of a percent for each GPU",
        )
    return int(each)


def _number(where: str, text: str) -> Fraction:
    try:
        return quantity(text)
    except QuantityError as error:
        raise RequestError("bad-annotation", f"{where}: {error}") from None


def _check_order(where: str, text: str, limit: int, request: int) -> None:
    if limit < request:
        raise RequestError(
            "limit-below-request",
            f"{where} has the limit {text}, less than the container's resources request; a limit is what it may use "
            "beyond them. Write a larger one, or leave it out",
        )
