"""Computes the rules of every container from all slices of the node. Pure.

Slices that share a GPU are of three kinds.
- *Reserved*: the pod requests compute. The slice has its own window in every period (a timetable, so that windows do
  not overlap), and it gets no more than its share of the time.
- *Time-sliced*: the pod requests no compute, or it is opportunistic. The slice may begin work at any time while no
  slice of higher precedence is busy: reserved slices, and time-sliced slices of a higher rank. Slices of equal rank
  share the GPU as the CUDA driver shares it. The slice's work in flight is bounded, and this bounds how long other
  slices wait for it. If the policy has a floor, the slice still gets that minimum share of the time.
- *Concurrent* (`mps`): the slice has a memory limit and nothing else, because the GPU runs its work beside that of the
  others. No slice of another kind shares its GPU.

Memory and GPU time that no slice is guaranteed are lent to slices with a limit above their request: GPU time here, by a
longer window; of memory `bursts.py` says how much each may use now. Such a loan ends with the next plan. GPU time that
is guaranteed and idle is lent by the interposers alone, as to slices that take turns (`lent_milli`).

A slice that is paused, or time-sliced and throttled, additionally yields to all other slices. A pause ends by itself
when the agent's heartbeat stops, and the slices that got the capacity keep their full speed even then. Until then a
slice whose others are all paused has its GPUs for itself (`peers_held`): its launches are not timed, for that costs
several percent of a GPU where kernels are short.

A control block names at most `layout.MAX_PEERS` others. A slice that has to yield to more of them yields to the first
ones on each of its GPUs, and may begin work while only others are busy.

The rules are data. The interposer in each container applies them within microseconds, and continues to do so without an
agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from services.node_agent.strategies import layout
from services.node_agent.strategies.bursts import Want, divide
from services.node_agent.strategies.control_block import GpuRule, Rules
from services.node_agent.strategies.quantum_scheduler import MAX_FLOOR_SUM_MILLI
from services.node_agent.strategies.slices import Key, Part, Slice
from shared.model.units import MIB, WHOLE_GPU_MILLI


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    period_us: int = 50_000
    """Period of the timetable: the longest time that a slice waits for its window."""
    in_flight_us: int = 500
    """Maximum GPU time that a slice may have submitted but not finished, if slices of higher precedence share its
    GPU."""
    reserved_in_flight_us: int = 2000
    """The same for a reserved slice that shares its GPU. Longer, because a thread wakes some 60 us late, and the GPU
    must have work until then."""
    idle_for_us: int = 200
    """A slice begins work when all slices of higher precedence have been idle for this long."""
    least_milli: int = 0
    """Minimum share of each GPU's time for every time-sliced slice, even if slices of higher precedence are always busy
    or claim to be. It is lower if there are many: the sum is at most half of the time, and never time that is
    reserved."""


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that preemption or an operator puts on a running slice. An override can only lower what the grant
    allows."""

    paused: bool = False
    compute_milli: int = WHOLE_GPU_MILLI
    """Maximum share of each GPU. A time-sliced slice with a lower share yields to all others, and its floor is at most
    this."""
    memory_mib: Mapping[str, int] = {}
    """Memory limit by GPU UUID. Existing allocations stay; new ones beyond the limit fail."""
    closed: frozenset[str] = frozenset()
    """UUIDs of the GPUs on which the slice may not begin work now."""
    in_step: bool = False
    """Each launch begins when those before it are done, so that the processes of a collective stay together."""


IN_STEP_US = layout.ONE_AT_A_TIME


NO_OVERRIDE = Override()


def check(slice_: Slice) -> None:
    """Raises ValueError if the slice does not fit into a control block."""
    if len(slice_.parts) > layout.MAX_GPUS:
        raise ValueError(f"a control block holds at most {layout.MAX_GPUS} GPUs, but the slice has {len(slice_.parts)}")
    for part in slice_.parts:
        layout.uuid_bytes(part.uuid)


