"""What the slices of a running pod shall have: the annotation `kerf.dev/resize`, and the grant that it leads to.

`memory=12Gi,compute=40` names both amounts, or one of them and leaves the other; with several containers that use GPUs
each amount names its own, as in `main:memory=12Gi,helper:memory=2Gi`. As in the resources an amount is the container's
total, spread evenly over its GPUs: memory in bytes, compute in percent of one GPU.

| strategy | memory | compute |
|---|---|---|
| interposer, policed | yes | yes |
| time_slice | yes | it reserves none |
| advisory | accounting only | accounting only |
| driver | no: the driver's limit is fixed when the container starts | it reserves none |
| mps | no: a client's limits are fixed when its container starts | no |
| exclusive, mig | no: a GPU or an instance is given as a whole | no |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import msgspec

from shared.model import names
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.request import GpuAsk, PodRequest
from shared.model.request_amounts import MAX_MEMORY_BYTES
from shared.model.strategies import registered
from shared.model.strategy import Strategy
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, format_mib, mib, quantity

KEY = names.ANNOTATION_RESIZE
EXAMPLE = "memory=12Gi,compute=40"
MAX_TEXT, MAX_QUOTED = 1024, 100
"""How many characters an annotation may have, and how many of it are quoted."""


class ResizeError(ValueError):
    """A pod's slices can never have what its annotation says. `code` is stable for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one container shall have. None: as it is."""

    memory_bytes: int | None = None
    percent: Fraction | None = None


def quoted(text: str) -> str:
    """What somebody wrote, as it is shown in a sentence."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def read_resize(text: str) -> dict[str, Wanted]:
    """The amounts by container; by "" for the only container that uses GPUs. Raises ResizeError."""
    found: dict[str, Wanted] = {}
    if len(text) > MAX_TEXT:
        raise ResizeError("bad-resize", f"annotation {KEY} has {len(text)} characters; write at most {MAX_TEXT}")
    for part in text.split(","):
        left, equals, amount = (word.strip() for word in part.partition("="))
        container, _, what = left.rpartition(":")
        if not equals or what not in ("memory", "compute"):
            raise ResizeError("bad-resize", f"annotation {KEY} is {quoted(text)}; write amounts such as {EXAMPLE}")
        known = found.get(container, Wanted())
        if (known.memory_bytes if what == "memory" else known.percent) is not None:
            raise ResizeError("bad-resize", f"annotation {KEY} is {quoted(text)}, which has {quoted(left)} twice")
        if what == "memory":
            known = msgspec.structs.replace(known, memory_bytes=_bytes(left, amount))
        else:
            known = msgspec.structs.replace(known, percent=_percent(left, amount))
        found[container] = known
    return found


def encode_resize(wanted: Mapping[str, Wanted]) -> str:
    """The annotation's text."""
    parts = []
    for container, of in wanted.items():
        prefix = f"{container}:" if container else ""
        if of.memory_bytes is not None:
            size_mib = of.memory_bytes // (1 << 20)
            parts.append(
                f"{prefix}memory={size_mib >> 10}Gi" if size_mib % 1024 == 0 else f"{prefix}memory={size_mib}Mi"
            )
        if of.percent is not None:
            parts.append(f"{prefix}compute={float(of.percent):g}")
    return ",".join(parts)


def _bytes(left: str, amount: str) -> int:
    number = _number(left, amount)
    if not 1 << 20 <= number <= MAX_MEMORY_BYTES or number.denominator != 1:
        raise ResizeError(
            "bad-resize",
            f"annotation {KEY}: {quoted(left)} is {quoted(amount)}; write bytes such as 12Gi, at least 1Mi",
        )
    return int(number)


def _percent(left: str, amount: str) -> Fraction:
    number = _number(left, amount.removesuffix("%"))
    if number <= 0 or (number * 10).denominator != 1:
        raise ResizeError(
            "bad-resize",
            f"annotation {KEY}: {quoted(left)} is {quoted(amount)}; write the percentage of one GPU, such as 40",
        )
    return number


def _number(left: str, amount: str) -> Fraction:
    try:
        return quantity(amount)
    except QuantityError as error:
        raise ResizeError("bad-resize", f"annotation {KEY}: {quoted(left)}: {quoted(f'{error}')}") from None


# --- what it leads to ---------------------------------------------------------------------------------------------


def wanted_grant(grant: Grant, text: str) -> Grant:
    """The grant with the amounts of the annotation: its next amendment, or the grant itself if it has them. Raises
    ResizeError."""
    containers = dict(grant.containers)
    for container, wanted in read_resize(text).items():
        name = _named(container, grant)
        containers[name] = _resized(name, containers[name], wanted)
    return amended(grant, containers)


def amended(grant: Grant, containers: Mapping[str, ContainerGrant]) -> Grant:
    """The next amendment of a grant; the grant itself where the amounts are as they are."""
    if containers == grant.containers:
        return grant
    return next_amendment(grant, containers)


def next_amendment(grant: Grant, containers: Mapping[str, ContainerGrant]) -> Grant:
    return msgspec.structs.replace(grant, containers=dict(containers), amendment=grant.amendment + 1)


def lower(one: Grant, other: Grant) -> dict[str, ContainerGrant]:
    """Of each amount the smaller one."""
    return _each(one, other, min)


def higher(one: Grant, other: Grant) -> dict[str, ContainerGrant]:
    """Of each amount the larger one."""
    return _each(one, other, max)


