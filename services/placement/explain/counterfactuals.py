"""What a pod could request instead so that one reason against it disappears. Nothing is suggested before it is
tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.book.accepts import accepted
from shared.book.mig import names_of
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.affinity import Affinity, Toleration
from shared.model.generations import capability_tenths, generation_of
from shared.model.mig import nominal
from shared.model.objects import PodSpec
from shared.model.request import GpuAsk, PodRequest
from shared.model.selectors import untolerated
from shared.model.strategy import ISOLATION_RANK, Isolation
from shared.model.units import MIB
from shared.scheduling.filters.taints import CORDONED

_PERCENT_MILLI = 10
"""kerf.dev/gpu-compute is written in whole percents."""


class Candidate(msgspec.Struct, frozen=True):
    """The pod as it would be: `code` and `sentence` as in a Counterfactual."""

    code: str
    sentence: str
    state: PodState
    size: int = 0
    """How much is given up, where there is an amount: of candidates of one code the smaller is the lesser change."""


def candidates(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
    """What might help against one reason on one node, the smallest change first."""
    make = _CANDIDATES.get(reason.code)
    if make is not None:
        yield from make(state, reason, node)


# --- less of what GPUs have ---------------------------------------------------------------------------------------


def _less(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
    yield from _smaller_share(state, node)
    yield from _fewer(state, reason, node)
    yield from _other_instance(state, reason, node)


def _smaller_share(state: PodState, node: NodeState) -> Iterator[Candidate]:
    """As much as the node's best GPUs have left: less memory, or less compute, or less of both."""
    name, ask = _largest(state)
    if ask is None or ask.whole or ask.profile:
        return
    rooms = [room for room in _wanted(state, node) if room.usable and room.mig is None]
    several = ask.count > 1
    each = " on each GPU" if several else ""
    if ask.memory_follows:
        most_milli = _nth((min(r.free_milli, _milli_for(r.free_mib, r.total_mib)) for r in rooms), ask.count)
        yield from _less_compute(state, most_milli, f"of {'each' if several else 'a'} GPU")
        return
    most_mib = _nth((r.free_mib for r in rooms if r.free_milli >= ask.compute_milli), ask.count)
    if 0 < most_mib < ask.memory_mib:
        yield Candidate(
            "less-memory",
            f"fits with {ask.memory_mib - most_mib} MiB less GPU memory{each}",
            _asking(state, name, replace(ask, memory_mib=most_mib)),
            ask.memory_mib - most_mib,
        )
    most_milli = _nth((r.free_milli for r in rooms if r.free_mib >= ask.memory_mib), ask.count)
    yield from _less_compute(state, most_milli, f"compute{each}")


def _less_compute(state: PodState, most_milli: int, of_what: str) -> Iterator[Candidate]:
    """At most `most_milli`, in whole percent, which is the unit of compute requests."""
    name, ask = _largest(state)
    most_milli -= most_milli % _PERCENT_MILLI
    if ask is not None and 0 < most_milli < ask.compute_milli:
        given_up = ask.compute_milli - most_milli
        yield Candidate(
            "less-compute",
            f"fits with {given_up // 10} % less {of_what}",
            _asking(state, name, replace(ask, compute_milli=most_milli)),
            given_up,
        )


