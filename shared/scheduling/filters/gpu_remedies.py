"""Changes of what a pod requests of GPUs: less of them, fewer of them, other ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from shared.book.accepts import accepted
from shared.book.shares import GpuRoom, share_on
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.generations import capability_tenths, generation_of
from shared.model.mig import GEOMETRIES, PROFILE_BIT, nominal
from shared.model.request import GpuAsk, PodRequest
from shared.model.strategy import ISOLATION_RANK, Isolation
from shared.model.units import format_mib
from shared.scheduling.filters.remedies import Change, Remedy, asking, largest_ask_of

_PERCENT_MILLI = 10
"""kerf.dev/gpu-compute is written in whole percents."""


def smaller(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    """A smaller share, fewer GPUs, or another MIG profile."""
    yield from _smaller_share(state, node)
    yield from fewer(state, reason, node)
    yield from other_instance(state, reason, node)


def _smaller_share(state: PodState, node: NodeState) -> Iterator[Change]:
    """As much as the node's best GPUs have left: less memory, or less compute, or less of both."""
    name, ask = largest_ask_of(state)
    if ask is None or ask.whole or ask.profile:
        return
    rooms = [room for room in _wanted(state, node) if room.usable and room.mig is None]
    several = ask.count > 1
    each = " on each GPU" if several else ""
    if ask.is_fraction:
        most_milli = _nth((min(r.free_milli, _milli_for(r.free_mib, r.total_mib)) for r in rooms), ask.count)
        yield from _less_compute(state, most_milli, f"of {'each' if several else 'a'} GPU")
        return
    if ask.memory_milli:
        yield from _less_memory_percent(state, rooms, each)
    most_mib = _nth((r.free_mib for r in rooms if r.free_milli >= ask.compute_milli), ask.count)
    if 0 < most_mib < ask.memory_mib:
        yield Change(
            "less-memory",
            f"fits with {format_mib(ask.memory_mib - most_mib, up=True)} less GPU memory{each}: {format_mib(most_mib)}",
            asking(state, name, replace(ask, memory_mib=most_mib)),
            ask.memory_mib - most_mib,
        )
    most_milli = _nth((r.free_milli for r in rooms if r.free_mib >= share_on(ask, r.total_mib)[0]), ask.count)
    yield from _less_compute(state, most_milli, f"compute{each}")


def _less_memory_percent(state: PodState, rooms: list[GpuRoom], each: str) -> Iterator[Change]:
    """At most what the GPUs with enough compute have left, in whole percent of their memory."""
    name, ask = largest_ask_of(state)
    if ask is None:
        return
    left = (_milli_for(r.free_mib, r.total_mib) for r in rooms if r.free_milli >= ask.compute_milli)
    most_milli = _nth(left, ask.count)
    most_milli -= most_milli % _PERCENT_MILLI
    if 0 < most_milli < ask.memory_milli:
        given_up = ask.memory_milli - most_milli
        yield Change(
            "less-memory",
            f"fits with {given_up // 10} % less of a GPU's memory{each}: {most_milli // 10} %",
            asking(state, name, replace(ask, memory_milli=most_milli)),
            given_up,
        )


def _less_compute(state: PodState, most_milli: int, of_what: str) -> Iterator[Change]:
    """At most `most_milli`, in whole percent, which is the unit of compute requests."""
    name, ask = largest_ask_of(state)
    most_milli -= most_milli % _PERCENT_MILLI
    if ask is not None and 0 < most_milli < ask.compute_milli:
        given_up = ask.compute_milli - most_milli
        yield Change(
            "less-compute",
            f"fits with {given_up // 10} % less {of_what}",
            asking(state, name, _with_compute(ask, most_milli)),
            given_up,
        )


def _with_compute(ask: GpuAsk, compute_milli: int) -> GpuAsk:
    """The ask with another part of the compute; a fraction of a GPU stays one."""
    memory_milli = compute_milli if ask.is_fraction else ask.memory_milli
    return replace(ask, compute_milli=compute_milli, memory_milli=memory_milli)


