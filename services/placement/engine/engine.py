"""Where a pod goes: one decision on the book as it stands. Pure; changes nothing but its own caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from services.placement.engine.choice import Rated, choices
from services.placement.engine.node_classes import NodeClasses
from services.placement.engine.shape import INFEASIBLE, Row, shape_key
from services.placement.policies import Policy, make_policies
from services.placement.policies.weighed import Weighed
from services.placement.scores import scores
from services.placement.scores.base import Rate
from shared.book.arrays import Bools, Ints
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import StrategyChoice
from shared.model.grant import ContainerGrant
from shared.model.objects import Pod
from shared.model.request import PodRequest
from shared.scheduling.assignment import containers_on
from shared.scheduling.filters import Check, filters
from shared.scheduling.filters.resources import lacking_extended
from shared.scheduling.nics import cards_for

_ROWS_LEAST, _ROWS_MOST = 1024, 8192
_ROWS_BYTES = 256 << 20
"""How many shapes' rows are cached, within these bounds. If more shapes wait, each change of the cluster recomputes all
of their rows: half a second at 1,213 nodes and 2,000 shapes, instead of 28 ms."""
_KNOWN_MOST = 1024


class Place(msgspec.Struct, frozen=True):
    """A pod's place: the node, its GPUs by container, and what spoke for it."""

    node: str
    containers: dict[str, ContainerGrant]
    total: int
    feasible_nodes: int
    policy: str
    nics: tuple[str, ...] = ()
    """The network cards of the node that the pod gets."""
    choice: tuple[StrategyChoice, ...] = ()
    """Of a pod for which sharing is weighed: how the strategies were chosen."""


class Engine:
    def __init__(self, book: Book, default_policy: str = "kerf") -> None:
        self.book = book
        self.default_policy = default_policy
        self.policies = make_policies(book)
        self._learning = {default_policy}
        self._met: set[str] = set()
        self._node_classes = NodeClasses(book)
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self._keys: dict[str, tuple[Pod, bytes]] = {}

    def key_of(self, state: PodState) -> bytes:
        """The pod's shape, cached for as long as the pod does not change. Hypothetical pods are not cached."""
        known = self._keys.get(state.uid)
        if known is not None and known[0] is state.pod:
            return known[1]
        key = shape_key(state)
        if state.uid in self.book.pods:
            self._keys[state.uid] = (state.pod, key)
        return key

    def forget(self, uid: str) -> None:
        self._keys.pop(uid, None)
        self._met.discard(uid)

    def meet(self, state: PodState, *, placed: bool) -> None:
        """A pod was tried for the first time: policies learn from this. Later attempts of the same pod teach nothing
        new."""
        if state.uid not in self._met:
            self._met.add(state.uid)
            for name in self._learning:
                self.policies[name].meet(state, placed=placed)

    def known_requests(self) -> list[PodRequest]:
        """The GPU requests among the shapes used last."""
        latest = islice(reversed(self._rows.values()), _KNOWN_MOST)
        return [row.sample.request for row in latest if row.sample.request is not None]

    def is_plain(self, state: PodState) -> bool:
        """Whether its shape alone decides: no other pod and no other object bears on it."""
        return not any(f.concerns(state, self.book) for f in filters().cluster)

    def policy_of(self, state: PodState) -> Policy:
        name = (state.request.policy if state.request else "") or self.default_policy
        self._learning.add(name)
        return self.policies[name]

    def gpu_policy_of(self, state: PodState) -> Policy:
        """The policy that orders the GPUs of the chosen node."""
        name = state.request.gpu_policy if state.request else ""
        if not name:
            return self.policy_of(state)
        self._learning.add(name)
        return self.policies[name]

    def row(self, state: PodState) -> Row:
        key = self.key_of(state)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(state, self.policy_of(state), self.book, self._node_classes)
            most = _ROWS_BYTES // (Row.BYTES_A_NODE * self.book.arrays.rows)
            while len(self._rows) > min(_ROWS_MOST, max(_ROWS_LEAST, most)):
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return row

    def decide(self, state: PodState, only: Bools | None = None) -> Place | None:
        """The best place now, or None. `explain` says why not. `only`: the rows to consider; None for all."""
        policy = self.policy_of(state)
        policy.learn()
        total = self.row(state).refresh()
        if only is not None:
            total = np.where(only, total, INFEASIBLE)
        checks = [c for f in filters().cluster if (c := f.prepare(state, self.book)) is not None]
        rates = [(s.weight, r) for s in scores().cluster if (r := s.prepare(state, self.book)) is not None]
        for row in self._best_first(total, checks, rates):
            node = self.book.nodes[self.book.row_names[row]]
            chosen = self._fit_node(state, node)
            cards = () if chosen is None else cards_for(state, chosen.values(), node)
            if chosen is not None and cards is not None:
                feasible = int(np.count_nonzero(total != INFEASIBLE))
                rated, gpus = Rated(node, int(total[row])), self.gpu_policy_of(state)
                why = choices(state, rated, chosen, self._next_to(row, total), gpus) if state.adaptive else ()
                return Place(node.name, chosen, int(total[row]), feasible, policy.name, cards, why)
        return None

    def _next_to(self, row: int, total: Ints) -> Rated | None:
        """The node that comes after the one in this row, by its scores alone."""
        rest = total.copy()
        rest[row] = INFEASIBLE
        other = int(rest.argmax())
        return None if rest[other] == INFEASIBLE else Rated(self._node(other), int(rest[other]))

    def nodes_for(self, state: PodState) -> Iterator[NodeState]:
        """The nodes where the pod fits, best first, but for extended resources and actual GPUs (`_fit_node`)."""
        self.policy_of(state).learn()
        total = self.row(state).refresh()
        checks = [c for f in filters().cluster if (c := f.prepare(state, self.book)) is not None]
        rates = [(s.weight, r) for s in scores().cluster if (r := s.prepare(state, self.book)) is not None]
        return map(self._node, dict.fromkeys(self._best_first(total, checks, rates)))

    def _best_first(self, total: Ints, checks: list[Check], rates: list[tuple[int, Rate]]) -> Iterator[int]:
        """Feasible rows, best first; equal scores in the order of rows, which concentrates."""
        if total.size == 0:
            return
        if not checks and not rates:
            best = int(total.argmax())
            if total[best] == INFEASIBLE:
                return
            yield best
        rows = np.flatnonzero(total != INFEASIBLE)
        if rates:
            extra = np.array([sum(w * rate(self._node(int(r))) for w, rate in rates) for r in rows], np.int64)
            rows = rows[np.argsort(-(total[rows] + extra), kind="stable")]
        else:
            rows = rows[np.argsort(-total[rows], kind="stable")]
        for row in rows.tolist():
            if all(check(self._node(row)) is None for check in checks):
                yield row

    def only(self, node: str) -> Bools:
        """The rows of `decide` for that very node."""
        rows = np.zeros(self.book.arrays.rows, np.bool_)
        rows[self.book.nodes[node].row] = True
        return rows

    def _node(self, row: int) -> NodeState:
        return self.book.nodes[self.book.row_names[row]]

    def _fit_node(self, state: PodState, node: NodeState) -> dict[str, ContainerGrant] | None:
        """The final checks on the node: extended resources, and the actual GPUs."""
        if lacking_extended(state.demand, node) is not None:
            return None
        policy = self.gpu_policy_of(state)
        return containers_on(state, node, Weighed(policy) if state.adaptive else policy)
