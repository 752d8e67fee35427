"""A pod that moves, as an explanation describes it."""

from __future__ import annotations

from shared.book.book import Book
from shared.book.disruption_cost import DisruptionCost
from shared.contracts.explain import Move


def as_move(one: DisruptionCost, target: str, book: Book) -> Move:
    meta = book.pods[one.uid].pod.metadata
    return Move(
        namespace=meta.namespace,
        name=meta.name,
        source=one.node,
        target=target,
        gpu_milli=one.gpu_milli,
        disturbed_gpu_seconds=one.price_gpu_ms // 1000,
    )
