"""What each container is told, from all slices of the node. Pure.

On a GPU that several slices share there are two kinds.
- *Reserved*: compute was asked for. Each has its part of every period to itself (a timetable, so that no two run into each
  other) and no more than its share of the time.
- *By turns*: none was asked for, or the pod is opportunistic. It may begin work at any time, while nobody whom it gives way to
  is busy: the reserved ones, and those of a higher rank. Equals share as the driver does. What it has in flight is bounded, and
  that bounds how long anybody waits for it. A least share of the time it has all the same, where the policy says so.

Who is paused, or shares by turns and is throttled, gives way to all others besides: a pause ends by itself when the agent's
heart has stopped, and whoever got the room keeps its full speed even then.

All of it is data that the containers' own interposers keep, within microseconds, and go on keeping without an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent.strategies import layout
from services.node_agent.strategies.control_block import GpuRule, Rules
from services.node_agent.strategies.quantum_scheduler import MAX_FLOOR_SUM_MILLI
from services.node_agent.strategies.slices import Key, Part, Slice
from shared.model.units import MIB, WHOLE_GPU_MILLI


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    period_us: int = 50_000
    """Of the timetable: a slice waits at most so long for its part."""
    in_flight_us: int = 500
    """GPU time that a slice may have submitted and not finished, where others share its GPU and it does not go before all."""
    idle_for_us: int = 200
    """So long must those before it have been idle until a slice takes its turn."""
    least_milli: int = 0
    """Of each GPU's time, to every slice by turns, even where those before it are always busy, or always say so. Less where they
    are many: together it is half of the time at most, and nothing that is reserved."""


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody (preemption, an operator) wants of a running slice beside its grant. It can only take away."""

    paused: bool = False
    compute_milli: int = WHOLE_GPU_MILLI
    """At most so much of each GPU. Who shares by turns gives way to all others, and has a least share of so much at most."""
    memory_mib: Mapping[str, int] = {}
    """At most so much of a GPU, by UUID. What is allocated stays; nothing more is."""
    closed: frozenset[str] = frozenset()
    """GPUs that it may not begin work on now, by UUID."""


NO_OVERRIDE = Override()


def check(slice_: Slice) -> None:
    """Raises ValueError on what no page can hold."""
    if len(slice_.parts) > layout.MAX_GPUS:
        raise ValueError(f"a page holds {layout.MAX_GPUS} GPUs, the slice has {len(slice_.parts)}")
    for part in slice_.parts:
        layout.uuid_bytes(part.uuid)


def plan(slices: Iterable[Slice], policy: Policy, overrides: Mapping[Key, Override]) -> dict[Key, Rules]:
    """The rules of every slice, by its key."""
    all_of = sorted((_apply_override(s, overrides.get(s.key, NO_OVERRIDE)) for s in slices), key=lambda s: s.key)
    on: dict[str, list[Slice]] = {}
    for slice_ in all_of:
        for part in slice_.parts:
            on.setdefault(part.uuid, []).append(slice_)
    return {slice_.key: _rules(slice_, on, policy, overrides.get(slice_.key, NO_OVERRIDE)) for slice_ in all_of}


def _apply_override(slice_: Slice, override: Override) -> Slice:
    """With the compute that is left to it, so that others' windows may lie where it had its own."""
    if not override.paused and override.compute_milli >= WHOLE_GPU_MILLI:
        return slice_
    parts = tuple(
        msgspec.structs.replace(part, compute_milli=min(part.compute_milli, override.compute_milli))
        for part in slice_.parts
    )
    less = msgspec.structs.replace(slice_, parts=parts)
    return msgspec.structs.replace(less, suspension=override.paused or not less.reserved)


def _rules(mine: Slice, on: Mapping[str, list[Slice]], policy: Policy, override: Override) -> Rules:
    others = {s.key: s for part in mine.parts for s in on[part.uuid] if s.key != mine.key}
    before = tuple(key for key, s in sorted(others.items()) if _has_precedence(s, mine))
    gpus = tuple(
        _gpu(mine, part, on[part.uuid], policy, override, bounded=bool(before) or mine.reserved) for part in mine.parts
    )
    if not before:
        # Only with peers are its launches timed and its signal kept; of those behind it a few are as good as all. Whose window
        # begins waits a moment for those beside it, so that work that ran past a window's end meets nobody.
        beside = tuple(key for key, s in sorted(others.items()) if mine.reserved and s.reserved)
        behind = tuple(key for key, s in sorted(others.items()) if _has_precedence(mine, s))
        return Rules(gpus=gpus, paused=override.paused, peers=(beside + behind)[: layout.MAX_PEERS])
    idle_for_ns = policy.idle_for_us * 1000
    return Rules(
        gpus=gpus,
        low=True,
        paused=override.paused,
        floor_milli=min(_floor(mine, on, policy), override.compute_milli),
        idle_for_ns=idle_for_ns,
        peers=before,
    )


def _floor(mine: Slice, on: Mapping[str, list[Slice]], policy: Policy) -> int:
    """A page has one for all its GPUs: the least."""
    floors = [policy.least_milli]
    for part in mine.parts:
        on_it = on[part.uuid]
        waiting = sum(any(_has_precedence(other, s) for other in on_it) for s in on_it)
        free = WHOLE_GPU_MILLI - sum(_milli(s, part.uuid) for s in on_it if s.reserved)
        floors.append(max(0, min(free, MAX_FLOOR_SUM_MILLI)) // max(1, waiting))
    return min(floors)


def _has_precedence(one: Slice, other: Slice) -> bool:
    if one.reserved or other.reserved:
        return one.reserved and not other.reserved
    return one.rank > other.rank


def _gpu(mine: Slice, part: Part, on_it: list[Slice], policy: Policy, override: Override, *, bounded: bool) -> GpuRule:
    memory_mib = min(part.memory_mib, override.memory_mib.get(part.uuid, part.memory_mib))
    compute = min(part.compute_milli or WHOLE_GPU_MILLI, override.compute_milli)
    rule = GpuRule(
        uuid=part.uuid,
        memory_limit_bytes=memory_mib * MIB,
        compute_milli=compute if compute < WHOLE_GPU_MILLI else 0,
        in_flight_us=policy.in_flight_us if bounded and len(on_it) > 1 else 0,
        gate_closed=part.uuid in override.closed,
    )
    reserved = [s for s in on_it if s.reserved]
    if not mine.reserved or len(reserved) < 2:
        return rule
    period_ns = policy.period_us * 1000
    start = sum(_milli(s, part.uuid) for s in reserved[: reserved.index(mine)])
    return msgspec.structs.replace(
        rule,
        period_ns=period_ns,
        window_start_ns=start * period_ns // WHOLE_GPU_MILLI,
        window_ns=part.compute_milli * period_ns // WHOLE_GPU_MILLI,
    )


def _milli(slice_: Slice, uuid: str) -> int:
    return sum(part.compute_milli for part in slice_.parts if part.uuid == uuid)