def plan(
    slices: Iterable[Slice],
    policy: Policy,
    overrides: Mapping[Key, Override],
    lent_mib: Mapping[Key, Mapping[str, int]] = MappingProxyType({}),
) -> dict[Key, Rules]:
    """Returns the rules of every slice, by its key. `lent_mib`: the memory that slices may use now beyond what they are
    guaranteed, by GPU UUID."""
    all_of = _with_loans(slices, policy, overrides)
    on: dict[str, list[Slice]] = {}
    for slice_ in all_of:
        for part in () if slice_.concurrent else slice_.parts:
            on.setdefault(part.uuid, []).append(slice_)
    found = {
        slice_.key: _rules(
            slice_, on, policy, overrides.get(slice_.key, NO_OVERRIDE), lent_mib.get(slice_.key, MappingProxyType({}))
        )
        for slice_ in all_of
    }
    held = {key for key, override in overrides.items() if override.paused}
    for mine in all_of:
        if found[mine.key].peers and {s.key for part in mine.parts for s in on[part.uuid]} - {mine.key} <= held:
            found[mine.key] = msgspec.structs.replace(found[mine.key], peers_held=True)
    return found | {s.key: msgspec.structs.replace(found[s.key], hides_others=True) for s in all_of if s.any_gpu}


def _with_loans(slices: Iterable[Slice], policy: Policy, overrides: Mapping[Key, Override]) -> list[Slice]:
    """Returns the slices, by their keys, with the GPU time that they may use now.

    Time that no slice is guaranteed goes to reserved slices with a limit above their request, as `divide` says. Slices
    that take turns keep their minimum share.
    """
    all_of = sorted((_apply_override(s, overrides.get(s.key, NO_OVERRIDE)) for s in slices), key=lambda s: s.key)
    lent: dict[tuple[Key, str], int] = {}
    for uuid in {part.uuid for s in all_of for part in s.parts if part.compute_limit_milli}:
        on_it = [s for s in all_of if any(part.uuid == uuid for part in s.parts)]
        reserved = {s.key: s for s in on_it if s.reserved}
        floors = min(MAX_FLOOR_SUM_MILLI, policy.least_milli * (len(on_it) - len(reserved)))
        spare = WHOLE_GPU_MILLI - floors - sum(_milli(s, uuid) for s in reserved.values())
        wants = {
            (s.key, uuid): Want(rank=s.rank, amount=part.compute_limit_milli - part.compute_milli)
            for s in reserved.values()
            for part in s.parts
            if part.uuid == uuid and part.compute_limit_milli > part.compute_milli
        }
        lent |= divide(spare, wants)
    return [_with_loan(s, lent) if any((s.key, part.uuid) in lent for part in s.parts) else s for s in all_of]


def _with_loan(slice_: Slice, lent: Mapping[tuple[Key, str], int]) -> Slice:
    parts = tuple(
        msgspec.structs.replace(part, compute_milli=part.compute_milli + lent.get((slice_.key, part.uuid), 0))
        for part in slice_.parts
    )
    return msgspec.structs.replace(slice_, parts=parts)


def _apply_override(slice_: Slice, override: Override) -> Slice:
    """Returns the slice with its remaining compute, so that other slices' windows can use the time that it gives up."""
    if not override.paused and override.compute_milli >= WHOLE_GPU_MILLI:
        return slice_
    parts = tuple(
        msgspec.structs.replace(
            part, compute_milli=min(part.compute_milli, override.compute_milli), compute_limit_milli=0
        )
        for part in slice_.parts
    )
    less = msgspec.structs.replace(slice_, parts=parts)
    return msgspec.structs.replace(less, suspension=override.paused or not less.reserved)


