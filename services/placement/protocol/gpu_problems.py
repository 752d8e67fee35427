"""Events on nodes whose agents find no GPU, and on those where they do again."""

from __future__ import annotations

from services.placement import messages as m
from shared.book.book import Book
from shared.contracts.commands import AnnounceEvent
from shared.model.gpu import Inventory


class GpuProblems:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._problems: dict[str, str] = {}
        """Why the agent of a node finds no GPU; told in an Event on the node."""

    def tell(self, inventory: Inventory) -> list[m.Command]:
        """An Event on a node whose agent finds no GPU, and one when it does: such an agent is ready, and offers
        nothing. A new leader tells it again."""
        node, before = inventory.node, self._problems.pop(inventory.node, "")
        if inventory.problem:
            self._problems[node] = inventory.problem
        if inventory.problem == before:
            return []
        if inventory.problem:
            note = (
                f"Kerf's agent runs and offers no GPU of this node: {inventory.problem}. Install or load the NVIDIA "
                "driver; the agent looks again by itself"
            )
            return [m.SendPatches((self._event(node, "NoGpuFound", note, warns=True),))]
        note = f"Kerf's agent offers {len(inventory.gpus)} GPUs of this node now"
        return [m.SendPatches((self._event(node, "GpusFound", note, warns=False),))]

    def _event(self, node: str, reason: str, note: str, *, warns: bool) -> AnnounceEvent:
        known = self._book.nodes.get(node)
        uid = known.object.metadata.uid if known is not None and known.object is not None else node
        return AnnounceEvent(
            uid=uid,
            namespace="default",
            name=node,
            type="Warning" if warns else "Normal",
            reason=reason,
            action="Inventory",
            note=note,
            kind="Node",
        )