def fewer(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001
    """Fewer GPUs with the same share of each.

    Limits are a container's totals, so they fall with the number.
    """
    name, ask = largest_ask_of(state)
    if ask is None:
        return
    for count in range(ask.count - 1, 0, -1):
        limits = [f"at most {count} GPUs" if count > 1 else "one GPU"]
        if not ask.whole and ask.memory_mib:
            limits.append(f"{names.RESOURCE_GPU_MEMORY}: {count * ask.memory_mib}Mi")
        if not ask.whole and ask.memory_milli and not ask.is_fraction:
            limits.append(f"{names.RESOURCE_GPU_MEMORY_PERCENT}: {count * ask.memory_milli // 10}")
        if not ask.whole and ask.compute_milli:
            limits.append(f"{names.RESOURCE_GPU_COMPUTE}: {count * ask.compute_milli // 10}")
        given_up = ask.count - count
        sentence = f"fits with {given_up} {'GPU' if given_up == 1 else 'GPUs'} less: ask for {', '.join(limits)}"
        yield Change("fewer-gpus", sentence, asking(state, name, replace(ask, count=count)), given_up)


def other_instance(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001
    """An instance of another MIG profile that the node's GPUs offer now: of those that have as much as the pod asks for
    the smallest first, then smaller ones, the largest first. One container may ask for an instance or for a share, so
    the instance is asked for instead."""
    name, ask = largest_ask_of(state)
    if ask is None or ask.count > 1:
        return
    offered: dict[str, tuple[int, int]] = {}
    for room in node.gpus:
        if room.mig is not None and room.usable:
            geometry = GEOMETRIES[room.mig.geometry]
            for profile in geometry.profiles:
                if profile.name != ask.profile and PROFILE_BIT[profile.name] & room.mig.bits:
                    size = (geometry.memory_mib(profile, room.total_mib), geometry.compute_milli(profile))
                    offered[profile.name] = min(size, offered.get(profile.name, size))
    needed = (ask.memory_mib, ask.compute_milli)
    if ask.profile:
        needed = nominal(ask.profile)
    enough = {p for p, size in offered.items() if size[0] >= needed[0] and size[1] >= needed[1]}
    asked = names.mig_resource(ask.profile) if ask.profile else "a whole GPU" if ask.whole else "a share"
    for profile_name in (
        *sorted(enough, key=lambda p: (offered[p], p)),
        *sorted(set(offered) - enough, key=lambda p: (offered[p], p), reverse=True),
    ):
        memory_mib, compute_milli = nominal(profile_name)
        other = GpuAsk(count=1, memory_mib=memory_mib, compute_milli=compute_milli, profile=profile_name)
        has = "" if profile_name in enough else f", which has {format_mib(offered[profile_name][0])}"
        sentence = f"fits with {names.mig_resource(profile_name)}: 1 instead of {asked}{has}"
        yield Change("mig-profile", sentence, asking(state, name, other), 0 if profile_name in enough else 1)


def no_instance(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001
    """The same memory and compute as a share of a GPU instead of a MIG instance."""
    name, ask = largest_ask_of(state)
    if ask is not None and ask.profile:
        plain = GpuAsk(count=ask.count, memory_mib=ask.memory_mib, compute_milli=ask.compute_milli)
        instead = f"fits with {names.RESOURCE_GPU_MEMORY}: {ask.memory_mib * ask.count}Mi instead of an instance"
        yield Change("no-mig", instead, asking(state, name, plain))


def _other_kind(
    change: Callable[[PodRequest, NodeState], PodRequest],
) -> Remedy:
    def make(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
        if state.request is not None and node.inventory is not None:
            yield Change(reason.code, reason.helps, replace(state, request=change(state.request, node)))

    return make


def weaker(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:  # noqa: ARG001
    """A weaker isolation, the strongest first."""
    request = state.request
    weaker_ones: tuple[Isolation, ...] = ("policed", "firm", "soft")
    for isolation in weaker_ones:
        if request is not None and ISOLATION_RANK[isolation] < ISOLATION_RANK[request.isolation]:
            yield Change(
                "isolation",
                f"fits with {names.ANNOTATION_ISOLATION}: {isolation}",
                replace(state, request=replace(request, isolation=isolation)),
            )


def looser(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    """No required topology, or fewer GPUs."""
    request = state.request
    if request is not None and request.topology in ("required", "numa"):
        yield Change(
            "topology",
            f"drop {names.ANNOTATION_TOPOLOGY}: {request.topology}",
            replace(state, request=replace(request, topology="preferred")),
        )
    yield from fewer(state, reason, node)


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


OTHER_KINDS: dict[str, Remedy] = {
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
}
"""By the code of a mismatch (`shared.book.accepts`): the pod accepts the node's GPUs as well."""
