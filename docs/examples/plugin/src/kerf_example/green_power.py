"""A score: nodes with the label example.com/power=green come first."""

from __future__ import annotations

from services.placement.scores.base import NodeScore, Rate
from shared.book.book import Book
from shared.book.states import PodState


class GreenPower(NodeScore):
    name = "green-power"
    weight = 100
    reads_node = ()

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        return lambda node: (
            1000 if node.object is not None and node.object.metadata.labels.get("example.com/power") == "green" else 0
        )
