"""The host memory of each node for the GPU memory of checkpointed pods: how much is taken, and how much is free.

A grant counts from the order to checkpoint its pod on, until its node has confirmed that all of it is back on the GPU
(`GrantState.parked`), or until the grant is released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.book.book import Book
from shared.book.states import GrantState, NodeState


def needed_mib(held: GrantState) -> dict[str, int]:
    """Returns what a checkpoint of this grant may take of each node's host: all GPU memory that it was granted there,
    and what it may have beyond that while it is free."""
    found: dict[str, int] = {}
    for (node, _), mib in held_mib((held,)).items():
        found[node] = found.get(node, 0) + mib
    return found


def held_mib(grants: Iterable[GrantState]) -> dict[tuple[str, str], int]:
    """Returns the most that these grants may have on each GPU, by node and uuid."""
    found: dict[tuple[str, str], int] = {}
    for held in grants:
        for share in (share for container in held.given.containers.values() for share in container.gpus):
            at = share.node, share.uuid
            found[at] = found.get(at, 0) + max(share.memory_mib, share.memory_limit_mib)
    return found


def used_mib(node: NodeState) -> int:
    """Returns what is on the host, or may be, or is ordered to be."""
    return sum(needed_mib(held).get(node.name, 0) for held in node.grants.values() if held.parked)


def total_mib(node: NodeState) -> int:
    return 0 if node.inventory is None else node.inventory.host_memory.park_mib


def free_mib(node: NodeState) -> int:
    """Returns what may still be taken; negative where the agent has reported less than is taken.

    Nothing is free while the agent has not answered this leader: what is on its host is unknown.
    """
    return min(0, total_mib(node) - used_mib(node)) if node.agent_trouble else total_mib(node) - used_mib(node)


def lacking(book: Book, checkpointed: Iterable[GrantState], kept: Mapping[str, int] | None = None) -> str:
    """Returns which node's host has no room for these checkpoints together; empty if all have. Grants that are counted
    already need nothing more. `kept`: by node, the MiB that have to be free besides."""
    need: dict[str, int] = {}
    for held in checkpointed:
        for name, mib in {}.items() if held.parked else needed_mib(held).items():
            need[name] = need.get(name, 0) + mib
    for name, mib in sorted(need.items()):
        node = book.nodes.get(name)
        free = 0 if node is None else max(0, free_mib(node))
        needed = mib + (0 if kept is None else kept.get(name, 0))
        if needed > free:
            return (
                f"the host of node {name} has {free} MiB free for checkpointed GPU memory, and {needed} MiB are needed"
            )
    return ""


def overbooked(book: Book) -> list[str]:
    """Returns the nodes on whose host more is taken than there is."""
    return sorted(node.name for node in book.nodes.values() if used_mib(node) > total_mib(node))