def exceeds(one: Grant, other: Grant) -> bool:
    """Whether any amount is larger than in the other grant of the same GPUs."""
    return higher(one, other) != other.containers


def same_slices(one: Grant, other: Grant) -> bool:
    """Whether both are about the same slices: each container has the same strategy and the same GPUs."""
    return _slices(one) == _slices(other)


def _slices(grant: Grant) -> dict[str, tuple[str, str, set[tuple[str, str]], int]]:
    return {
        name: (part.strategy, part.claim, {(share.node, share.uuid) for share in part.gpus}, len(part.gpus))
        for name, part in grant.containers.items()
    }


def _each(one: Grant, other: Grant, choose: Callable[[int, int], int]) -> dict[str, ContainerGrant]:
    found = {}
    for name, part in other.containers.items():
        mine = {(share.node, share.uuid): share for share in one.containers[name].gpus}
        gpus = tuple(
            msgspec.structs.replace(
                share,
                memory_mib=choose(mine[share.node, share.uuid].memory_mib, share.memory_mib),
                compute_milli=choose(mine[share.node, share.uuid].compute_milli, share.compute_milli),
            )
            for share in part.gpus
        )
        found[name] = msgspec.structs.replace(part, gpus=gpus)
    return found


def _named(container: str, grant: Grant) -> str:
    if container in grant.containers:
        return container
    have = ", ".join(sorted(grant.containers)) or "none"
    if container:
        raise ResizeError(
            "bad-resize", f"annotation {KEY} names container {quoted(container)}; those with GPUs are {have}"
        )
    if len(grant.containers) != 1:
        raise ResizeError(
            "bad-resize",
            f"annotation {KEY} names no container, and those with GPUs are {have}; write CONTAINER:memory=…",
        )
    return next(iter(grant.containers))


def _resized(name: str, part: ContainerGrant, wanted: Wanted) -> ContainerGrant:
    strategy, count, where = registered()[part.strategy], len(part.gpus), f"container {name}"
    if part.claim:
        raise ResizeError("not-resizable", f"{where} has its GPUs by a ResourceClaim, whose allocation cannot change")
    if strategy.unit != "part" or any(share.mig is not None for share in part.gpus):
        what = "MIG instances" if strategy.unit == "instance" else "whole GPUs"
        raise ResizeError("not-resizable", f"{where} has {what}, which cannot grow or shrink; only parts of GPUs can")
    memory_mib = milli = None
    if wanted.memory_bytes is not None:
        _check(where, strategy, "memory", strategy.limits_memory)
        if wanted.memory_bytes % count:
            raise ResizeError("bad-resize", f"{where}: its memory cannot be divided over {count} GPUs")
        memory_mib = mib(wanted.memory_bytes // count)
    if wanted.percent is not None:
        _check(where, strategy, "compute", strategy.limits_compute)
        milli = _milli(where, part, wanted.percent)
    return msgspec.structs.replace(part, gpus=tuple(_share(share, memory_mib, milli) for share in part.gpus))


def _check(where: str, strategy: Strategy, what: str, limits: bool) -> None:
    accounted_only = strategy.promise == "soft" and strategy.proof == "none"
    if strategy.concurrent:
        why = "what a client of MPS may use is fixed when its container starts"
    elif not limits and not accounted_only:
        why = f"the {what} of its slices is fixed when their container starts"
    else:
        return
    raise ResizeError("not-resizable", f"{where} has strategy {strategy.name}: {why}; create the pod anew")


def _milli(where: str, part: ContainerGrant, percent: Fraction) -> int:
    each = percent * 10 / len(part.gpus)
    if each > WHOLE_GPU_MILLI or each.denominator != 1:
        raise ResizeError(
            "bad-resize",
            f"{where}: compute {float(percent):g} is for {len(part.gpus)} GPU(s); write at most "
            f"{100 * len(part.gpus)}, in tenths of a percent for each of them",
        )
    if not all(share.compute_milli for share in part.gpus):
        raise ResizeError(
            "not-resizable",
            f"{where} reserves no GPU time and uses what others leave, by its request; that cannot change while it "
            "runs",
        )
    return int(each)


def _share(share: GpuShare, memory_mib: int | None, milli: int | None) -> GpuShare:
    return msgspec.structs.replace(
        share,
        memory_mib=share.memory_mib if memory_mib is None else memory_mib,
        compute_milli=share.compute_milli if milli is None else milli,
    )


def asked_amounts(ask: GpuAsk | None, total_mib: int | None) -> tuple[int, int]:
    """(memory_mib, compute_milli) that a container requests of a GPU with so much memory; zeros: none of it."""
    if ask is None:
        return 0, 0
    return ask.memory_mib or (total_mib or 0) * ask.memory_milli // WHOLE_GPU_MILLI, ask.compute_milli


def beyond_request(grant: Grant, request: PodRequest | None, total_mib: Callable[[str, str], int | None]) -> str:
    """By what a grant exceeds the pod's own request; empty if it does not. `total_mib`: a GPU's memory by (node,
    uuid)."""
    for name, part in grant.containers.items():
        ask = None if request is None else request.asks.get(name)
        for share in part.gpus:
            asked_mib, asked_milli = asked_amounts(ask, total_mib(share.node, share.uuid))
            if share.memory_mib > asked_mib:
                return f"container {name} requests {format_mib(asked_mib)} of GPU memory"
            if share.compute_milli > asked_milli:
                return f"container {name} requests {asked_milli / 10:g} % of a GPU's compute"
    return ""
