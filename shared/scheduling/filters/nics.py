from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.scheduling import nics
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Change, Remedy


def fewer(state: PodState, reason: Reason, node: NodeState) -> Iterator[Change]:
    """As many cards as the node has left, or none."""
    request = state.request
    if request is None:
        return
    there = len(nics.rdma(node.inventory)) if reason.code == "no-nic" and node.inventory else len(nics.free(node))
    for count in {min(there, request.nics), 0}:
        if count < request.nics:
            sentence = f"fits with {names.ANNOTATION_NIC}: {count}" if count else f"drop {names.ANNOTATION_NIC}"
            yield Change("nic", sentence, replace(state, request=replace(request, nics=count)), request.nics - count)


class NicKind(Filter):
    """Whether a node has as many network cards for RDMA as the pod requests."""

    name = "nics"
    scope = "node"
    reads = ("request",)
    reads_node = ()
    remedies: ClassVar[Mapping[str, Remedy]] = {"no-nic": fewer}

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        wanted = pod.request.nics if pod.request is not None else 0
        if not wanted:
            return None

        def check(node: NodeState) -> Reason | None:
            if node.inventory is None or len(there := nics.rdma(node.inventory)) >= wanted:
                return None
            has = f"the node has {len(there)}" if there else "the node's agent reports none with an active port"
            return Reason(
                code="no-nic",
                sentence=f"needs {_cards(wanted)}, {has}",
                helps=f"ask for at most {len(there)}" if there else f"drop {names.ANNOTATION_NIC}",
            )

        return check


class FreeNics(Filter):
    """Whether as many of them are free. Grants are counted, so the check is made anew for each decision."""

    name = "free-nics"
    scope = "cluster"
    remedies: ClassVar[Mapping[str, Remedy]] = {"nic-taken": fewer}

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        wanted = pod.request.nics if pod.request is not None else 0
        if not wanted:
            return None

        def check(node: NodeState) -> Reason | None:
            if node.inventory is None or len(nics.rdma(node.inventory)) < wanted:
                return None  # said by NicKind
            free = nics.free(node)
            if len(free) >= wanted:
                return None
            taken = nics.given(node)
            pods = ", ".join(
                sorted(f"{held.namespace}/{held.name}" for held in node.grants.values() if held.given.nics)
            )
            return Reason(
                code="nic-taken",
                sentence=f"needs {_cards(wanted)}, {len(free)} of the node's {len(nics.rdma(node.inventory))} are free "
                f"({', '.join(sorted(taken))} given to {pods})",
                helps="ask for fewer, or let more pods share a card (pods_per_nic of the node agent)",
            )

        return check


def _cards(count: int) -> str:
    return f"{count} network card{'s' if count > 1 else ''} for RDMA"
