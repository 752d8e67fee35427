"""A fork of the book with an engine of its own: the same rules and learned policies, and no effect outside."""

from __future__ import annotations

from collections import OrderedDict

from services.placement.engine.engine import Engine, Place
from services.placement.engine.node_classes import NodeClasses
from services.placement.engine.shape import Row
from services.placement.policies.base import Policy
from services.placement.scheduling.grants import TrialGrants
from shared.book.arrays import Bools
from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.states import PodState
from shared.contracts.facts import Gone, Put
from shared.model.gpu import Inventory
from shared.model.objects import Node
from shared.scheduling.transaction import Transaction


class TrialEngine(Engine):
    """Shares the origin's cached rows, so that a trial computes only what it has changed itself; the origin's book must
    not change meanwhile. Not so without them (`rows`)."""

    def __init__(self, origin: Engine, fork: Fork, *, rows: bool = True) -> None:
        self.__dict__.update(vars(origin))
        self.book = fork
        self.policies = {name: policy.on(fork) for name, policy in origin.policies.items()}
        self._origin, self._from = origin if rows else None, fork.arrays.cursor
        self._node_classes, self._generation = NodeClasses(fork), fork.arrays.generation
        self._learning, self._met, self._rows, self._keys = set(), set(), OrderedDict(), {}

    def row(self, state: PodState) -> Row:
        key = self.key_of(state)
        # once the fork has more rows than its origin, the origin's are of no use
        if key not in self._rows and self._origin is not None and self.book.arrays.generation == self._generation:
            self._rows[key] = _on(
                self._origin.row(state), self.policy_of(state), self.book, self._node_classes, self._from
            )
        return super().row(state)


def _on(row: Row, policy: Policy, book: Book, node_classes: NodeClasses, cursor: int) -> Row:
    row.refresh()
    twin = Row(row.sample, policy, book, node_classes)
    twin.generation, twin.edition, twin.cursor = book.arrays.generation, row.edition, cursor
    twin.passes, twin.preference, twin.total, twin.versions = (
        row.passes.copy(),
        row.preference.copy(),
        row.total.copy(),
        row.versions.copy(),
    )
    return twin


class Trial:
    """A fork of the book with an engine: places and removes pods, adds and removes nodes."""

    def __init__(self, engine: Engine) -> None:
        self.book = Fork(engine.book)
        self.transaction = Transaction(self.book)
        self.engine = TrialEngine(engine, self.book)

    def place(self, state: PodState, only: Bools | None = None) -> Place | None:
        """Gives a waiting pod of the fork its best place (in these rows), and it holds it from then on."""
        place = self.engine.decide(state, only)
        if place is not None:
            self.put(state, place)
        return place

    def place_on(self, state: PodState, node: str) -> Place | None:
        """The same, on that very node."""
        return self.place(state, self.engine.only(node))

    def could_go(self, state: PodState, node: str) -> bool:
        """Whether it would get a place on that node; nothing is held."""
        return self.engine.decide(state, self.engine.only(node)) is not None

    def put(self, state: PodState, place: Place) -> None:
        self.transaction.hold(state.uid, place.node, TrialGrants.grant(state, place))

    def lose(self, node: str) -> list[PodState]:
        """Removes a node. Returns its pods, which wait now."""
        here = self.book.nodes[node].pods
        pods = [
            self.book.lift(uid) for uid in list(here) if uid in self.book.pods
        ]  # places that are kept there for pods go with it
        gone = self.book.nodes[node].object
        for held in list(self.book.nodes[node].grants.values()):
            self.book.release(held.grant_id)
        self.book.retire_agent(node)
        if gone is not None:
            self.book.apply(Gone(object=gone))
        return pods

    def join(self, node: Node, inventory: Inventory | None) -> None:
        """Adds a node whose agent answers at once."""
        self.book.apply(Put(object=node))
        if inventory is not None:
            self.book.put_inventory(inventory)
            self.book.set_agent_trouble(node.metadata.name, "")