def _fewer(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:  # noqa: ARG001
    """As much on each, so that limits, which are a container's totals, fall with the number."""
    name, ask = _largest(state)
    if ask is None:
        return
    for count in range(ask.count - 1, 0, -1):
        limits = [f"at most {count} GPUs" if count > 1 else "one GPU"]
        if not ask.whole and ask.memory_mib and not ask.memory_follows:
            limits.append(f"{names.RESOURCE_GPU_MEMORY}: {count * ask.memory_mib}Mi")
        if not ask.whole and ask.compute_milli:
            limits.append(f"{names.RESOURCE_GPU_COMPUTE}: {count * ask.compute_milli // 10}")
        given_up = ask.count - count
        sentence = f"fits with {given_up} {'GPU' if given_up == 1 else 'GPUs'} less: ask for {', '.join(limits)}"
        yield Candidate("fewer-gpus", sentence, _asking(state, name, replace(ask, count=count)), given_up)


def _other_instance(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:  # noqa: ARG001
    name, ask = _largest(state)
    if ask is None or ask.count > 1:
        return
    bits = 0
    for room in node.gpus:
        bits |= 0 if room.mig is None or not room.usable else room.mig.bits
    for profile in reversed(names_of(bits)):
        if profile != ask.profile:
            memory_mib, compute_milli = nominal(profile)
            resource = names.PREFIX_MIG + profile.replace("+", ".")
            other = GpuAsk(count=1, memory_mib=memory_mib, compute_milli=compute_milli, profile=profile)
            yield Candidate("mig-profile", f"fits with {resource}: 1", _asking(state, name, other))


def _no_instance(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:  # noqa: ARG001
    name, ask = _largest(state)
    if ask is not None and ask.profile:
        plain = GpuAsk(count=ask.count, memory_mib=ask.memory_mib, compute_milli=ask.compute_milli)
        instead = f"fits with {names.RESOURCE_GPU_MEMORY}: {ask.memory_mib * ask.count}Mi instead of an instance"
        yield Candidate("no-mig", instead, _asking(state, name, plain))


# --- other GPUs, other promises -----------------------------------------------------------------------------------


def _other_kind(
    change: Callable[[PodRequest, NodeState], PodRequest],
) -> Callable[[PodState, Reason, NodeState], Iterator[Candidate]]:
    def make(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
        if state.request is not None and node.inventory is not None:
            yield Candidate(reason.code, reason.helps, replace(state, request=change(state.request, node)))

    return make


def _weaker(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:  # noqa: ARG001
    request = state.request
    weaker: tuple[Isolation, ...] = ("firm", "soft")
    for isolation in weaker:
        if request is not None and ISOLATION_RANK[isolation] < ISOLATION_RANK[request.isolation]:
            yield Candidate(
                "isolation",
                f"fits with {names.ANNOTATION_ISOLATION}: {isolation}",
                replace(state, request=replace(request, isolation=isolation)),
            )


def _looser(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
    request = state.request
    if request is not None and request.topology == "required":
        yield Candidate(
            "topology",
            f"drop {names.ANNOTATION_TOPOLOGY}: required",
            replace(state, request=replace(request, topology="preferred")),
        )
    yield from _fewer(state, reason, node)


# --- the rest of the pod ------------------------------------------------------------------------------------------


def _demanding(
    field: str, free: Callable[[NodeState], int]
) -> Callable[[PodState, Reason, NodeState], Iterator[Candidate]]:
    def make(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
        if (left := free(node)) > 0:
            yield Candidate(
                f"less-{reason.code}",
                reason.helps,
                replace(state, demand=replace(state.demand, **{field: left})),
                reason.lacking,
            )

    return make


def _tolerant(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
    spec, taints = state.pod.spec, () if node.object is None else node.object.spec.taints
    first = (
        CORDONED if reason.code == "cordoned" else untolerated(taints, spec.tolerations, ("NoSchedule", "NoExecute"))
    )
    if first is not None:
        tolerated = Toleration(key=first.key, operator="Equal", value=first.value, effect=first.effect)
        yield Candidate(
            reason.code, reason.helps, _specified(state, replace(spec, tolerations=(*spec.tolerations, tolerated)))
        )


def _unselective(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
    spec, labels = state.pod.spec, {} if node.object is None else node.object.metadata.labels
    missed = next((key for key, value in spec.node_selector.items() if labels.get(key) != value), None)
    kept = {key: value for key, value in spec.node_selector.items() if key != missed}
    yield Candidate("node-selector", reason.helps, _specified(state, replace(spec, node_selector=kept)))


def _dropping(which: str, code: str) -> Callable[[PodState, Reason, NodeState], Iterator[Candidate]]:
    """Without the required terms of one kind of affinity."""

    def make(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:  # noqa: ARG001
        spec, affinity = state.pod.spec, state.pod.spec.affinity or Affinity()
        kind = getattr(affinity, which)
        if kind is not None:
            empty: Any = None if which == "node_affinity" else ()
            rest = replace(
                affinity, **{which: replace(kind, required_during_scheduling_ignored_during_execution=empty)}
            )
            yield Candidate(code, reason.helps, _specified(state, replace(spec, affinity=rest)))

    return make


def _spread_out(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:  # noqa: ARG001
    spec = state.pod.spec
    softer = tuple(replace(c, when_unsatisfiable="ScheduleAnyway") for c in spec.topology_spread_constraints)
    yield Candidate(
        "spread",
        "fits with whenUnsatisfiable: ScheduleAnyway in its topologySpreadConstraints",
        _specified(state, replace(spec, topology_spread_constraints=softer)),
    )


def _extended(state: PodState, reason: Reason, node: NodeState) -> Iterator[Candidate]:
    """Of each extended resource what there is left, provided that there is some."""
    left = {
        name: node.extended_total.get(name, 0) - node.extended_used.get(name, 0)
        for name, _ in state.demand.extended
        if name in node.extended_total
    }
    less = tuple((name, min(amount, left.get(name, amount))) for name, amount in state.demand.extended)
    if all(amount > 0 for _, amount in less):
        yield Candidate(
            "less-extended-resource", reason.helps, replace(state, demand=replace(state.demand, extended=less))
        )


_CANDIDATES: dict[str, Callable[[PodState, Reason, NodeState], Iterator[Candidate]]] = {
    "gpu-full": _less,
    "gpu-too-small": _less,
    "too-few-gpus": _fewer,
    "mig-mode": _other_instance,
    "mig-profile": _other_instance,
    "no-mig": _no_instance,
    "no-peer-access": _looser,
    "isolation": _weaker,
    "gpu-model": _other_kind(
        lambda request, node: replace(request, models=(*request.models, *{gpu.model for gpu in node.gpus}))
    ),
    "gpu-model-not": _other_kind(lambda request, _: replace(request, models_not=())),
    "gpu-generation": _other_kind(
        lambda request, node: replace(request, generations=(*request.generations, *_generations(node)))
    ),
    "gpu-capability": _other_kind(lambda request, node: replace(request, capability_min=_capability(node))),
    "gpu-memory-min": _other_kind(
        lambda request, node: replace(request, memory_min_mib=min(gpu.total_mib for gpu in node.gpus))
    ),
    "gpu-uuid": _other_kind(lambda request, _: replace(request, uuids=())),
    "gpu-uuid-not": _other_kind(lambda request, _: replace(request, uuids_not=())),
    "cpu": _demanding("cpu_milli", lambda node: node.cpu_total - node.cpu_used),
    "memory": _demanding("memory_bytes", lambda node: (node.memory_total - node.memory_used) // MIB * MIB),
    "ephemeral-storage": _demanding("ephemeral_bytes", lambda node: node.ephemeral_total - node.ephemeral_used),
    "extended-resource": _extended,
    "taint": _tolerant,
    "cordoned": _tolerant,
    "node-selector": _unselective,
    "node-affinity": _dropping("node_affinity", "node-affinity"),
    "pod-affinity": _dropping("pod_affinity", "pod-affinity"),
    "pod-anti-affinity": _dropping("pod_anti_affinity", "pod-anti-affinity"),
    "spread": _spread_out,
    "spread-no-key": _spread_out,
}
TRIED = frozenset(_CANDIDATES) | {"too-many-pods"}
"""Reasons for which only tried changes may be suggested: a change of the pod, or the migration of another one."""


# --- a pod that asks for something else -----------------------------------------------------------------------------


def _largest(state: PodState) -> tuple[str, GpuAsk | None]:
    asks = {} if state.request is None else state.request.asks
    return max(asks.items(), key=lambda item: item[1].hardness, default=("", None))


def _wanted(state: PodState, node: NodeState) -> list[GpuRoom]:
    if state.request is None or node.inventory is None:
        return []
    wanted = accepted(state.request, node.inventory)
    return [room for room in node.gpus if room.uuid in wanted]


def _nth(amounts: Iterator[int], count: int) -> int:
    """What `count` of them have at least; 0 where they are fewer."""
    ordered = sorted(amounts, reverse=True)
    return ordered[count - 1] if len(ordered) >= count else 0


def _milli_for(free_mib: int, total_mib: int) -> int:
    """The most compute whose share of the memory, rounded down, is free (`book.shares.share_on`)."""
    return (max(0, free_mib + 1) * 1000 - 1) // max(1, total_mib)


def _generations(node: NodeState) -> set[str]:
    return (
        set()
        if node.inventory is None
        else {g for gpu in node.inventory.gpus if (g := generation_of(gpu.compute_capability))}
    )


def _capability(node: NodeState) -> int:
    return (
        0
        if node.inventory is None
        else min(capability_tenths(gpu.compute_capability) or 0 for gpu in node.inventory.gpus)
    )


def _asking(state: PodState, container: str, ask: GpuAsk) -> PodState:
    if state.request is None:
        return state
    return replace(state, request=replace(state.request, asks={**state.request.asks, container: ask}))


def _specified(state: PodState, spec: PodSpec) -> PodState:
    return replace(state, pod=replace(state.pod, spec=spec))