def _rules(
    mine: Slice, on: Mapping[str, list[Slice]], policy: Policy, override: Override, lent_mib: Mapping[str, int]
) -> Rules:
    if mine.concurrent:
        return Rules(gpus=tuple(_memory_alone(part, override) for part in mine.parts), paused=override.paused)
    others = {s.key: s for part in mine.parts for s in on[part.uuid] if s.key != mine.key}
    idle_for_ns = policy.idle_for_us * 1000
    before = tuple(key for key, s in sorted(others.items()) if _has_precedence(s, mine))
    gpus = tuple(
        _gpu(
            mine,
            part,
            on[part.uuid],
            policy,
            override,
            bounded=bool(before) or mine.reserved,
            lent_mib=lent_mib.get(part.uuid, 0),
        )
        for part in mine.parts
    )
    if not before:
        # Launches are timed and the signal is maintained only if there are peers; of the slices of lower precedence,
        # some are enough. A slice whose window begins waits briefly for the other reserved slices (`beside`), so that
        # work that runs past the end of its window does not overlap with the next window's work.
        beside = tuple(key for key, s in sorted(others.items()) if mine.reserved and s.reserved)
        behind = tuple(key for key, s in sorted(others.items()) if _has_precedence(mine, s))
        if len(beside + behind) > layout.MAX_PEERS:
            # The slice would take the time of those that it does not see for idle.
            gpus = tuple(msgspec.structs.replace(gpu, lent_milli=0) for gpu in gpus)
        return Rules(
            gpus=gpus,
            paused=override.paused,
            idle_for_ns=idle_for_ns if any(gpu.lent_milli for gpu in gpus) else 0,
            peers=(beside + behind)[: layout.MAX_PEERS],
        )
    return Rules(
        gpus=gpus,
        low=True,
        paused=override.paused,
        floor_milli=min(_floor(mine, on, policy), override.compute_milli),
        idle_for_ns=idle_for_ns,
        peers=_foremost(mine, before, on),
    )


def _foremost(mine: Slice, before: tuple[Key, ...], on: Mapping[str, list[Slice]]) -> tuple[Key, ...]:
    """Returns those that the slice yields to, of all that come `before` it: as many as a control block names.

    From each GPU in turn the first one that is left, so that the slice yields on all of them: reserved slices by their
    share, then the others by rank. So those that are left out have the least to lose.
    """
    if len(before) <= layout.MAX_PEERS:
        return before
    place: dict[Key, int] = {}
    for part in mine.parts:
        ahead = [s for s in on[part.uuid] if _has_precedence(s, mine)]
        ahead.sort(key=lambda s: (s.reserved, s.rank, _milli(s, part.uuid)), reverse=True)
        for at, s in enumerate(ahead):
            place[s.key] = min(at, place.get(s.key, at))
    # In the order of `before`, because the interposer opens the signal of a peer anew that comes to another place.
    chosen = set(sorted(before, key=lambda key: place[key])[: layout.MAX_PEERS])
    return tuple(key for key in before if key in chosen)


def _memory_alone(part: Part, override: Override) -> GpuRule:
    return GpuRule(uuid=part.uuid, memory_limit_bytes=_memory_mib(part, override) * MIB)


def _memory_mib(part: Part, override: Override) -> int:
    return min(part.memory_mib, override.memory_mib.get(part.uuid, part.memory_mib))


def _floor(mine: Slice, on: Mapping[str, list[Slice]], policy: Policy) -> int:
    """Returns the slice's guaranteed minimum share. A control block has one floor for all its GPUs: the lowest of
    them."""
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


def _gpu(
    mine: Slice,
    part: Part,
    on_it: list[Slice],
    policy: Policy,
    override: Override,
    *,
    bounded: bool,
    lent_mib: int,
) -> GpuRule:
    memory_mib = override.memory_mib.get(part.uuid)
    memory_mib = part.memory_mib + lent_mib if memory_mib is None else min(part.memory_mib, memory_mib)
    compute = min(part.compute_milli or WHOLE_GPU_MILLI, override.compute_milli)
    in_flight_us = policy.reserved_in_flight_us if mine.reserved else policy.in_flight_us
    rule = GpuRule(
        uuid=part.uuid,
        memory_limit_bytes=memory_mib * MIB,
        shown_bytes=part.memory_limit_mib * MIB if part.bursts and part.uuid not in override.memory_mib else 0,
        compute_milli=compute if compute < WHOLE_GPU_MILLI else 0,
        in_flight_us=IN_STEP_US if override.in_step else in_flight_us if bounded and len(on_it) > 1 else 0,
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
        lent_milli=max(0, part.compute_limit_milli - part.compute_milli),
    )


def _milli(slice_: Slice, uuid: str) -> int:
    return sum(part.compute_milli for part in slice_.parts if part.uuid == uuid)
