from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from shared.book.accepts import accepted, why_none
from shared.book.book import Book
from shared.book.mig import names_of, serving_bits
from shared.book.shares import GpuRoom, fits, instance_words, missing, share_on, strategy_for
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.gpu import Inventory
from shared.model.names import mig_resource
from shared.model.request import GpuAsk, PodRequest
from shared.model.units import format_mib
from shared.scheduling.assignment import assign
from shared.scheduling.choosing import able
from shared.scheduling.equal_gpus import mask_of
from shared.scheduling.filters import gpu_remedies
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Remedy
from shared.scheduling.filters.topology import GpuTopology, lacking_set
from shared.scheduling.topology import fabric_of


class GpuKind(Filter):
    """Whether a node's GPUs are of the right kind: model, size, number, MIG instances, isolation.

    What is free does not matter here.
    """

    name = "gpu-kind"
    scope = "node"
    reads = ("request",)
    reads_node = ()
    remedies: ClassVar[Mapping[str, Remedy]] = {
        "gpu-too-small": gpu_remedies.smaller,
        "too-few-gpus": gpu_remedies.fewer,
        "mig-mode": gpu_remedies.other_instance,
        "mig-profile": gpu_remedies.other_instance,
        "no-mig": gpu_remedies.no_instance,
        "isolation": gpu_remedies.weaker,
        **gpu_remedies.OTHER_KINDS,
    }

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        request = pod.request
        if request is None:
            return None

        def check(node: NodeState) -> Reason | None:
            if not node.gpus or node.inventory is None:
                return Reason(
                    code="no-gpu",
                    sentence="the node has no GPU that Kerf manages",
                    helps="label a GPU node kerf.dev/managed and run the node agent on it",
                )
            if node.agent_trouble:
                return Reason(
                    code="agent",
                    sentence=f"no GPU of the node may be given now: {node.agent_trouble}",
                    helps="look at the node agent's log",
                )
            for ask in request.asks.values():
                no_instance = _no_instance(ask, node)
                if no_instance is not None and (ask.profile or all(gpu.mig is not None for gpu in node.gpus)):
                    return no_instance
                if no_instance is not None and strategy_for(ask, request.isolation, node.inventory.strategies) is None:
                    return _no_strategy(ask, request, node.inventory)
            wanted = max(ask.count for ask in request.asks.values())
            kinds = accepted(request, node.inventory)
            if not kinds:
                return why_none(request, node.inventory)
            if len(kinds) < wanted and not any(ask.profile for ask in request.asks.values()):
                has = "has" if len(kinds) == len(node.gpus) else "has such"
                return Reason(
                    code="too-few-gpus",
                    sentence=f"needs {wanted} GPUs on one node, the node {has} {len(kinds)}",
                    helps="ask for one GPU" if len(kinds) == 1 else f"ask for at most {len(kinds)} GPUs",
                )
            largest = max(gpu.total_mib for gpu in node.gpus if gpu.uuid in kinds)
            biggest = max(ask.memory_mib for ask in request.asks.values())
            if biggest > largest and not any(ask.profile for ask in request.asks.values()):
                return Reason(
                    code="gpu-too-small",
                    sentence=f"needs {format_mib(biggest, up=True)} on one GPU, the node's GPUs have "
                    f"{format_mib(largest)}",
                    helps=f"ask for at most {format_mib(largest)} a GPU",
                )
            return None

        return check


class GpuRoomLeft(Filter):
    """Whether enough is free on a node's GPUs.

    The engine checks it on the book's arrays; a test compares the two.
    """

    name = "gpu-room"
    scope = "room"
    remedies: ClassVar[Mapping[str, Remedy]] = {"gpu-full": gpu_remedies.smaller}

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        request = pod.request
        if request is None:
            return None
        never = GpuTopology().prepare(pod, book)
        # what sharing would slow down is said by TooSlowBeside
        alike = msgspec.structs.replace(pod, adaptive=False) if pod.adaptive else pod

        def check(node: NodeState) -> Reason | None:
            if not node.gpus or node.inventory is None or assign(alike, node) is not None:
                return None
            if never is not None and never(node) is not None:
                return None  # reported already, and no free capacity would help
            return _full(request, node, node.inventory)

        return check


def _no_strategy(ask: GpuAsk, request: PodRequest, inventory: Inventory) -> Reason:
    """Why the node shares in no way that keeps the isolation that the pod asks for."""
    unlimited = msgspec.structs.replace(ask, memory_limit_mib=0, memory_limit_milli=0, compute_limit_milli=0)
    memory_alone = msgspec.structs.replace(ask, compute_milli=0)
    if ask.whole:
        promise, helps = "a whole GPU", "use a node that gives whole GPUs"
    elif ask.bursts and strategy_for(unlimited, request.isolation, inventory.strategies) is not None:
        return Reason(
            code="bursts",
            sentence=f"the node can share by {', '.join(inventory.strategies)}, none of which can take lent memory "
            "back; the pod has a limit above its request",
            helps="leave out kerf.dev/gpu-memory-limit and kerf.dev/gpu-compute-limit",
        )
    elif (
        ask.count > 1
        and strategy_for(msgspec.structs.replace(ask, count=1), request.isolation, inventory.strategies) is not None
    ):
        promise = "parts of several GPUs to one container"
        helps = "request a part of one GPU for each container, or use a node without MPS"
    elif (ask.memory_mib or ask.memory_milli) and strategy_for(
        memory_alone, request.isolation, inventory.strategies
    ) is not None:
        promise = f"{request.isolation} for GPU time that is reserved"
        helps = "request kerf.dev/gpu-memory without kerf.dev/gpu-compute, or a weaker kerf.dev/isolation"
    else:
        promise, helps = request.isolation, "ask for kerf.dev/isolation: soft"
    return Reason(
        code="isolation",
        sentence=f"the node can share by {', '.join(inventory.strategies)}, none of which promises {promise}",
        helps=helps,
    )


def _no_instance(ask: GpuAsk, node: NodeState) -> Reason | None:
    """Why none of the node's GPUs would ever serve the ask by a MIG instance; None where one would."""
    rooms = [gpu for gpu in node.gpus if gpu.mig is not None]
    offers = 0
    for gpu in rooms:
        if gpu.mig is not None and gpu.mig.offers & serving_bits(gpu.mig.geometry, ask, gpu.total_mib):
            return None
        offers |= 0 if gpu.mig is None else gpu.mig.offers
    if not rooms:
        return Reason(
            code="no-mig",
            sentence="no GPU of the node is in MIG mode",
            helps="use a node whose GPUs are in MIG mode, or ask by kerf.dev/gpu-memory",
        )
    if ask.bursts:
        return Reason(
            code="bursts",
            sentence="the node's GPUs are in MIG mode, and an instance has no memory beyond its own; the pod has a "
            "limit above its request",
            helps="leave out kerf.dev/gpu-memory-limit and kerf.dev/gpu-compute-limit",
        )
    profiles = names_of(offers)
    names = ", ".join(profiles) or "no instance"
    if ask.whole or (ask.count > 1 and not ask.profile):
        return Reason(
            code="mig-mode",
            sentence=f"the node's GPUs are in MIG mode and give single instances ({names}), the pod wants "
            f"{'whole GPUs' if ask.whole else f'parts of {ask.count} GPUs'}",
            helps=f"ask for an instance, such as {mig_resource(profiles[-1])}: 1, or use a node without MIG"
            if profiles
            else "use a node without MIG",
        )
    return Reason(
        code="mig-profile",
        sentence=f"needs {instance_words(ask)}, the node's GPUs give {names}",
        helps=f"ask for one of {', '.join(map(mig_resource, profiles))}"
        if offers
        else "make MIG instances on the node, or set `mig: on_demand` for its agent, whose log says what is in the way",
    )


def _full(request: PodRequest, node: NodeState, inventory: Inventory) -> Reason:
    wanted = accepted(request, inventory)
    rooms = [g for g in node.gpus if g.uuid in wanted]
    for name, ask in request.asks.items():
        good = able(ask, request, inventory, rooms)
        if len(good) < ask.count or ask.profile:
            near = min((g for g in rooms if g.usable and not fits(ask, g)), key=lambda g: _lack(ask, g), default=None)
            asked = f"{ask.count} {'MIG instances' if ask.profile else 'GPUs'}" if ask.count > 1 else "a GPU"
            unusable = next((f"; GPU {g.index}: {g.why_unusable}" for g in rooms if not g.usable), "")
            detail = f"; nearest is GPU {near.index}: {missing(ask, near)}" if near else unusable
            return Reason(
                code="gpu-full",
                sentence=f"container {name} needs {asked} and {len(good)} of {len(rooms)} fit{detail}",
                helps=(less := _less(ask, rooms))[0],
                lacking=less[1],
            )
        alone = msgspec.structs.replace(request, asks={name: ask})
        no_set = lacking_set(alone, fabric_of(inventory), mask_of(good), f"of the {len(good)} that fit")
        if no_set is not None:
            return no_set
    return Reason(
        code="gpu-full",
        sentence="its containers fit one by one, but not together",
        helps="ask for less in one of the containers",
    )


def _lack(ask: GpuAsk, gpu: GpuRoom) -> float:
    """What a GPU lacks for the ask: the larger of the missing fractions of memory and compute."""
    memory_mib, compute_milli = share_on(ask, gpu.total_mib)
    return max((memory_mib - gpu.free_mib) / max(1, gpu.total_mib), (compute_milli - gpu.free_milli) / 1000)


def _less(ask: GpuAsk, rooms: list[GpuRoom]) -> tuple[str, int]:
    """The smallest reduction of the ask that helps on this node: a sentence, and MiB or milli."""
    usable = [g for g in rooms if g.usable and g.mig is None]
    wait = ("wait until a pod on it ends", 1 << 40)
    if ask.whole or ask.profile or ask.count > 1 or not usable:
        return wait
    if ask.is_fraction:
        most = max(min(g.free_milli, g.free_mib * 1000 // max(1, g.total_mib)) for g in usable)
        return (
            (f"fits with {(ask.compute_milli - most) / 10:g} % less of a GPU", ask.compute_milli - most)
            if most > 0
            else wait
        )
    room = max((g for g in usable if g.free_milli >= ask.compute_milli), key=lambda g: g.free_mib, default=None)
    if room is None:
        best = max(g.free_milli for g in usable)
        return (
            (f"fits with {(ask.compute_milli - best) / 10:g} % less compute", ask.compute_milli - best)
            if best > 0
            else wait
        )
    lacking = share_on(ask, room.total_mib)[0] - max(0, room.free_mib)
    if room.free_mib <= 0:
        return wait
    return f"fits with {format_mib(lacking, up=True)} less GPU memory: {format_mib(room.free_mib)}", lacking
